"""The ESP-IDF project's glue compiles against declarations of what it uses; no more can be said of it here."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from device_agents.firmware.build import SOURCES

PROJECT = SOURCES / "esp_idf"


@pytest.mark.parametrize("line", ["uart", "usb_jtag"])
@pytest.mark.parametrize("source", ["main.cpp", "espdl_engine.cpp"])
def test_it_compiles(source: str, line: str) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler here")
    defines = ["-DCONFIG_BOARDTUNE_LINE_USB_JTAG=1"] if line == "usb_jtag" else []
    command = [
        compiler,
        "-std=gnu++20",
        "-Wall",
        "-Wextra",
        "-Wno-missing-field-initializers",
        "-Werror",
        "-fsyntax-only",
    ]
    includes = ["-Istubs", "-I../core"]
    done = subprocess.run(
        [*command, *defines, *includes, f"main/{source}"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_esp_dl_is_pinned_to_the_version_that_the_engine_says() -> None:
    pinned = re.search(r'espressif/esp-dl: "([0-9.]+)"', (PROJECT / "main" / "idf_component.yml").read_text())
    assert pinned is not None
    assert f'engine.version = "{pinned[1]}"' in (PROJECT / "main" / "espdl_engine.cpp").read_text()
