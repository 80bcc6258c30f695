"""Builds the firmware for this computer, once per state of its sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parent
_SUFFIXES = {".c", ".h", ".ld", ".S"}


class NoCompiler(RuntimeError):
    """There is no C compiler here, or it does not build the firmware."""


def sources_sha256() -> str:
    """Digest of all that a build is made from."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix in _SUFFIXES or path.name == "Makefile":
            digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build(target: str, folder: Path, timeout_s: float = 300.0) -> Path:
    """Makes ``target`` (``bt_host``, ``bt_qemu.elf``, …) below ``folder`` if it is not there already; its path.

    Raises:
        NoCompiler: make or the compiler is missing or fails; the text says what it said.
    """
    build_folder = folder / sources_sha256()[:16]
    made = build_folder / target
    if made.is_file():
        return made
    if shutil.which("make") is None or shutil.which("cc") is None:
        raise NoCompiler("there is no C compiler here (cc and make)")
    folder.mkdir(parents=True, exist_ok=True)
    # Beside, then renamed: two processes may build at once.
    staging = Path(f"{build_folder}.{hashlib.sha256(str(made).encode()).hexdigest()[:6]}.{os.getpid()}")
    command = ["make", "-s", "-C", str(SOURCES), f"BUILD={staging}", str(staging / target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode != 0:
            raise NoCompiler(f"the firmware does not build: {(done.stderr or done.stdout)[-2000:]}")
        build_folder.mkdir(parents=True, exist_ok=True)
        (staging / target).replace(made)
    except subprocess.TimeoutExpired as error:
        raise NoCompiler(f"building the firmware took more than {timeout_s:g} s") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return made
