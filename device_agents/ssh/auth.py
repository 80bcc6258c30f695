"""Logging in: which credentials are tried, in which order, and what to say when none works."""

from __future__ import annotations

import base64
import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import paramiko

from device_agents.contract import LinkError
from device_agents.secret import Secret
from device_agents.ssh.config import Hop
from device_agents.ssh.guard import within
from device_agents.ssh.hostkeys import key_fingerprint
from device_agents.ssh.text import printable
from device_agents.transport import Deadline

logger = logging.getLogger(__name__)

_AGENT_WAIT_S = 5.0
_KEY_CLASSES: tuple[type[paramiko.PKey], ...] = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)


class LoginRefused(LinkError):
    """The server answered and said no: to try again with the same credentials only gets one locked out."""

    retryable = False


@dataclass(frozen=True)
class Credentials:
    """What the caller resolved; never sent to a hop it is not meant for."""

    password: Secret | None
    """For the board only: jump hosts never see it."""
    passphrase: Secret | None


@dataclass(frozen=True)
class _Key:
    key: paramiko.PKey
    label: str


def log_in(transport: paramiko.Transport, hop: Hop, credentials: Credentials, deadline: Deadline) -> None:
    """Authenticates ``transport`` as ``hop.user``.

    Tries what the server allows: no credential, keys (files, then ssh-agent), password, keyboard-interactive.

    Raises:
        LoginRefused: with the methods tried.
        LinkError: the link broke.
    """
    attempt = _Attempt(transport, hop, deadline)
    if attempt.none():
        return
    if attempt.allows("publickey"):
        with contextlib.closing(_keys(hop, credentials.passphrase, attempt.notes)) as candidates:
            if any(attempt.key(candidate) for candidate in candidates):
                return
    password = credentials.password if hop.is_board else None
    if password is not None and attempt.password(password):
        return
    raise attempt.failure(password_given=password is not None)


class _Attempt:
    """One login and the story of it."""

    def __init__(self, transport: paramiko.Transport, hop: Hop, deadline: Deadline) -> None:
        self._transport, self._hop, self._deadline = transport, hop, deadline
        self._allowed: list[str] = []
        self._tried: list[str] = []
        self.notes: list[str] = []
        """Why a credential was not usable; shown when nothing else works."""

    def allows(self, method: str) -> bool:
        return not self._allowed or method in self._allowed

    def none(self) -> bool:
        """Logs in without a credential where the server lets one; else learns what it accepts."""
        self._prepare()
        try:
            self._transport.auth_none(self._hop.user)
        except paramiko.BadAuthenticationType as refusal:
            self._allowed = list(refusal.allowed_types)
        except paramiko.AuthenticationException:
            pass
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._broken(error) from error
        return self._transport.is_authenticated()

    def key(self, candidate: _Key) -> bool:
        return self._try(
            f"key {candidate.label}", lambda: self._transport.auth_publickey(self._hop.user, candidate.key)
        )

    def password(self, password: Secret) -> bool:
        user = self._hop.user
        if self.allows("password") and self._try(
            "password", lambda: self._transport.auth_password(user, password.reveal(), fallback=False)
        ):
            return True

        def answer(title: str, instructions: str, prompts: list[tuple[str, bool]]) -> list[str]:
            # Only a prompt that does not echo asks for a password; a one-time code is not ours to give.
            return ["" if echo else password.reveal() for _, echo in prompts]

        return self.allows("keyboard-interactive") and self._try(
            "keyboard-interactive", lambda: self._transport.auth_interactive(user, answer)
        )

    def failure(self, *, password_given: bool) -> LoginRefused:
        hop = self._hop
        accepted = printable(", ".join(self._allowed)) or "unknown"
        tried = ", ".join(self._tried) or "nothing: no usable key and no password"
        who = "" if hop.is_board else "jump host "
        hint = f"check with: ssh {'' if hop.port == 22 else f'-p {hop.port} '}{hop.user}@{hop.host}"
        if "publickey" in self._allowed and not any(word.startswith("key ") for word in self._tried):
            hint += f"; put a key there with: ssh-copy-id {hop.user}@{hop.host}"
        elif self._allowed and "publickey" not in self._allowed and not password_given:
            hint += "; this server wants a password: give password by reference (env:NAME) in the board file"
        notes = f"; {'; '.join(self.notes)}" if self.notes else ""
        return LoginRefused(
            f"{who}{hop} refused to log in {hop.user!r}; tried: {tried}; the server accepts: {accepted}{notes}",
            hint=hint,
        )

    def _try(self, label: str, method: Callable[[], list[str]]) -> bool:
        self._prepare()
        self._tried.append(label)
        try:
            remaining = method()
        except paramiko.BadAuthenticationType as refusal:
            self._allowed = list(refusal.allowed_types)
        except paramiko.AuthenticationException as refusal:
            logger.debug("%s: %s not accepted: %s", self._hop, label, refusal)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._broken(error) from error
        else:
            if not self._transport.is_authenticated():  # accepted, but the server wants a second factor
                self._allowed = list(remaining)
        if not self._transport.is_active():
            raise self._broken(EOFError("too many attempts"))
        return self._transport.is_authenticated()

    def _prepare(self) -> None:
        if self._deadline.passed:
            raise LinkError(f"{self._hop}: login not finished within {self._deadline.seconds:g} s")
        self._transport.auth_timeout = self._deadline.remaining()

    def _broken(self, error: Exception) -> LinkError:
        tried = ", ".join(self._tried) or "nothing yet"
        hint = "many keys in ssh-agent use up the server's attempts: name one with key_file in the board file"
        why = printable(str(error)) or type(error).__name__
        return LinkError(
            f"{self._hop} closed the connection while logging in {self._hop.user!r}; tried: {tried} ({why})",
            hint=hint if len(self._tried) > 1 else "",
        )


