"""Files that are whole or absent: written beside, flushed, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.ledger.plain import pretty_json

TEMPORARY_SUFFIX = ".tmp"


def fsync_folder(folder: Path) -> None:
    """Makes names created or renamed in ``folder`` durable (no-op where folders cannot be opened, as on Windows)."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temporary_for(path: Path) -> Path:
    """Where to prepare ``path``: the same folder, so that the rename is atomic."""
    return path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")


def write_atomic(path: Path, content: bytes | str) -> None:
    data = content.encode("utf-8") if isinstance(content, str) else content
    build_atomic(path, lambda temporary: temporary.write_bytes(data))


def build_atomic(path: Path, build: Callable[[Path], object]) -> None:
    """Calls ``build(temporary)``, which writes that file, then puts it in place of ``path``."""
    temporary = temporary_for(path)
    try:
        build(temporary)
        commit(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def commit(source: Path, path: Path) -> None:
    """Moves a finished file to ``path`` durably; ``source`` may be on another file system."""
    if source.parent != path.parent:
        temporary = temporary_for(path)
        try:
            os.replace(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
            source.unlink()
        source = temporary
    with source.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(source, path)
    fsync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, pretty_json(value))


def read_json(path: Path) -> Any:
    """Raises :class:`ConfigError` (``file:line``) where the file is not JSON, or is not there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("the file is missing", where=path) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
