"""From an :class:`SshTarget` and the OpenSSH client configuration to the hops of a connection.

Understood of ssh_config(5): ``Host``, ``Match`` (without ``exec``), ``Include``, ``HostName``, ``Port``, ``User``,
``IdentityFile``, ``IdentitiesOnly``, ``ProxyJump``, ``UserKnownHostsFile``, ``GlobalKnownHostsFile``, ``HostKeyAlias``.
Explicit fields of the target win. Nothing is executed: a board file may name the configuration file and the host that
is put into its commands, so ``ProxyCommand`` is refused and ``Match exec`` blocks never match.
``StrictHostKeyChecking`` is ignored: checking is always strict.
"""

from __future__ import annotations

import getpass
import glob
import logging
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import paramiko

from device_agents.contract import LinkError
from device_agents.ssh.hostkeys import KnownKey, lookup_names, parse_pin
from device_agents.ssh.target import SshTarget, host_problem, user_problem

logger = logging.getLogger(__name__)

_DEFAULT_IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")
_MAX_DEPTH = 16
_BLOCK = re.compile(r"\s*(host|match)\b\s*=?\s*(.*)", re.IGNORECASE)
_INCLUDE = re.compile(r"\s*include\b\s*=?\s*(.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Hop:
    """One SSH server on the way; the last one is the board."""

    host: str
    port: int
    user: str
    identities: tuple[Path, ...]
    """Private keys to try, in order."""
    identities_required: bool
    """Whether a missing identity file is an error (the caller named it) or passed over."""
    use_agent: bool
    agent_any: bool
    """Whether every key of ssh-agent may be tried, or only those that belong to ``identities``."""
    known_hosts: tuple[Path, ...]
    names: tuple[str, ...]
    """Names to look up in ``known_hosts``."""
    pin: KnownKey | None
    is_board: bool

    def __str__(self) -> str:
        return self.host if self.port == 22 else f"{self.host} port {self.port}"


def route(target: SshTarget) -> tuple[Hop, ...]:
    """Hops in the order of connecting, the board last.

    Raises:
        LinkError: the configuration cannot be read, asks for a command, or its ProxyJumps run in circles.
    """
    config = _ClientConfig(target.config_file)
    board = _hop(config, target, target.host, user=target.user, port=target.port, is_board=True)
    jump = target.proxy_jump if target.proxy_jump is not None else config.lookup(target.host).get("proxyjump")
    if target.proxy_jump is None:
        config.refuse_proxy_command(target.host)
    return (*_jumps(config, target, jump, 0), board)


def _jumps(config: _ClientConfig, target: SshTarget, jump: str | None, depth: int) -> tuple[Hop, ...]:
    if jump is None or jump.strip().lower() == "none":
        return ()
    if depth >= _MAX_DEPTH:
        raise LinkError(f"ProxyJump {jump!r} runs in circles", hint=f"see the hosts in {config.path}")
    hops: list[Hop] = []
    for index, spec in enumerate(jump.split(",")):
        user, host, port = _parse_jump(spec.strip())
        if index == 0:  # as ssh -J does: only the first hop is reached by its own configuration
            config.refuse_proxy_command(host)
            hops.extend(_jumps(config, target, config.lookup(host).get("proxyjump"), depth + 1))
        hops.append(_hop(config, target, host, user=user, port=port, is_board=False))
    return tuple(hops)


def _parse_jump(spec: str) -> tuple[str | None, str, int | None]:
    rest = spec.removeprefix("ssh://").removesuffix("/")
    user, at, address = rest.rpartition("@")
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?", address)
    plain = re.fullmatch(r"([^:\[\]]+)(?::(\d+))?", address)
    match = bracketed or plain
    if match is None and address.count(":") > 1:
        host, port = address, None  # a bare IPv6 address
    elif match is not None:
        host, port = match.group(1), int(match.group(2)) if match.group(2) else None
    else:
        raise LinkError(f"proxy_jump {spec!r} is not [user@]host[:port]")
    problem = host_problem(host) or (user_problem(user) if at else None)
    if problem is None and port is not None and not 1 <= port <= 65535:
        problem = f"port {port} is not in 1..65535"
    if problem is not None:
        raise LinkError(f"proxy_jump {spec!r}: {problem}")
    return (user if at else None), host, port


def _hop(
    config: _ClientConfig, target: SshTarget, alias: str, *, user: str | None, port: int | None, is_board: bool
) -> Hop:
    options = config.lookup(alias)
    host = options.get("hostname", alias)
    problem = host_problem(host)
    if problem is not None:
        raise LinkError(f"{config.path}: HostName of {alias!r}: {problem}")
    number = port or config.port(alias, options)
    identities = tuple(Path(name).expanduser() for name in options.get("identityfile", []))
    if not identities:
        identities = tuple(Path.home() / ".ssh" / name for name in _DEFAULT_IDENTITIES)
    identities_only = options.get("identitiesonly", "no").lower() == "yes"
    if target.key_file is not None:
        # The board gets this key alone; a jump host gets it after the keys configured for it.
        key_file = target.key_file.expanduser()
        identities = (key_file,) if is_board else (*identities, key_file)
    explicit = is_board and target.key_file is not None
    return Hop(
        host=host.strip("[]"),
        port=number,
        user=user or options.get("user") or getpass.getuser(),
        identities=identities,
        identities_required=explicit,
        use_agent=target.use_agent,
        agent_any=not explicit and not identities_only,
        known_hosts=(*config.known_hosts(alias, options), *((target.known_hosts,) if target.known_hosts else ())),
        names=lookup_names(host.strip("[]"), number, options.get("hostkeyalias")),
        pin=parse_pin(target.host_key) if is_board and target.host_key is not None else None,
        is_board=is_board,
    )


class _ClientConfig:
    """The OpenSSH client configuration of one user."""

    def __init__(self, path: Path | None) -> None:
        self.path = path.expanduser() if path is not None else Path.home() / ".ssh" / "config"
        if path is not None and not self.path.exists():
            raise LinkError(f"ssh configuration {self.path} does not exist", hint="see config_file of the board")
        try:
            lines = _read(self.path, 0) if self.path.exists() else []
            self._config = paramiko.SSHConfig.from_text("\n".join(lines))
        except (OSError, ValueError, paramiko.SSHException) as error:
            raise LinkError(f"ssh configuration {self.path} cannot be used: {error}") from error
        self._found: dict[str, paramiko.SSHConfigDict] = {}

    def lookup(self, alias: str) -> paramiko.SSHConfigDict:
        if alias not in self._found:
            try:
                self._found[alias] = self._config.lookup(alias)
            except (KeyError, ValueError, OSError, paramiko.SSHException) as error:
                raise LinkError(f"ssh configuration {self.path} cannot be used for {alias!r}: {error!r}") from error
        return self._found[alias]

    def port(self, alias: str, options: paramiko.SSHConfigDict) -> int:
        value = options.get("port", "22")
        if not value.isdecimal() or not 1 <= int(value) <= 65535:
            raise LinkError(f"{self.path}: Port {value!r} of {alias!r} is not in 1..65535")
        return int(value)

    def refuse_proxy_command(self, alias: str) -> None:
        command = self.lookup(alias).get("proxycommand")
        if command is not None:
            raise LinkError(
                f"{self.path} wants ProxyCommand {command!r} for {alias!r}, and boardtune does not run commands",
                hint="use ProxyJump there, or proxy_jump in the board file (proxy_jump: none connects directly)",
            )

    def known_hosts(self, alias: str, options: paramiko.SSHConfigDict) -> tuple[Path, ...]:
        users = options.get("userknownhostsfile", "~/.ssh/known_hosts")
        everyone = options.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts")
        tokens = {"%d": str(Path.home()), "%h": options.get("hostname", alias), "%n": alias, "%u": getpass.getuser()}
        paths: list[Path] = []
        for name in (*shlex.split(users), *shlex.split(everyone)):
            if name.lower() == "none":
                continue
            for token, value in tokens.items():
                name = name.replace(token, value)
            paths.append(Path(name).expanduser())
        return tuple(paths)


def _read(path: Path, depth: int) -> list[str]:
    """Lines of a configuration with its Includes put in place and its ``Match exec`` blocks left out."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"Include nested more than {_MAX_DEPTH} deep at {path}")
    lines: list[str] = []
    block, skipping = "Host *", False
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        start = _BLOCK.fullmatch(line)
        if start is not None:
            block = line
            skipping = start.group(1).lower() == "match" and _runs_command(start.group(2))
            if skipping:
                logger.warning("%s: '%s' is never run: the block is passed over", path, line.strip())
        include = _INCLUDE.fullmatch(line)
        if skipping:
            continue
        if include is None:
            lines.append(line)
            continue
        for name in shlex.split(include.group(1)):
            pattern = os.path.expanduser(name)
            if not os.path.isabs(pattern):
                pattern = str(Path.home() / ".ssh" / pattern)
            for found in sorted(glob.glob(pattern)):
                lines.extend(_read(Path(found), depth + 1))
        lines.append(block)  # what follows belongs to the block that was open here
    return lines


def _runs_command(criteria: str) -> bool:
    return any(word.lstrip("!").lower().split("=")[0] == "exec" for word in shlex.split(criteria))
