"""AMD's Quark itself, where its environment is installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from harness.quantize.contract import Artifact, Cause, QuantizeJob, QuantizeLimits, Refusal
from harness.quantize.prepare import prepare_model
from harness.quantize.vendors.environments import find_environment, is_installed
from harness.quantize.worker import QuantizeWorker
from harness.recipes.quark_presets import quark_recipe

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "fashion_mnist"
SAMPLES = 6


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed("quark"), reason="Quark is not installed: boardtune backends install quark"),
]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quark")
    prepare_model(EXAMPLE / "model.onnx", folder / "model.onnx", {"batch": 1})
    with np.load(EXAMPLE / "calib.npz") as arrays:
        np.savez(folder / "calib.npz", image=(arrays["image"][:SAMPLES].astype(np.float32) / 255)[:, np.newaxis])
    return folder


class Quantizer:
    def __init__(self, worker: QuantizeWorker, material: Path, out: Path, cache: str | None = None) -> None:
        self.worker, self.material, self.out = worker, material, out
        self.cache = str(material / "cache") if cache is None else cache

    def __call__(self, name: str = "made", **options: Any) -> Artifact | Refusal:
        return self.worker.quantize(
            QuantizeJob(
                self.material / "model.onnx",
                self.material / "calib.npz",
                quark_recipe(**options),
                self.out / f"{name}.onnx",
                QuantizeLimits(min_snr_db=-100.0),
                {"cache": self.cache},
            )
        )

    def made(self, name: str = "made", **options: Any) -> Artifact:
        result = self(name, **options)
        assert isinstance(result, Artifact), result
        return result


@pytest.fixture(scope="module")
def worker() -> Any:
    with QuantizeWorker() as one:
        yield one


@pytest.fixture
def quantize(worker: QuantizeWorker, material: Path, tmp_path: Path) -> Quantizer:
    return Quantizer(worker, material, tmp_path)


PLAIN = """
import hashlib, json, sys, numpy, torch
import quark.onnx as q
torch.set_num_threads(1)
class Reader:
    def __init__(self):
        self.rest = [{"image": row[None]} for row in numpy.load("calib.npz")["image"]]
    def __len__(self):
        return len(self.rest)
    def get_next(self):
        return self.rest.pop(0) if self.rest else None
found = {}
int8 = lambda: q.QLayerConfig(input_tensors=q.Int8Spec(), weight=q.Int8Spec())
M = q.CalibMethod
for name, config in {
    "a8w8": q.QConfig(int8()),
    "minmax": q.QConfig(q.QLayerConfig(input_tensors=q.Int8Spec(calibration_method=M.MinMax), weight=q.Int8Spec())),
    "xint8": q.QConfig(q.QLayerConfig(input_tensors=q.XInt8Spec(), weight=q.XInt8Spec())),
    "a16w8": q.QConfig(q.QLayerConfig(input_tensors=q.Int16Spec(), weight=q.Int8Spec())),
    "u8": q.QConfig(q.QLayerConfig(input_tensors=q.UInt8Spec(), weight=q.Int8Spec())),
    "lwp": q.QConfig(q.QLayerConfig(input_tensors=q.Int8Spec(calibration_method=M.LayerwisePercentile),
        weight=q.Int8Spec())),
    "entropy": q.QConfig(q.QLayerConfig(input_tensors=q.Int8Spec(calibration_method=M.Entropy), weight=q.Int8Spec())),
    "cle": q.QConfig(int8(), algo_config=[q.CLEConfig()]),
    "clip6": q.QConfig(int8(), algo_config=[q.CLEConfig(cle_steps=-1)], extra_options={"ReplaceClip6Relu": True}),
    "gptq": q.QConfig(int8(), algo_config=[q.GPTQConfig()]),
    "mixed": q.QConfig(int8(), specific_layer_config={
        q.QLayerConfig(input_tensors=q.Int16Spec(), weight=q.Int8Spec()): ["/9/Gemm"]}),
}.items():
    q.ModelQuantizer(config).quantize_model("model.onnx", name + ".onnx", Reader())
    found[name] = hashlib.sha256(open(name + ".onnx", "rb").read()).hexdigest()
