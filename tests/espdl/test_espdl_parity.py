"""The whole comparison with ESP-PPQ, where it is installed: exports made anew, every tensor compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.quantize.vendors.environments import find_environment


def _python() -> Path | None:
    try:
        return find_environment("esp_ppq").python
    except ConfigError:
        return None


@pytest.mark.slow
@pytest.mark.skipif(_python() is None, reason="ESP-PPQ is not installed: boardtune backends install esp_ppq")
def test_no_int8_value_differs_from_esp_ppqs_executor(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "espdl_parity.py"
    networks = ("mobilenet_v2", "yolo", "audio")
    command = [
        sys.executable,
        str(script),
        "--esp-ppq",
        str(_python()),
        "--cache",
        str(tmp_path / "exports"),
        "--samples",
        "2",
    ]
    command += ["--type", "w8a8", "--json", str(tmp_path / "counted.json")]
    command += [part for network in networks for part in ("--network", network)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads((tmp_path / "counted.json").read_text())
    assert len(counted) == 9
    assert sum(case["values"] for case in counted) > 1_000_000
    assert all(case["differing"] == 0 and case["engine_differing"] == 0 for case in counted)
