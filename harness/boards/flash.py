"""``boards flash``: puts boardtune's firmware on a microcontroller with esptool, and builds it with ESP-IDF's idf.py.

Both are other people's programs and run as such: esptool is GPL, and ESP-IDF is far too large to be installed by us.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_agents.serial.handshake import lock_address
from device_agents.serial.port import candidates
from device_agents.ssh.lock import BoardLock
from harness.boards.agents import serial_target
from harness.boards.folders import cache_folder
from harness.boards.schema import Board
from harness.errors import BoardUnavailable, ConfigError

log = logging.getLogger(__name__)

_PROJECT = Path(__file__).parents[2] / "device_agents" / "firmware" / "esp_idf"
_BUILD_S, _FLASH_S = 3600.0, 600.0

Run = Callable[[Sequence[str], Path, float], int]
"""Runs a program (arguments, folder, seconds) with the user's terminal and returns its exit status."""


@dataclass(frozen=True)
class Flashed:
    """What was put where."""

    port: str
    files: tuple[tuple[int, Path], ...]
    """(offset in flash, image)."""
    commands: tuple[tuple[str, ...], ...]


def run_program(command: Sequence[str], folder: Path, timeout_s: float) -> int:
    return subprocess.run(list(command), cwd=folder, check=False, timeout=timeout_s).returncode


def flash_board(board: Board, *, build: bool, images: Path | None = None, run: Run = run_program) -> Flashed:
    """Flashes the firmware of a serial board.

    Args:
        board: with transport serial.
        build: build it first with ``idf.py``.
        images: folder with ``flasher_args.json`` of an ESP-IDF build; default: where ``build`` puts it.
        run: runs programs.

    Raises:
        ConfigError: no serial board, esptool or idf.py is missing, there is no build.
        BoardUnavailable: a program failed.
        AgentError: no such port, or another boardtune drives the board.
    """
    target = serial_target(board)
    if target.chip is None:
        raise ConfigError(
            f"board {board.name!r} has firmware of its own ({board.transport.kind})",
            hint="flash it with its vendor's tools",
        )
    chip = target.chip
    folder = images or cache_folder() / "firmware" / f"build-{chip}"
    commands: list[tuple[str, ...]] = []
    if build:
        commands.append(_build_command(chip, folder))
        _run(run, commands[-1], _PROJECT, _BUILD_S, "the firmware does not build")
    if importlib.util.find_spec("esptool") is None:
        raise ConfigError("esptool is not installed", hint="pip install 'boardtune[esp]'")
    settings, files = read_flasher_args(folder)
    lock = BoardLock(target.lock_dir, [lock_address(target)], "serial")
    lock.acquire()
    try:
        port = candidates(target)[0].device
        commands.append(_flash_command(chip, port, target.max_baud, settings, files))
        _run(run, commands[-1], folder, _FLASH_S, f"esptool could not flash the board at {port}")
    finally:
        lock.release()
    return Flashed(port, files, tuple(commands))


def read_flasher_args(folder: Path) -> tuple[tuple[str, ...], tuple[tuple[int, Path], ...]]:
    """(arguments of ``write-flash``, (offset, image) in order) of an ESP-IDF build.

    Raises:
        ConfigError: there is none, or it does not name its images.
    """
    path = folder / "flasher_args.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        settings = tuple(str(argument) for argument in content.get("write_flash_args", ()))
        files = tuple(sorted((int(at, 0), folder / str(name)) for at, name in content["flash_files"].items()))
    except OSError as error:
        raise ConfigError(
            f"there is no build of the firmware: {error.strerror or error}",
            where=path,
            hint="add --build (needs ESP-IDF), or --images FOLDER with a build made elsewhere",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"it is no flasher_args.json of ESP-IDF: {error}", where=path, hint="build again") from None
    missing = [image for _, image in files if not image.is_file()]
    if missing or not files:
        raise ConfigError(f"the image {missing[0] if missing else 'list'} is missing", where=path, hint="build again")
    return settings, files


def _build_command(chip: str, folder: Path) -> tuple[str, ...]:
    program = shutil.which("idf.py")
    if program is None:
        raise ConfigError(
            "idf.py is not on the PATH", hint="install ESP-IDF 5.3 or later and run its export.sh in this shell"
        )
    return (program, "-B", str(folder), f"-DIDF_TARGET={chip}", f"-DSDKCONFIG={folder / 'sdkconfig'}", "build")


def _flash_command(
    chip: str, port: str, baud: int, settings: Sequence[str], files: Sequence[tuple[int, Path]]
) -> tuple[str, ...]:
    images = [text for offset, image in files for text in (hex(offset), str(image))]
    esptool = (sys.executable, "-m", "esptool", "--chip", chip, "--port", port, "--baud", str(baud))
    return (*esptool, "write-flash", *(argument.replace("_", "-") for argument in settings), *images)


def _run(run: Run, command: Sequence[str], folder: Path, timeout_s: float, problem: str) -> None:
    log.info("running %s", " ".join(command))
    try:
        status = run(command, folder, timeout_s)
    except subprocess.TimeoutExpired:
        raise BoardUnavailable(f"{problem}: {command[0]} took more than {timeout_s:g} s", hint="try again") from None
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror or error}", hint="install it again") from None
    if status != 0:
        raise BoardUnavailable(f"{problem}: {Path(command[0]).name} ended with {status}", hint="see what it said above")
