"""Host keys: what is pinned or known, what a server presented, and the refusal when they differ.

Reads OpenSSH known_hosts files (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"): several names, ``*`` and ``?`` patterns,
negation, hashed names, ``[host]:port``, ``@revoked``. ``@cert-authority`` lines are skipped: certificates are not
used here. Nothing is ever trusted on first sight.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}=?")
_ALGORITHM = re.compile(r"(ssh|ecdsa|sk-ssh|sk-ecdsa)-[A-Za-z0-9@.-]+")
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")


@dataclass(frozen=True)
class HostKey:
    """A key a server presented, in the forms people and files use."""

    algorithm: str
    """``ssh-ed25519``, ``ecdsa-sha2-nistp256``, ``ssh-rsa``, …"""
    fingerprint: str
    """``SHA256:…`` as ``ssh-keygen -l`` shows it."""
    line: str
    """A known_hosts line: name, algorithm, base64."""


@dataclass(frozen=True)
class KnownKey:
    """A key that is pinned in the board file or stands in a known_hosts file."""

    fingerprint: str
    algorithm: str | None
    """``None`` where only a fingerprint was pinned."""
    where: str
    """``file:line`` or ``host_key of the board``."""
    revoked: bool = False


def key_fingerprint(blob: bytes) -> str:
    """``SHA256:…`` of a public key in SSH wire form."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def parse_pin(text: str) -> KnownKey:
    """A pinned host key: ``SHA256:…``, ``ALGORITHM SHA256:…``, ``ALGORITHM BASE64`` or a known_hosts line.

    Raises:
        ValueError: none of these.
    """
    words = text.split()
    where = "host_key of the board"
    for index, word in enumerate(words[:3]):
        algorithm = words[index - 1] if index else None
        if _FINGERPRINT.fullmatch(word):
            if algorithm is not None and not _ALGORITHM.fullmatch(algorithm):
                break
            return KnownKey(word.rstrip("="), algorithm, where)
        if algorithm is not None and _ALGORITHM.fullmatch(algorithm):
            blob = _decode(word)
            if blob is not None and _blob_algorithm(blob) == algorithm:
                return KnownKey(key_fingerprint(blob), algorithm, where)
    raise ValueError(
        f"{text!r} is not a host key: write SHA256:… (as ssh-keygen -l shows it), 'ssh-ed25519 AAAA…' "
        "or a known_hosts line"
    )


def lookup_names(host: str, port: int, alias: str | None = None) -> tuple[str, ...]:
    """Names under which known_hosts may hold a server's key, the most telling first."""
    if alias:
        return (alias.lower(),)
    host = host.lower()
    return (host,) if port == 22 else (f"[{host}]:{port}", host)


def read_known_hosts(files: Iterable[Path], names: Sequence[str]) -> tuple[KnownKey, ...]:
    """Keys the files hold for the first of ``names`` that has any. Missing files are empty; bad lines are skipped."""
    lines = [(path, number, line) for path in files for number, line in _lines(path)]
    for name in names:
        found = tuple(
            key for path, number, line in lines if (key := _parse_line(line, name, f"{path}:{number}")) is not None
        )
        if found:
            return found
    return ()


def signature_algorithms(known: Sequence[KnownKey], offered: Sequence[str]) -> tuple[str, ...]:
    """``offered`` (what our library can verify), those that fit a known key first.

    A server with several keys then shows the one we can check, and a server that lost it shows another and is refused.
    """
    wanted = [name for key in known if key.algorithm and not key.revoked for name in _signatures(key.algorithm)]
    first = [name for name in offered if name in wanted]
    return (*first, *(name for name in offered if name not in first))


def families(offered: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """``offered`` split by kind of key: a server has at most one key of each."""
    groups: dict[str, list[str]] = {}
    for name in offered:
        groups.setdefault("rsa" if name in _RSA_SIGNATURES else name, []).append(name)
    return tuple(tuple(group) for group in groups.values())


def host_key_from(algorithm: str, blob: bytes, name: str) -> HostKey:
    return HostKey(algorithm, key_fingerprint(blob), f"{name} {algorithm} {base64.b64encode(blob).decode()}")


def enrol(known_hosts: Path, key: HostKey) -> None:
    """Writes ``key`` to a known_hosts file as the only key of its name there. Atomic; makes the folder.

    Raises ``OSError`` where the file cannot be written.
    """
    name = key.line.split()[0]
    known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = [line for _, line in _lines(known_hosts) if line.split()[:1] != [name]]
    descriptor, temporary = tempfile.mkstemp(dir=known_hosts.parent, prefix=f".{known_hosts.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in (*kept, key.line))
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(known_hosts)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _signatures(algorithm: str) -> tuple[str, ...]:
    return _RSA_SIGNATURES if algorithm == "ssh-rsa" else (algorithm,)


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        logger.warning("cannot read known hosts %s: %s", path, error)
        return []
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _parse_line(line: str, name: str, where: str) -> KnownKey | None:
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked"):
        return None
    names, algorithm, encoded = words[:3]
    if not _name_matches(names, name):
        return None
    blob = _decode(encoded)
    if blob is None or _blob_algorithm(blob) != algorithm:
        logger.warning("%s: not a known_hosts line, skipped", where)
        return None
    return KnownKey(key_fingerprint(blob), algorithm, where, revoked=bool(marker))


def _name_matches(names: str, name: str) -> bool:
    matched = False
    for pattern in names.split(","):
        negated = pattern.startswith("!")
        if not _pattern_matches(pattern.removeprefix("!"), name):
            continue
        if negated:
            return False
        matched = True
    return matched


def _pattern_matches(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        parts = pattern.split("|")
        salt, digest = (_decode(part) for part in parts[2:4]) if len(parts) == 4 else (None, None)
        if salt is None or digest is None:
            return False
        return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
    expression = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern.lower())
    return re.fullmatch(expression, name) is not None


def _decode(encoded: str) -> bytes | None:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None


def _blob_algorithm(blob: bytes) -> str | None:
    size = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + size].decode("ascii", "replace") if 0 < size <= 64 and len(blob) > 4 + size else None
