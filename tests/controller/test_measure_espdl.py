"""``boardtune measure`` of ``.espdl`` files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import run as boardtune

GOLDEN = Path(__file__).resolve().parents[1] / "espdl" / "golden"
S3 = GOLDEN / "tiny_images-esp32s3-w8a8.espdl"


def test_a_file_is_timed_on_its_chip(capsys: pytest.CaptureFixture[str]) -> None:
    assert boardtune(["measure", str(S3), "--boards", "esp32s3-emulated", "--effort", "quick", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["esp32s3-emulated"]
    assert result["emulated"]
    assert result["verdict"] == "valid", result["reasons"]
    assert result["latency_ns"]["p50"] > 0
    assert result["artifact"]["size_bytes"] == S3.stat().st_size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(S3), "--boards", "local"], "it runs .onnx models"),
        (["examples/fashion_mnist/model.onnx", "--boards", "esp32s3-emulated"], "it runs .espdl models"),
        ([str(GOLDEN / "tiny_images-esp32p4-w8a8.espdl"), "--boards", "esp32s3-emulated"], "not for an esp32s3"),
        ([str(S3), "--boards", "esp32s3-emulated", "--batch", "2"], "an .espdl model has fixed dimensions"),
        (["nowhere.espdl", "--boards", "esp32s3-emulated"], "nowhere.espdl: cannot read"),
    ],
)
def test_what_cannot_be_measured(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    assert boardtune(["measure", *arguments, "--effort", "quick"]) == 2
    assert message in capsys.readouterr().err


def test_a_model_too_large_for_the_boards_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    boards = tmp_path / "boards"
    boards.mkdir()
    (boards / "small.yaml").write_text(
        "apiVersion: boardtune/v1\nkind: Board\nmetadata: {name: small}\nextends: esp32s3-emulated\n"
        "limits: {max_memory_bytes: 2KiB}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert boardtune(["measure", str(S3), "--boards", "small"]) == 2
    assert "do not fit the PSRAM of 2048 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [0, 10, 100, 3000])
def test_truncated_files(kept: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.espdl"
    path.write_bytes(S3.read_bytes()[:kept])
    assert boardtune(["measure", str(path), "--boards", "esp32s3-emulated"]) == 2
    assert "cut.espdl: malformed .espdl" in capsys.readouterr().err


def test_an_encrypted_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(S3.read_bytes())
    data[4] = 1
    path = tmp_path / "secret.espdl"
    path.write_bytes(data)
    assert boardtune(["measure", str(path), "--boards", "esp32s3-emulated"]) == 2
    assert "encrypted" in capsys.readouterr().err
