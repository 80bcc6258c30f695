"""The firmware, built once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_agents.firmware.build import NoCompiler, build
from tests.serial.host_firmware import builds_folder


@pytest.fixture(scope="session")
def host_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build("bt_host", builds_folder(tmp_path_factory.getbasetemp()))
    except NoCompiler as error:
        pytest.skip(str(error))
