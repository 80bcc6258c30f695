"""What AMCT is told, through the real warm process; in AMCT's place a stand-in with its documented signatures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from harness.errors import ConfigError
from harness.quantize.acceptance import accept
from harness.quantize.cache import Cache
from harness.quantize.contract import Artifact, Cause
from harness.quantize.identity import identity_of
from harness.quantize.outputs import deployed_of, remove_model
from harness.quantize.vendors import environments, warm
from harness.quantize.vendors.backend import VendorBackend, VendorFailed
from harness.quantize.vendors.environments import VENDORS, Environment
from harness.quantize.vendors.programs import amct as program
from harness.quantize.vendors.warm import WarmVendors
from harness.recipes.amct import TABLE
from harness.recipes.recipe import Recipe

STAND_IN = Path(__file__).parent / "amct_stand_in"


def recipe(**options: Any) -> Recipe:
    return Recipe(
        scheme="vendor",
        backend="amct",
        options=tuple((name.replace("__", "."), value) for name, value in options.items()),
    )


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmVendors]:
    """Warm processes whose Python finds the stand-in."""
    folder = tmp_path_factory.mktemp("environment")
    # ``-s`` and a cleared PYTHONPATH are the server's.
    start = folder / "start.py"
    start.write_text(
        f"import runpy, sys\nsys.path.insert(0, {str(STAND_IN)!r})\ndel sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -s "{start}" "$@"\n')
    python.chmod(0o755)
    patch = pytest.MonkeyPatch()
    patch.setattr(warm, "find_environment", lambda name: Environment(VENDORS[name], python, {}))
    owner = WarmVendors()
    yield owner
    owner.close()
    patch.undo()


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("amct")
    random = np.random.default_rng(1)
    constants = {
        "w1": random.standard_normal((4, 2, 3, 3)).astype(np.float32) * np.array([1, 3, 0.3, 2])[:, None, None, None],
        "w2": random.standard_normal((3, 4 * 6 * 6)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w1"], ["a"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["a"], ["b"], "relu"),
            helper.make_node("Flatten", ["b"], ["c"], "flat"),
            helper.make_node("Gemm", ["c", "w2"], ["y"], "fc", transB=1),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "calib.npz", x=random.standard_normal((12, 2, 6, 6)).astype(np.float32))
    return folder


class Quantizer:
    def __init__(self, owner: WarmVendors, material: Path, folder: Path) -> None:
        self.material, self.folder = material, folder
        self.backend = VendorBackend(
            "amct", owner.socket("amct"), 1 << 31, lambda: None, lambda name: None, Cache(None)
        )
        self.notices: tuple[str, ...] = ()

    def __call__(self, name: str = "made", **options: Any) -> Path:
        out = self.folder / f"{name}.onnx"
        self.notices = self.backend.quantize(
            self.material / "model.onnx", self.material / "calib.npz", recipe(**options), out
        )
        return out


@pytest.fixture
def quantize(processes: WarmVendors, material: Path, tmp_path: Path) -> Quantizer:
    return Quantizer(processes, material, tmp_path)


def test_the_fake_quant_model_is_accepted_and_the_deploy_model_is_beside_it(
    quantize: Quantizer, material: Path
) -> None:
    out = quantize(batch_num=4)
    made = accept(material / "model.onnx", out, material / "calib.npz", recipe(batch_num=4), min_snr_db=15.0)
    assert isinstance(made, Artifact), made
    assert made.quantized_operators == 2
    types = [node.op_type for node in onnx.load(deployed_of(out)).graph.node]
    assert types.count("AscendQuant") == 2
    remove_model(out)
    assert not deployed_of(out).exists()


def test_settings_are_the_configuration_and_what_amct_made_of_it(quantize: Quantizer) -> None:
    quantize(batch_num=3, skip_layers=["fc"])
    assert 'skip_layers: "fc"' in quantize.backend.settings["quant_cfg"]
    assert list(quantize.backend.settings["config"]["layers"]) == ["conv"]
    assert "amct_onnx 0.stand-in" in quantize.backend.version()


VARIANTS: list[dict[str, Any]] = [
    {},
    {"batch_num": 5},
    {"activation_offset": False},
    {"joint_quant": True},
    {"do_fusion": False},
    {"skip_fusion_layers": ["conv"]},
    {"skip_layers": ["conv"]},
    {"skip_layer_types": ["Gemm"]},
    {"fakequant_precision_mode": "FORCE_FP16_QUANT"},
    {"acts_quant_algo": "hfmg_quantize"},
    {"acts_quant_algo": "hfmg_quantize", "hfmg_quantize__num_of_bins": 1024},
    {"dst_type": "INT16"},
    {"ifmr_quantize__search_range_start": 0.9},
    {"ifmr_quantize__search_range_end": 1.6},
    {"ifmr_quantize__search_step": 0.2},
    {"ifmr_quantize__max_percentile": 0.9},
    {"ifmr_quantize__min_percentile": 0.9},
    {"wts_quant_algo": "ada_quantize"},
    {"wts_quant_algo": "ada_quantize", "ada_quantize__num_iteration": 100},
    {"wts_quant_algo": "ada_quantize", "ada_quantize__reg_param": 0.5},
    {"wts_quant_algo": "ada_quantize", "ada_quantize__beta_range_start": 15.0},
    {"wts_quant_algo": "ada_quantize", "ada_quantize__beta_range_end": 1.0},
    {"wts_quant_algo": "ada_quantize", "ada_quantize__warm_start": 0.7},
    {"asymmetric": False},
    {"channel_wise": False},
    {"arq_quantize__quant_bits": 6},
    {"dmq_balancer": True},
    {"dmq_balancer": True, "dmq_balancer__migration_strength": 0.8},
    {"override_layer_types": ["Gemm"]},
    {"override_layer_configs": ["conv"]},
]


def test_every_option_reaches_amct(quantize: Quantizer) -> None:
    made = [quantize(f"variant{index}", **options) for index, options in enumerate(VARIANTS)]
    identities = [identity_of(onnx.load(path), path.parent) for path in made]
    assert len(set(identities)) == len(VARIANTS)
    tried = {name.replace("__", ".") for options in VARIANTS for name in options}
    assert set(TABLE.options) - tried == {"override_layer_types.dst_type", "override_layer_configs.dst_type"}


def test_the_same_recipe_makes_the_same_bytes(quantize: Quantizer) -> None:
    assert quantize("first", batch_num=2).read_bytes() == quantize("again", batch_num=2).read_bytes()


def test_more_batches_than_there_are(quantize: Quantizer) -> None:
    quantize(batch_num=100)
    assert quantize.notices == ("batch_num 100 is more than there is: 12 batches were used",)
    assert "batch_num: 12\n" in quantize.backend.settings["quant_cfg"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"skip_layers": ["nowhere"]}, "no layer 'nowhere'"), ({"skip_layer_types": ["LSTM"]}, "no operator 'LSTM'")],
)
def test_layers_that_are_not_there(quantize: Quantizer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(VendorFailed, match=message) as raised:
        quantize(**options)
    assert raised.value.cause == Cause.UNSUPPORTED


# ---- without a process -----------------------------------------------------------------------------------------------


def test_the_configuration_is_a_message_of_the_published_fields() -> None:
    options = recipe(wts_quant_algo="ada_quantize", dmq_balancer=True, override_layer_configs=["a"]).to_dict()[
        "options"
    ]
    assert program.configuration(options) == (
        "batch_num: 1\nactivation_offset: true\njoint_quant: false\ndo_fusion: true\n"
        "common_config {\n"
        "  ada_quantize {\n    beta_range_end: 2\n    beta_range_start: 20\n    num_iteration: 10000\n"
        "    reg_param: 0.01\n    warm_start: 0.2\n    channel_wise: true\n  }\n"
        "  ifmr_quantize {\n    max_percentile: 0.999999\n    min_percentile: 0.999999\n    search_range_end: 1.3\n"
        "    search_range_start: 0.7\n    search_step: 0.01\n    asymmetric: true\n    dst_type: INT8\n  }\n"
        "  dmq_balancer {\n    migration_strength: 0.5\n  }\n"
        "}\n"
        'override_layer_configs {\n  layer_name: "a"\n  calibration_config {\n'
        "    ada_quantize {\n      beta_range_end: 2\n      beta_range_start: 20\n      num_iteration: 10000\n"
        "      reg_param: 0.01\n      warm_start: 0.2\n      channel_wise: true\n    }\n"
        "    ifmr_quantize {\n      max_percentile: 0.999999\n      min_percentile: 0.999999\n"
        "      search_range_end: 1.3\n      search_range_start: 0.7\n      search_step: 0.01\n"
        "      asymmetric: true\n      dst_type: INT16\n    }\n"
        "    dmq_balancer {\n      migration_strength: 0.5\n    }\n"
        "  }\n}\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acts_quant_algo": "hfmg_quantize", "hfmg_quantize__num_of_bins": 3000}, "must be one of 1024, 2048"),
        ({"arq_quantize__quant_bits": 5}, "must be 4, 6, 7 or 8"),
        ({"ifmr_quantize__search_range_start": 2.0}, "2 is not under search_range_end 1.3"),
        ({"dst_type": "INT4"}, "unknown value 'INT4'"),
    ],
)
def test_what_amct_would_refuse(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe(**options)


def test_installing_asks_for_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BOARDTUNE_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("BOARDTUNE_BACKEND_AMCT", raising=False)
    with pytest.raises(ConfigError, match=r"not installed\n  boardtune backends install amct --wheel FILE"):
        environments.find_environment("amct")
    with pytest.raises(ConfigError, match=r"needs a file of yours\n  AMCT is in no index: download Ascend-cann-amct"):
        environments.install("amct")
    with pytest.raises(ConfigError, match=r"this is no wheel"):
        environments.install("amct", wheel=tmp_path / "none.whl")
    with pytest.raises(ConfigError, match="comes from pip's index"):
        environments.install("quark", wheel=tmp_path / "none.whl")