print("\\n" + json.dumps(found))
"""
OURS: dict[str, dict[str, Any]] = {
    "a8w8": {},
    "minmax": {"activation__calibration_method": "MinMax"},
    "xint8": {"activation": "XInt8", "weight": "XInt8"},
    "a16w8": {"activation": "Int16"},
    "u8": {"activation": "UInt8"},
    "lwp": {"activation__calibration_method": "LayerwisePercentile"},
    "entropy": {"activation__calibration_method": "Entropy"},
    "cle": {"cle": True},
    "clip6": {"cle": True, "cle__cle_steps": -1, "ReplaceClip6Relu": True},
    "gptq": {"gptq": True},
    "mixed": {"specific_layer_config": ["/9/Gemm"]},
}


def test_defaults_are_quarks_own(quantize: Quantizer, material: Path) -> None:
    """Every default of the table is given to Quark; the file is that of a call which gives none."""
    ran = subprocess.run(
        [find_environment("quark").python, "-c", PLAIN], cwd=material, capture_output=True, text=True, check=True
    )
    theirs = json.loads(ran.stdout.strip().splitlines()[-1])
    made = {name: quantize.made(name, **options).sha256 for name, options in OURS.items()}
    assert made == theirs


@pytest.mark.parametrize("method", ["MinMax", "MinMSE", "Percentile", "Entropy", "LayerwisePercentile", "Distribution"])
def test_shared_ranges_make_the_same_bytes(worker: QuantizeWorker, material: Path, tmp_path: Path, method: str) -> None:
    shared = Quantizer(worker, material, tmp_path, str(tmp_path / "cache"))
    alone = Quantizer(worker, material, tmp_path, "")
    first = {"activation__calibration_method": method, "activation__symmetric": False}
    second = {"activation__calibration_method": method, "weight__quant_granularity": "Channel"}
    assert shared.made("first", **first).sha256 == alone.made("first-alone", **first).sha256
    assert shared.made("shared", **second).sha256 == alone.made("alone", **second).sha256
    assert len(ranges_of(tmp_path)) == 1


def ranges_of(folder: Path) -> list[Path]:
    return list((folder / "cache" / "vendors").glob("*-ranges.json"))


def test_ranges_are_shared_where_they_are_the_same_only(worker: QuantizeWorker, material: Path, tmp_path: Path) -> None:
    quantize = Quantizer(worker, material, tmp_path, str(tmp_path / "cache"))
    # The network's Clip leaves cross-layer equalization nothing to do.
    same: list[dict[str, Any]] = [{}, {"cle": True}, {"gptq": True}, {"weight__calibration_method": "MinMSE"}]
    for options in same:
        quantize.made(activation__calibration_method="MinMax", **options)
    assert len(ranges_of(tmp_path)) == 1
    others: list[dict[str, Any]] = [
        {"cle": True, "ReplaceClip6Relu": True},
        {"CalibDataSize": 3},
        {"CalibMovingAverage": True},
        {"activation__calibration_method": "Percentile"},
        {"activation__calibration_method": "Percentile", "Percentile": 99.0},
        {"activation": "Int16"},
    ]
    for number, options in enumerate(others, start=2):
        quantize.made(**{"activation__calibration_method": "MinMax", **options})
        assert len(ranges_of(tmp_path)) == number


def test_the_same_recipe_makes_the_same_bytes_in_another_process(material: Path, tmp_path: Path) -> None:
    digests = []
    for name in ("first", "again"):
        with QuantizeWorker() as one:
            made = Quantizer(one, material, tmp_path, "").made(
                name, activation="XInt8", weight="XInt8", adaround=True, adaround__num_iterations=20
            )
        digests.append(made.sha256)
    assert digests[0] == digests[1]


def test_settings_are_quarks_and_the_same_every_time(quantize: Quantizer) -> None:
    first = quantize.made("first", activation="XInt8", weight="XInt8", cle=True, cle__cle_steps=-1)
    again = quantize.made("again", activation="XInt8", weight="XInt8", cle=True, cle__cle_steps=-1)
    assert first.settings == again.settings
    assert first.settings["global_config"]["input_tensors"]["scale_type"] == "ScaleType.PowerOf2"
    assert first.settings["algo_config"] == [{"name": "cle", "cle_steps": -1}]
    assert first.backend_version.startswith("amd-quark 0.13")


def test_options_change_what_is_made(quantize: Quantizer) -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"activation__symmetric": False},
        {"Percentile": 99.0},
        {"weight__quant_granularity": "Channel"},
        {"weight__calibration_method": "MinMSE"},
        {"bias_correction": True},
        {"cle": True, "ReplaceClip6Relu": True},
        {"adaround": True, "adaround__num_iterations": 20},
        {"adaquant": True, "adaquant__num_iterations": 20},
        {"exclude": ["/9/Gemm"]},
        {"specific_layer_config": ["/9/Gemm"]},
        {"auto_mixprecision": True},
        {"Int32Bias": False},
    ]
    made = [quantize.made(f"variant{index}", **options) for index, options in enumerate(variants)]
    assert len({one.identity for one in made}) == len(variants)


def test_nodes_and_operators_can_be_left_out(quantize: Quantizer) -> None:
    by_name = quantize.made("name", exclude=["/9/Gemm"])
    by_pattern = quantize.made("pattern", exclude=["^/9/.*"])
    by_type = quantize.made("type", exclude_op_types=["Gemm"])
    assert by_name.identity == by_pattern.identity == by_type.identity
    model = onnx.load(by_name.path)
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    made_by = {output: node.op_type for node in model.graph.node for output in node.output}
    assert made_by.get(gemm.input[1], "constant") == "constant", "the weights are float"


def test_bias_correction_leaves_no_outputs_behind(quantize: Quantizer) -> None:
    made = quantize.made(bias_correction=True)
    assert [value.name for value in onnx.load(made.path).graph.output] == ["logits"]
    assert any("bias correction" in notice for notice in made.notices)


@pytest.mark.parametrize("kind", ["BFloat16", "BFP16"])
def test_what_needs_quarks_library_is_refused(quantize: Quantizer, kind: str) -> None:
    refused = quantize(activation=kind, weight=kind)
    assert isinstance(refused, Refusal)
    assert refused.cause == Cause.UNSUPPORTED
    assert "run only with Quark's library of custom operators; choose an integer spec" in refused.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ["nowhere"]}, "no node 'nowhere'"),
        ({"exclude": ["^/nowhere/.*"]}, "no node of the model fits the pattern"),
        ({"exclude_op_types": ["LSTM"]}, "no operator 'LSTM'; it has"),
        ({"specific_layer_config": ["nowhere"]}, "no node 'nowhere'"),
    ],
)
def test_names_that_are_not_there(quantize: Quantizer, options: dict[str, Any], message: str) -> None:
    refused = quantize(**options)
    assert isinstance(refused, Refusal)
    assert refused.cause == Cause.UNSUPPORTED
    assert message in refused.message
