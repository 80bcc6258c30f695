"""``boards flash`` and ``boards console``."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from device_agents.serial.console import watch
from harness.boards.flash import flash_board, read_flasher_args
from harness.boards.schema import Board
from harness.errors import BoardUnavailable, ConfigError
from tests.serial.host_firmware import running


def board(**transport: object) -> Board:
    return Board.model_validate(
        {
            "apiVersion": "boardtune/v1",
            "kind": "Board",
            "metadata": {"name": "chip"},
            "transport": {"kind": "serial", "target": "esp32s3", "port": "/dev/ttyUSB9", **transport},
        }
    )


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """What ``idf.py build`` leaves."""
    names = {"0x10000": "boardtune.bin", "0x0": "bootloader/bootloader.bin", "0x8000": "partition-table.bin"}
    for name in names.values():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\xe9")
    content = {"write_flash_args": ["--flash_mode", "dio", "--flash_size", "16MB"], "flash_files": names}
    (tmp_path / "flasher_args.json").write_text(json.dumps(content))
    return tmp_path


@pytest.fixture
def esptool(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found("json") if name == "esptool" else found(name))


@pytest.mark.usefixtures("esptool")
def test_the_command_is_esptools(images: Path) -> None:
    ran: list[tuple[str, ...]] = []

    def run(command: Sequence[str], folder: Path, timeout_s: float) -> int:
        ran.append(tuple(command))
        return 0

    flashed = flash_board(board(max_baud=460800), build=False, images=images, run=run)
    assert ran == [*flashed.commands]
    # https://docs.espressif.com/projects/esptool/en/latest/esp32s3/esptool/basic-commands.html
    assert ran[0] == (
        *(sys.executable, "-m", "esptool", "--chip", "esp32s3", "--port", "/dev/ttyUSB9", "--baud", "460800"),
        *("write-flash", "--flash-mode", "dio", "--flash-size", "16MB"),
        *("0x0", str(images / "bootloader/bootloader.bin"), "0x8000", str(images / "partition-table.bin")),
        *("0x10000", str(images / "boardtune.bin")),
    )


@pytest.mark.usefixtures("esptool")
def test_what_may_be_missing(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BoardUnavailable, match="ended with 2"):
        flash_board(board(), build=False, images=images, run=lambda *_: 2)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"idf\.py"):
        flash_board(board(), build=True, images=images)
    (images / "boardtune.bin").unlink()
    with pytest.raises(ConfigError, match=r"boardtune\.bin"):
        read_flasher_args(images)
    (images / "flasher_args.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"flasher_args\.json"):
        read_flasher_args(images)
    with pytest.raises(ConfigError, match="no build"):
        read_flasher_args(tmp_path / "nowhere")


def test_without_esptool(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="esptool is not installed"):
        flash_board(board(), build=False, images=images, run=lambda *_: 0)


def test_the_console_shows_a_panic_the_boot_log_and_frames(host_binary: Path, tmp_path: Path) -> None:
    with running(host_binary, tmp_path) as found:
        # Opening a port throws away what was there before, so the board goes down again and again until it is seen.
        done = threading.Event()

        def crash() -> None:
            while not done.wait(1.0):
                os.kill(found.process.pid, signal.SIGSEGV)

        crasher = threading.Thread(target=crash)
        crasher.start()
        lines = []
        try:
            for line in watch(found.target(), 60, frames=True):
                lines.append(line)
                if "EVENT_READY" in line and any("Guru Meditation" in earlier for earlier in lines):
                    break
        finally:
            done.set()
            crasher.join()
    panic = next(at for at, line in enumerate(lines) if line.startswith("Guru Meditation Error: Core  0 panic'ed"))
    assert "ESP-ROM:esp32s3-20210327" in lines[panic:]
    assert "rst:0xc (RTC_SW_CPU_RST),boot:0x8 (SPI_FAST_FLASH_BOOT)" in lines[panic:]
    assert lines[-1].startswith("[EVENT_READY, 1 bytes")
