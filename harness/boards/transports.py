"""How bytes reach a board: the ``transport:`` section of a board file, one model per ``kind``."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from device_agents.ssh.hostkeys import parse_pin
from device_agents.ssh.target import board_path_problem, host_problem, user_problem
from harness.boards.base import Flag, Section, Text, Whole, invalid
from harness.boards.secret_ref import SecretRef
from harness.boards.units import Seconds

_JUMP = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9._@:\[\],-]*")


def _host(value: str) -> str:
    problem = host_problem(value)
    if problem is not None:
        hint = "write only the host name or address; user and port have fields of their own"
        if "@" in value:
            user, _, host = value.partition("@")
            hint = f"write it as two fields: host: {host} and user: {user}"
        raise invalid("host", problem, hint=hint)
    return value


def _user(value: str) -> str:
    problem = user_problem(value)
    if problem is not None:
        raise invalid("user", problem, hint="letters, digits and . _ - @ \\ only, not starting with '-'")
    return value


def _jump(value: str) -> str:
    if not _JUMP.fullmatch(value):
        raise invalid("proxy_jump", f"not a jump host: {value!r}", hint='write it as in ssh -J: "user@gateway:22"')
    return value


def _host_key(value: str) -> str:
    try:
        parse_pin(value)
    except ValueError:
        raise invalid(
            "host_key",
            "not a host key",
            hint='paste the fingerprint ("SHA256:…") or the line that `ssh-keyscan HOST` prints; '
            "`boardtune boards trust NAME` shows both",
        ) from None
    return value


def _board_path(value: str) -> str:
    problem = board_path_problem(value)
    if problem is not None:
        raise invalid("board_path", problem, hint="it is a path on the board, such as /opt/venv/bin/python")
    return value


def _workdir(value: str) -> str:
    """``boards clean`` removes this folder, so it must be one that boardtune can have to itself."""
    posix, windows = PurePosixPath(value), PureWindowsPath(value)
    whole = value.rstrip("/\\") in ("", ".", "~", "~/.", ".ssh") or windows.drive == value.rstrip("/\\")
    if whole or ".." in posix.parts or ".." in windows.parts:
        raise invalid(
            "workdir",
            f"workdir cannot be {value!r}: `boards clean` removes it with all it holds",
            hint="name a folder for boardtune alone, such as .boardtune (in the home folder) or /data/boardtune",
        )
    return value


def _local_workdir(value: Path) -> Path:
    path = value.expanduser()
    if path == Path(path.anchor) or path == Path.home() or ".." in path.parts:
        raise invalid(
            "workdir",
            f"workdir cannot be {str(value)!r}: `boards clean` removes it with all it holds",
            hint="name a folder for boardtune alone, such as ~/.cache/boardtune/board",
        )
    return path


def _key_file(value: Any) -> Any:
    """A private key is a file; ``file:PATH`` and ``{file: PATH}`` are read as PATH."""
    if isinstance(value, dict) and set(value) == {"file"}:
        value = value["file"]
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.strip():
        raise invalid("key", "key is the path of a private key file", hint="key: ~/.ssh/id_ed25519")
    if "PRIVATE KEY" in value or "\n" in value:
        raise invalid(
            "inline_secret",
            "a private key is written here instead of the path of its file",
            hint="keep the key in a file only you can read and write its path: key: ~/.ssh/id_ed25519",
        )
    if value.startswith("env:"):
        raise invalid("key", "key is the path of a private key file, not a variable", hint="key: ~/.ssh/id_ed25519")
    return Path(value.removeprefix("file:")).expanduser()


def _expand(value: Path) -> Path:
    return value.expanduser()


BoardPath = Annotated[Text, Field(min_length=1, max_length=200), AfterValidator(_board_path)]
KeyFile = Annotated[
    Path, BeforeValidator(_key_file), WithJsonSchema({"type": "string", "examples": ["~/.ssh/id_ed25519"]})
]


class LocalTransport(Section):
    """This machine, without a network."""

    kind: Literal["local"]
    python: Text | None = None
    """Python interpreter that runs the models; default: the one boardtune runs in."""
    workdir: Annotated[Path, AfterValidator(_local_workdir)] | None = None
    """Folder for models and the runner; default: ``~/.boardtune``."""


class SshTransport(Section):
    """A board with an SSH server: Linux or Windows, with Python and ONNX Runtime."""

    kind: Literal["ssh"]
    host: Annotated[Text, AfterValidator(_host)]
    """Host name, address, or an alias of ``~/.ssh/config``."""
    port: Annotated[Whole, Field(ge=1, le=65535)] | None = None
    """Default: what ``~/.ssh/config`` says, or 22."""
    user: Annotated[Text, AfterValidator(_user)] | None = None
    """Default: what ``~/.ssh/config`` says, or your own user name."""
    key: KeyFile | None = None
    """Private key file, e.g. ``~/.ssh/id_ed25519``. Relative to this board file's folder."""
    password: SecretRef | None = None
    """Password, by reference: ``env:NAME`` or ``file:PATH``. A key is better."""
    passphrase: SecretRef | None = None
    """Passphrase of the private key, by reference: ``env:NAME`` or ``file:PATH``."""
    host_key: Annotated[Text, AfterValidator(_host_key)] | None = None
    """The board's host key: ``SHA256:…`` or a known_hosts line. Default: what ``boards trust`` enrolled."""
    proxy_jump: Annotated[Text, AfterValidator(_jump)] | None = None
    """Host to go through, as in ``ssh -J``: ``user@gateway:22``."""
    config: Annotated[Path, AfterValidator(_expand)] | None = None
    """SSH client configuration to read instead of ``~/.ssh/config``."""
    use_agent: Flag = True
    """Also try the keys of a running ssh-agent."""
    python: BoardPath = "python3"
    """Python interpreter on the board: a name on its PATH or a path (that of a virtual environment, say)."""
    workdir: Annotated[BoardPath, AfterValidator(_workdir)] = ".boardtune"
    """Folder on the board for models and the runner; relative to the home folder."""
    keepalive_s: Annotated[Seconds, Field(gt=0)] = 15.0
    """Seconds between keepalive messages."""


class EmulatedSshTransport(Section):
    """A board that does not exist: an SSH server on this machine, driven like a real one (see ``emulated:``)."""

    kind: Literal["emulated_ssh"]


Transport = Annotated[LocalTransport | SshTransport | EmulatedSshTransport, Field(discriminator="kind")]