def _keys(hop: Hop, passphrase: Secret | None, notes: list[str]) -> Generator[_Key, None, None]:
    """Keys in the order to try them; ssh-agent is spoken to until the generator is closed."""
    agent = _Agent(notes) if hop.use_agent else None
    try:
        yield from _candidates(hop, passphrase, notes, agent.keys if agent is not None else {})
    finally:
        if agent is not None:
            agent.close()


def _candidates(
    hop: Hop, passphrase: Secret | None, notes: list[str], agent: Mapping[str, paramiko.PKey]
) -> Iterator[_Key]:
    used: set[str] = set()
    for path in hop.identities:
        if not path.exists():
            if hop.identities_required:
                raise LinkError(f"key file {path} does not exist", hint="see key_file of the board")
            continue
        public = _public_fingerprint(path)
        if public in agent:  # no passphrase needed
            used.add(public)
            yield _Key(agent[public], f"{path} (in ssh-agent)")
            continue
        key = _load(path, passphrase, notes)
        if key is not None:
            used.add(_fingerprint(key))
            yield _Key(key, str(path))
    if hop.agent_any:
        for fingerprint, key in agent.items():
            if fingerprint not in used:
                yield _Key(key, f"{fingerprint} (in ssh-agent)")


def _load(path: Path, passphrase: Secret | None, notes: list[str]) -> paramiko.PKey | None:
    secret = passphrase.reveal() if passphrase is not None else None
    problem = ""
    for key_class in _KEY_CLASSES:
        try:
            return key_class.from_private_key_file(str(path), password=secret)
        except paramiko.PasswordRequiredException:
            notes.append(f"{path} is encrypted: give passphrase by reference (env:NAME), or add it to ssh-agent")
            return None
        except (paramiko.SSHException, ValueError, TypeError) as error:
            problem = str(error)  # of another type, or the passphrase is wrong: the next class tells
        except OSError as error:
            notes.append(f"{path} cannot be read: {error.strerror}")
            return None
    notes.append(f"{path} cannot be used{' (wrong passphrase?)' if secret else ''}: {problem}")
    return None


class _Agent:
    """A conversation with ssh-agent; without one, no keys."""

    def __init__(self, notes: list[str]) -> None:
        self._agent: paramiko.Agent | None = None
        self.keys: Mapping[str, paramiko.PKey] = {}
        try:
            self._agent = within(_AGENT_WAIT_S, paramiko.Agent)
            self.keys = {_fingerprint(key): key for key in self._agent.get_keys()}
        except TimeoutError:
            notes.append(f"ssh-agent did not answer within {_AGENT_WAIT_S:g} s")
        except (paramiko.SSHException, OSError, EOFError) as error:
            logger.debug("no ssh-agent: %s", error)

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()


def _fingerprint(key: paramiko.PKey) -> str:
    return key_fingerprint(key.asbytes())


def _public_fingerprint(path: Path) -> str:
    try:
        words = Path(f"{path}.pub").read_text(encoding="utf-8").split()
        return key_fingerprint(base64.b64decode(words[1], validate=True))
    except (OSError, ValueError, IndexError):
        return ""
