"""The serial agent, for what holds for every agent: with the emulated chip, and with the firmware's core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from device_agents.contract import Agent
from device_agents.emulated.chip.power import EmulatedChip, agent_of
from device_agents.emulated.chip.spec import EmulatedChipSpec
from device_agents.firmware.build import NoCompiler, build
from device_agents.serial.agent import SerialAgent
from tests.serial.host_firmware import builds_folder, running


def spec() -> EmulatedChipSpec:
    """A small ESP32-S3."""
    return EmulatedChipSpec.model_validate(
        {
            "chip": {
                "target": "esp32s3",
                "cpu_mhz": 240,
                "internal_kb": 300,
                "psram_kb": 4096,
                "flash_kb": 1024,
                "arena_kb": 2048,
            },
            "cost_model": {
                "name": "conformance",
                "ms_per_mmac": 1.0,
                "ms_per_mactivation": 10.0,
                "canary_us": 1000,
                "leave_one_out_error": 0.0,
            },
        }
    )


@contextmanager
def chip(tmp_path: Path) -> Iterator[Agent]:
    board = EmulatedChip("conformance", spec(), tmp_path / "board")
    agent = agent_of(board, "conformance", spec())
    try:
        yield agent
    finally:
        agent.close()
        board.switch_off()


@contextmanager
def firmware(tmp_path: Path) -> Iterator[Agent]:
    try:
        binary = build("bt_host", builds_folder(tmp_path))
    except NoCompiler as error:
        pytest.skip(str(error))
    with running(binary, tmp_path, "--flash", str(tmp_path / "flash")) as board:
        agent = SerialAgent("conformance", board.target())
        try:
            yield agent
        finally:
            agent.close()
