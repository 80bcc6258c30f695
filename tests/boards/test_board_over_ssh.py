"""A newcomer's way with a real OpenSSH server: init, check, trust, check, clean."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from harness.cli.boards import command
from harness.errors import ConfigError, ExitCode
from tests.ssh.openssh import missing_openssh, running_sshd

pytestmark = pytest.mark.skipif(missing_openssh() is not None, reason=str(missing_openssh()))


def run(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(command, [*arguments, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


def test_from_nothing_to_a_checked_board_and_back(tmp_path: Path) -> None:
    (tmp_path / "sshd").mkdir()
    with running_sshd(tmp_path / "sshd") as server:
        address = f"{server.user}@{server.host}:{server.port}"
        run("init", "bench", "--ssh", address, "--key", str(server.user_key))
        path = Path("boards/bench.yaml")
        content = yaml.safe_load(path.read_text())
        workdir = tmp_path / "board"
        content["transport"] |= {
            "python": sys.executable, "workdir": str(workdir), "use_agent": False, "config": os.devnull
        }  # fmt: skip
        content["noise"] = "shared"
        path.write_text(yaml.safe_dump(content))

        code, report = run("check", "bench")
        assert code == ExitCode.BOARD_UNAVAILABLE
        (finding,) = report["boards"][0]["findings"]
        assert "boardtune boards trust bench" in finding["hint"]

        wrong = CliRunner().invoke(command, ["trust", "bench", "--fingerprint", "SHA256:" + "A" * 43])
        assert isinstance(wrong.exception, ConfigError)

        code, question = run("trust", "bench", "--yes")
        assert code == 0
        assert question["state"] == "new"
        fingerprints = {server.host_fingerprint(kind) for kind in ("ed25519", "ecdsa", "rsa")}
        assert question["fingerprint"] in fingerprints
        assert run("trust", "bench")[1]["state"] == "known"

        code, report = run("check", "bench", "--seconds", "0.2")
        assert [finding for finding in report["boards"][0]["findings"] if finding["level"] == "error"] == []
        assert code == 0
        assert report["boards"][0]["canary_median_ms"] > 0

        code, cleaned = run("clean", "bench")
        assert code == 0
        assert cleaned["removed"]
        assert not workdir.exists() or not list(workdir.rglob("*.onnx"))

    code, report = run("check", "bench")
    assert code == ExitCode.BOARD_UNAVAILABLE
    (finding,) = report["boards"][0]["findings"]
    assert "refused" in finding["what"].lower()
