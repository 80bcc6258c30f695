"""How bytes reach a board: the ``transport:`` section of a board file, one model per ``kind``."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from device_agents.emulated.chip.spec import Target as ChipTarget
from device_agents.ssh.hostkeys import parse_pin
from device_agents.ssh.target import board_path_problem, host_problem, user_problem
from harness.boards.base import Flag, Section, Text, Whole, invalid
from harness.boards.secret_ref import SecretRef
from harness.boards.units import Seconds

_PORT = re.compile(
    r"(?:(?:socket|rfc2217)://[A-Za-z0-9._\[\]:-]+(?:\?[A-Za-z0-9._=&-]*)?|/dev/[A-Za-z0-9._/:-]+|COM\d{1,3})"
)
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
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


def _port(value: str) -> str:
    if not _PORT.fullmatch(value):
        raise invalid(
            "port",
            f"not a serial port: {value!r}",
            hint="a device (/dev/ttyUSB0, COM3) or a URL of pyserial: socket://host:port, rfc2217://host:port",
        )
    return value


def _mac(value: str) -> str:
    lower = value.lower().replace("-", ":")
    if not _MAC.fullmatch(lower):
        raise invalid("mac", f"not a MAC address: {value!r}", hint="six bytes: 7c:df:a1:00:11:22, as esptool prints it")
    return lower


class SerialTransport(Section):
    """A microcontroller on a serial line (USB or UART) with boardtune's firmware."""

    kind: Literal["serial"]
    port: Annotated[Text, AfterValidator(_port)] | None = None
    """Device or URL: ``/dev/ttyUSB0``, ``COM3``, ``socket://host:port``, ``rfc2217://host:port``. Devices' names change
    when boards are plugged in again; ``mac`` and ``usb_serial`` do not."""
    mac: Annotated[Text, AfterValidator(_mac)] | None = None
    """MAC address of the chip; the board is found by it on any port."""
    usb_serial: Annotated[Text, Field(min_length=1, max_length=100)] | None = None
    """Serial number of its USB device."""
    target: ChipTarget
    """The chip, as ESP-PPQ and ESP-IDF call it."""
    baud: Annotated[Whole, Field(ge=9600, le=5_000_000)] = 115200
    """Rate after a reset."""
    max_baud: Annotated[Whole, Field(ge=9600, le=5_000_000)] = 921600
    """Highest rate to try; boards fall back to one that works."""
    reset: Literal["auto", "classic", "usb_jtag", "none"] = "auto"
    """How control lines reset it: two transistors at DTR and RTS, USB-Serial-JTAG, or not at all."""

    @model_validator(mode="after")
    def _can_be_found(self) -> SerialTransport:
        if self.port is None and self.mac is None and self.usb_serial is None:
            raise invalid(
                "port",
                "nothing says where the board is",
                hint="write port, mac or usb_serial; mac is the one that stays",
                at="kind",
            )
        return self


class MlperfTinyTransport(Section):
    """A microcontroller on a serial line with MLPerf Tiny firmware, which contains one model: it can be timed and
    checked."""

    kind: Literal["mlperf_tiny"]
    port: Annotated[Text, AfterValidator(_port)] | None = None
    """Device or URL: ``/dev/ttyACM0``, ``COM3``, ``socket://host:port``, ``rfc2217://host:port``."""
    usb_serial: Annotated[Text, Field(min_length=1, max_length=100)] | None = None
    """Serial number of its USB device; the board is found by it on any port."""
    baud: Annotated[Whole, Field(ge=9600, le=5_000_000)] = 115200
    reset: Literal["auto", "classic", "usb_jtag", "none"] = "none"
    """How control lines reset it, if they do; without, a board that hangs waits for its reset button."""

    @model_validator(mode="after")
    def _can_be_found(self) -> MlperfTinyTransport:
        if self.port is None and self.usb_serial is None:
            raise invalid("port", "nothing says where the board is", hint="write port or usb_serial", at="kind")
        return self


class EmulatedSerialTransport(Section):
    """A microcontroller that does not exist: its firmware's protocol on a pty of this machine (see ``emulated:``)."""

    kind: Literal["emulated_serial"]
    max_baud: Annotated[Whole, Field(ge=9600, le=3_000_000)] = 921600
    """Highest rate to try."""


Transport = Annotated[
    LocalTransport
    | SshTransport
    | EmulatedSshTransport
    | SerialTransport
    | EmulatedSerialTransport
    | MlperfTinyTransport,
    Field(discriminator="kind"),
]
RUNTIME_OF = {"serial": "esp-dl", "emulated_serial": "esp-dl", "mlperf_tiny": "mlperf-tiny"}
"""The runtime behind a kind of transport, where it is not ONNX Runtime."""
