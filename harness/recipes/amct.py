"""Options of Huawei's AMCT for ONNX models, named as its configuration names them.

Source: the documented calls of ``amct_onnx`` (hiascend.com, CANN, ``create_quant_config``) and the fields and defaults
of ``calibration_config_pytorch.proto`` of the published AMCT (https://gitcode.com/cann/amct, Apache-2.0). The
message of ``amct_onnx`` is not published; that its fields and defaults are the same is not verified.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.recipes.options import Before, Option, OptionTable

BINS = (1024, 2048, 4096, 8192)
_TYPES = ("INT8", "INT16")


def _named(option: str, value: str) -> Callable[[Before], bool]:
    return lambda values: values[option] == value


def _given(option: str) -> Callable[[Before], bool]:
    return lambda values: bool(values[option])


def _problem(values: Before) -> str:
    if values.get("hfmg_quantize.num_of_bins", BINS[0]) not in BINS:
        return f"hfmg_quantize.num_of_bins must be one of {', '.join(map(str, BINS))}"
    if values.get("arq_quantize.quant_bits", 8) == 5:
        return "arq_quantize.quant_bits must be 4, 6, 7 or 8"
    low, high = (values.get(f"ifmr_quantize.search_range_{end}") for end in ("start", "end"))
    if isinstance(low, float) and isinstance(high, float) and low >= high:
        return f"ifmr_quantize.search_range_start {low:g} is not under search_range_end {high:g}"
    return ""


TABLE = OptionTable(
    "amct",
    {
        "batch_num": Option("int", 1, low=1, high=1 << 20),
        "activation_offset": Option("bool", True),
        "joint_quant": Option("bool", False),
        "do_fusion": Option("bool", True),
        "skip_fusion_layers": Option("names", ()),
        "skip_layers": Option("names", ()),
        "skip_layer_types": Option("names", ()),
        "fakequant_precision_mode": Option("str", "DEFAULT", ("DEFAULT", "FORCE_FP16_QUANT")),
        "acts_quant_algo": Option("str", "ifmr_quantize", ("ifmr_quantize", "hfmg_quantize")),
        "dst_type": Option("str", "INT8", _TYPES),
        "asymmetric": Option("bool", lambda values: values["activation_offset"]),
        **{
            f"ifmr_quantize.{name}": Option(
                "float", default, low=low, high=high, when=_named("acts_quant_algo", "ifmr_quantize")
            )
            for name, default, low, high in (
                ("search_range_start", 0.7, 1e-6, 100),
                ("search_range_end", 1.3, 1e-6, 100),
                ("search_step", 0.01, 1e-6, 10),
                ("max_percentile", 0.999999, 0.5, 1),
                ("min_percentile", 0.999999, 0.5, 1),
            )
        },
        "hfmg_quantize.num_of_bins": Option(
            "int", 4096, low=BINS[0], high=BINS[-1], when=_named("acts_quant_algo", "hfmg_quantize")
        ),
        "wts_quant_algo": Option("str", "arq_quantize", ("arq_quantize", "ada_quantize")),
        "channel_wise": Option("bool", True),
        "arq_quantize.quant_bits": Option("int", 8, low=4, high=8, when=_named("wts_quant_algo", "arq_quantize")),
        "ada_quantize.num_iteration": Option(
            "int", 10_000, low=1, high=10_000_000, when=_named("wts_quant_algo", "ada_quantize")
        ),
        **{
            f"ada_quantize.{name}": Option(
                "float", default, low=low, high=high, when=_named("wts_quant_algo", "ada_quantize")
            )
            for name, default, low, high in (
                ("reg_param", 0.01, 0, 1),
                ("beta_range_start", 20.0, 1e-6, 1000),
                ("beta_range_end", 2.0, 1e-6, 1000),
                ("warm_start", 0.2, 0, 1),
            )
        },
        "dmq_balancer": Option("bool", False),
        "dmq_balancer.migration_strength": Option("float", 0.5, low=0.2, high=0.8, when="dmq_balancer"),
        "override_layer_types": Option("names", ()),
        "override_layer_types.dst_type": Option("str", "INT16", _TYPES, when=_given("override_layer_types")),
        "override_layer_configs": Option("names", ()),
        "override_layer_configs.dst_type": Option("str", "INT16", _TYPES, when=_given("override_layer_configs")),
    },
    precision=("dst_type",),
    check=_problem,
)
"""``acts_quant_algo`` and ``wts_quant_algo`` are the message's alternatives of that name. ``dst_type``, ``asymmetric``
and ``channel_wise`` go into the alternative that is chosen. ``override_layer_*`` name layers, or types of them, with
activations of another type."""
