"""What ``show`` and ``reproduce`` say of ``.espdl`` files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_agents.emulated.espdl.reader import read_model
from harness.cli.main import run as boardtune
from harness.errors import ModelError
from harness.quantize.describe_espdl import describe_espdl, first_difference_espdl
from harness.quantize.made_espdl import espdl_identity

GOLDEN = Path(__file__).resolve().parents[1] / "espdl" / "golden"
S3 = GOLDEN / "tiny_images-esp32s3-w8a8.espdl"


def test_every_node_is_counted_once() -> None:
    for path in sorted(GOLDEN.glob("*.espdl")):
        found, model = describe_espdl(path), read_model(path)
        counted = [*found.quantized.values(), *found.left_in_float.values(), *found.conversions.values()]
        assert sum(counted) == len(model.nodes), path.name
        assert sum(found.weights.values()) == sum(t.values.size for t in model.constants.values())
        assert found.quantized.get("Conv", 0) == sum(node.op == "Conv" for node in model.nodes)


def test_identities_tell_models_apart_and_nothing_else() -> None:
    models = {path.name: read_model(path) for path in sorted(GOLDEN.glob("*.espdl"))}
    assert len({espdl_identity(model) for model in models.values()}) == len(models)


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    data = bytearray(S3.read_bytes())
    name, constant = max(read_model(S3).constants.items(), key=lambda item: item[1].values.size)
    at = bytes(data).index(constant.values.tobytes())
    data[at] ^= 1
    changed = tmp_path / "changed.espdl"
    changed.write_bytes(data)
    assert first_difference_espdl(S3, S3) == ""
    assert first_difference_espdl(S3, changed) == f"constant {name!r} differs"
    assert espdl_identity(read_model(S3)) != espdl_identity(read_model(changed))
    assert first_difference_espdl(S3, GOLDEN / "tiny_detector-esp32s3-w8a8.espdl")


def test_show_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert boardtune(["show", str(S3), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kind"] == "ESP-DL model"
    assert shown["inputs"][0]["dtype"] == "int8"
    assert boardtune(["show", str(S3)]) == 0
    assert "ESP-DL model" in capsys.readouterr().out


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.espdl"
    path.write_bytes(b"EDL2 and no more")
    with pytest.raises(ModelError, match=r"x\.espdl: malformed"):
        describe_espdl(path)
