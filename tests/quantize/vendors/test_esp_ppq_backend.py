"""ESP-PPQ itself, where its environment is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.quantize.contract import Artifact, Cause, QuantizeJob, QuantizeLimits, Refusal
from harness.quantize.made_espdl import MadeEspdl
from harness.quantize.prepare import prepare_model
from harness.quantize.vendors.environments import is_installed
from harness.quantize.worker import QuantizeWorker
from harness.recipes.esp_presets import esp_recipe

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "fashion_mnist"


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not is_installed("esp_ppq"), reason="ESP-PPQ is not installed: boardtune backends install esp_ppq"
    ),
]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("esp_ppq")
    prepare_model(EXAMPLE / "model.onnx", folder / "model.onnx", {"batch": 1})
    with np.load(EXAMPLE / "calib.npz") as arrays:
        np.savez(folder / "calib.npz", image=(arrays["image"][:64].astype(np.float32) / 255)[:, np.newaxis])
    return folder


class Quantizer:
    def __init__(self, worker: QuantizeWorker, material: Path, out: Path) -> None:
        self.worker, self.material, self.out = worker, material, out

    def __call__(self, name: str = "made", **options: Any) -> Artifact | Refusal:
        return self.worker.quantize(
            QuantizeJob(
                self.material / "model.onnx",
                self.material / "calib.npz",
                esp_recipe(**options),
                self.out / f"{name}.espdl",
                QuantizeLimits(min_snr_db=-100.0),
                {"cache": str(self.material / "cache")},
            )
        )


@pytest.fixture(scope="module")
def worker() -> Any:
    with QuantizeWorker() as one:
        yield one


@pytest.fixture
def quantize(worker: QuantizeWorker, material: Path, tmp_path: Path) -> Quantizer:
    return Quantizer(worker, material, tmp_path)


@pytest.mark.parametrize("target", ["esp32", "esp32s3", "esp32p4"])
def test_each_target_is_accepted_by_the_interpreter(quantize: Quantizer, target: str) -> None:
    made = quantize(target=target, calib_algorithm="mse")
    assert isinstance(made, Artifact), made
    assert made.snr_db is not None
    assert made.snr_db > (10.0 if target == "esp32p4" else 0.0)
    assert made.quantized_operators >= 9, "nine layers with weights"
    assert made.backend_version.startswith("esp-ppq 1.3")
    assert made.settings["quantize_activation_setting"]["calib_algorithm"] == "mse"


def test_chips_with_scales_per_channel_keep_more(quantize: Quantizer) -> None:
    one, each = quantize("s3", target="esp32s3"), quantize("p4", target="esp32p4")
    assert isinstance(one, Artifact)
    assert isinstance(each, Artifact)
    assert (each.snr_db or 0) > (one.snr_db or 0) + 3.0


def test_the_same_recipe_makes_the_same_bytes_in_another_process(quantize: Quantizer, material: Path) -> None:
    first = quantize("first", calib_algorithm="kl", bias_correction=True, bias_correction__topk=2)
    with QuantizeWorker() as other:
        again = Quantizer(other, material, quantize.out)(
            "again", calib_algorithm="kl", bias_correction=True, bias_correction__topk=2
        )
    assert isinstance(first, Artifact)
    assert isinstance(again, Artifact)
    assert first.sha256 == again.sha256
    assert first.identity == again.identity


def test_metadata_is_no_part_of_the_identity(quantize: Quantizer) -> None:
    made = quantize()
    assert isinstance(made, Artifact)
    model = MadeEspdl(made.path, "esp32s3").model
    assert json.loads(model.metadata["boardtune.axes"]) == {"image": [0, 2, 3, 1]}


def test_options_change_what_is_made(quantize: Quantizer) -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"calib_algorithm": "percentile"},
        {"bias_correction": True},
        {"mixed_precision": True, "mixed_precision__topk": 1},
        {"mixed_precision": True, "mixed_precision__layers": ["/9/Gemm"]},
        {"quant_type": "w16a16"},
        {"horizontal_layer_split": True},
    ]
    made = [quantize(f"variant{index}", **options) for index, options in enumerate(variants)]
    identities = {result.identity for result in made if isinstance(result, Artifact)}
    assert len(identities) == len(variants), [str(result) for result in made]


def test_what_an_option_leaves_as_it_is_has_the_same_identity(quantize: Quantizer) -> None:
    # Equalization goes through Relu only; this network has Clip.
    plain, evened = quantize("plain"), quantize("evened", weight_equalization=True)
    assert isinstance(plain, Artifact)
    assert isinstance(evened, Artifact)
    assert plain.identity == evened.identity


def test_sixteen_bit_is_closer_to_float(quantize: Quantizer) -> None:
    eight, sixteen = quantize("eight"), quantize("sixteen", quant_type="w16a16")
    assert isinstance(eight, Artifact)
    assert isinstance(sixteen, Artifact)
    assert (sixteen.snr_db or 0) > (eight.snr_db or 0) + 20.0


def test_a_layer_that_is_not_there(quantize: Quantizer) -> None:
    refused = quantize(mixed_precision=True, mixed_precision__layers=["nowhere"])
    assert isinstance(refused, Refusal)
    assert refused.cause == Cause.UNSUPPORTED
    assert "no node 'nowhere'" in refused.message
