"""``boards init``: writes a new board file from a commented template and the few things that differ."""

from __future__ import annotations

import os
import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import yaml

from harness.boards.extends import resolve
from harness.boards.folders import templates_folder
from harness.boards.schema import NAME
from harness.boards.source import BoardSource, read_source_text
from harness.errors import ConfigError
from harness.suggest import did_you_mean

_PLAIN = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./~@-]*")
_SSH = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]]+\]|[^:@\s]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*)(?::(?P<port>\d+))?"
)

_SERIAL = {"serial", "mlperf_tiny"}


@dataclass(frozen=True)
class SshAddress:
    host: str
    user: str | None = None
    port: int | None = None


def parse_address(text: str) -> SshAddress:
    """``[user@]host[:port]``; an IPv6 address with a port is written in brackets.

    Raises:
        ConfigError: it is not of that form.
    """
    match = _SSH.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"not an address: {text!r}", hint="write it as user@host or user@host:port")
    port = match.group("port")
    return SshAddress(match.group("host").strip("[]"), match.group("user"), int(port) if port else None)


def template_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in templates_folder().glob("*.yaml")))


def new_board(
    name: str,
    *,
    folder: Path,
    ssh: SshAddress | None,
    template: str | None = None,
    key: str | None = None,
    serial: str | None = None,
    target: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes ``folder/NAME.yaml`` and returns its path; what is written is a valid board file.

    Args:
        name: name of the board.
        folder: made if it does not exist.
        ssh: where the board is; ``None`` means this machine, or ``serial``.
        serial: the serial port it is at.
        target: the chip of a serial board.
        template: one of :func:`template_names`; default ``generic-linux``, ``esp32`` or ``local``.
        key: private key file, relative to the working folder.
        overwrite: whether an existing file may be replaced.

    Raises:
        ConfigError: a wrong name, address or template; the file exists; the folder cannot be written.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"not a board name: {name!r}", hint="lower-case letters, digits and '-', at most 63")
    text = _template(template or ("generic-linux" if ssh else "esp32" if serial else "local"))
    values: dict[tuple[str, ...], str] = {("metadata", "name"): name}
    extra: list[str] = []
    if serial is not None:
        values["transport", "port"] = serial
    if target is not None and template == "mlperf-tiny":
        raise ConfigError("--target is for boards with boardtune's firmware", hint="leave it out")
    if target is not None:
        values["transport", "target"] = target
    if ssh is not None:
        values["transport", "host"] = ssh.host
        if ssh.user is not None:
            values["transport", "user"] = ssh.user
        extra += [f"port: {ssh.port}"] if ssh.port is not None else []
        extra += [f"key: {_scalar(_key_path(key))}"] if key is not None else []
    text = _edited(text, values, extra, drop_user=ssh is not None and ssh.user is None)
    path = folder / f"{name}.yaml"
    _check(text, path, kinds={"ssh"} if ssh is not None else _SERIAL if serial is not None else {"local"})
    _write(path, text, overwrite=overwrite)
    return path


def _template(name: str) -> str:
    if name not in template_names():
        raise ConfigError(f"unknown template {name!r}", hint=did_you_mean(name, template_names(), what="templates"))
    return (templates_folder() / f"{name}.yaml").read_text(encoding="utf-8")


def _edited(text: str, values: dict[tuple[str, ...], str], extra: list[str], *, drop_user: bool) -> str:
    """The text with some scalars replaced and lines added below ``transport.host``; comments stay."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    edits: list[tuple[int, int, str]] = []
    for path, value in values.items():
        node = _find(root, path)
        if node is not None:
            edits.append((node.start_mark.index, node.end_mark.index, _scalar(value)))
    host, user = _find(root, ("transport", "host")), _find(root, ("transport", "user"))
    if host is not None and extra:
        end = _line_end(text, host.end_mark.index)
        edits.append((end, end, "".join(f"\n  {line}" for line in extra)))
    if user is not None and drop_user:
        start = text.rindex("\n", 0, user.start_mark.index)
        edits.append((start, _line_end(text, user.end_mark.index), ""))
    for start, end, value in sorted(edits, reverse=True):
        text = text[:start] + value + text[end:]
    return text


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end


def _find(root: yaml.Node | None, path: tuple[str, ...]) -> yaml.Node | None:
    node = root
    for step in path:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for key, value in node.value if key.value == step), None)
    return node


def _scalar(value: str) -> str:
    """A value as YAML text: bare if YAML reads it back as that text, else quoted."""
    if _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    return "'" + value.replace("'", "''") + "'"


def _key_path(key: str) -> str:
    """A relative path in a board file is relative to the file; on the command line it is relative to the user."""
    return key if key.startswith("~") else str(Path(key).absolute())


def _check(text: str, path: Path, *, kinds: Set[str]) -> None:
    source: BoardSource = read_source_text(text, path)
    board = resolve(source, {source.name: source}, {})
    if board is not None and board.transport.kind not in kinds:
        raise ConfigError(
            "the template is for another transport",
            hint="take --template local with --local, esp32 or mlperf-tiny with --serial, and any other with --ssh",
        )


def _write(path: Path, text: str, *, overwrite: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if overwrite else os.O_EXCL)
        with os.fdopen(os.open(path, flags, 0o644), "w", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise ConfigError("the file exists already", where=path, hint="edit it, or add --force to replace it") from None
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror or error}", where=path, hint="choose another --folder"
        ) from None
