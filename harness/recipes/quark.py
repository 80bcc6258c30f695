"""AMD Quark's options for ONNX models, named as its ``QConfig`` names them.

Source: ``quark.onnx`` of amd-quark 0.13 (https://quark.docs.amd.com, MIT): names and defaults of ``QLayerConfig``
specs, of the ``AlgoConfig`` classes and of the extra options that its quantizers read.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.recipes.options import Before, Option, OptionTable, Value

INTEGERS = ("Int8", "UInt8", "XInt8", "Int16", "UInt16")
FLOATS = ("BFloat16", "BFP16")
SPECS = (*INTEGERS, *FLOATS)
"""Of ``SPECSpec`` classes. XInt8 is Int8 with power-of-two scales. The last two compute in Quark's own operators."""
METHODS = ("MinMax", "MinMSE", "Percentile", "Entropy", "LayerwisePercentile", "Distribution")
SCALES = ("Float32", "PowerOf2", "Int16")
_SIXTEEN = frozenset({"Int16", "UInt16"})
_ALL = (-1.0,)
_HISTOGRAMS = {"Percentile": 2048, "LayerwisePercentile": 2048, "Distribution": 2048, "Entropy": 128, "MinMSE": 2048}
_TRAINED = ("Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization", "MatMul")


def _integer(side: str) -> Callable[[Before], bool]:
    return lambda values: values[side] in INTEGERS


def _method(*names: str) -> Callable[[Before], bool]:
    return lambda values: values.get("activation.calibration_method") in names


def _extended(values: Before) -> bool:
    """Whether Quark's extended quantizer makes it, as for anything but 8 bit throughout; it has passes of its own."""
    mixed = bool(values["specific_layer_config"] or values["layer_type_config"])
    return mixed or not {values["activation"], values["weight"]} <= {"Int8", "UInt8", "XInt8"}


def _npu(values: Before) -> bool:
    """Whether the quantizer for CNNs on NPUs makes it."""
    powers = (
        values.get("activation.calibration_method") == "MinMSE" or values.get("activation.scale_type") == "PowerOf2"
    )
    return values["EnableNPUCnn"] is True and powers and not _extended(values)


def _compiled(values: Before) -> bool:
    """Whether the quantizer is one of those that refine what they made for a compiler."""
    return _npu(values) or _extended(values)


def _converted(values: Before) -> bool:
    """Whether Quark converts operators for compilers before it quantizes."""
    return values["EnableNPUCnn"] is True or _extended(values)


def _both_powers(values: Before) -> bool:
    return values.get("activation.scale_type") == values.get("weight.scale_type") == "PowerOf2"


def _spec(side: str) -> dict[str, Option]:
    """Symmetry, scale and range of one side."""

    def symmetric(values: Before) -> Value:
        return values[side] not in ("UInt8", "UInt16")

    def scale(values: Before) -> Value:
        return "PowerOf2" if values[side] == "XInt8" else "Float32"

    return {
        side: Option("str", "Int8", SPECS),
        f"{side}.symmetric": Option("bool", symmetric, when=_integer(side)),
        f"{side}.scale_type": Option("str", scale, SCALES, when=_integer(side)),
    }


def _finetuning(name: str, steps: int, rate: float) -> dict[str, Option]:
    """Options of AdaRound and AdaQuant; ``data_size`` -1 is every sample."""
    return {
        name: Option("bool", False),
        f"{name}.num_iterations": Option("int", steps, low=1, high=1_000_000, when=name),
        f"{name}.learning_rate": Option("float", rate, low=0, high=1, when=name),
        f"{name}.batch_size": Option("int", 1, low=1, high=4096, when=name),
        f"{name}.data_size": Option("int", -1, low=1, extra=_ALL, when=name),
        f"{name}.early_stop": Option("bool", False, when=name),
        f"{name}.update_bias": Option("bool", False, when=name),
        f"{name}.output_qdq": Option("bool", False, when=name),
        f"{name}.selective_update": Option("bool", False, when=name),
        f"{name}.drop_ratio": Option("float", 1.0, low=0, high=1, when=name),
        f"{name}.target_op_type": Option("names", _TRAINED, when=name),
    }


def _exclusive(values: Before) -> str:
    if values["adaround"] and values["adaquant"]:
        return "AdaRound and AdaQuant exclude each other; Quark would drop one of them without a word: choose one"
    if values["gptq"] and (values["adaround"] or values["adaquant"]):
        return "GPTQ leaves activations in float, which AdaRound and AdaQuant need quantized: choose one"
    if values["auto_mixprecision"] and (values["adaround"] or values["adaquant"]):
        return "auto_mixprecision is not combined with AdaRound or AdaQuant: choose one"
    sides = ("activation", "weight")
    if values["EnableNPUCnn"] and not all(values.get(f"{side}.symmetric", True) for side in sides):
        return "EnableNPUCnn needs activation.symmetric and weight.symmetric"
    for name in sides:
        # Quark reads one without the other as nonsense: their operators take blocks on both sides.
        if (values[name] in FLOATS) and values["activation"] != values["weight"]:
            return f"{values[name]} goes with itself only, not with activation {values['activation']} and " + (
                f"weight {values['weight']}"
            )
    return ""


TABLE = OptionTable(
    "quark",
    {
        **_spec("activation"),
        "activation.calibration_method": Option(
            "str",
            lambda values: "MinMSE" if values["activation"] == "XInt8" else "Percentile",
            METHODS,
            when=_integer("activation"),
        ),
        **_spec("weight"),
        # With scales that are powers of two Quark takes the activations' method for weights too.
        "weight.calibration_method": Option(
            "str", "MinMax", ("MinMax", "MinMSE"), when=lambda values: values.get("weight.scale_type") == "Float32"
        ),
        "weight.quant_granularity": Option("str", "Tensor", ("Tensor", "Channel"), when=_integer("weight")),
        "Percentile": Option("float", 99.999, low=50, high=100, when=_method("Percentile")),
        "PercentileCandidates": Option(
            "numbers", (99.99, 99.999, 99.99999), low=50, high=100, when=_method("LayerwisePercentile")
        ),
        "LWPMetric": Option("str", "mae", ("mae", "mse"), when=_method("LayerwisePercentile")),
        "NumBins": Option(
            "int",
            lambda values: _HISTOGRAMS[str(values["activation.calibration_method"])],
            low=1,
            high=1 << 20,
            when=_method(*_HISTOGRAMS),
        ),
        "NumQuantizedBins": Option("int", 128, low=1, high=1 << 20, when=_method("Entropy")),
        "MinMSEModePof2Scale": Option("str", "All", ("All", "MostCommon", "Percentile"), when=_method("MinMSE")),
        "MinMSEModeFloatScale": Option(
            "str",
            "Percentile",
            ("All", "HistCenter", "Percentile"),
            when=lambda values: values.get("weight.calibration_method") == "MinMSE",
        ),
        "CalibTensorRangeSymmetric": Option(
            "bool",
            lambda values: (
                values["activation.calibration_method"] in ("MinMSE", "Percentile", "LayerwisePercentile")
                or values["activation.scale_type"] == "PowerOf2"
            ),
            when=_method("MinMax", "MinMSE", "Percentile", "Entropy", "LayerwisePercentile"),
        ),
        "CalibMovingAverage": Option("bool", False, when=_method("MinMax")),
        "CalibMovingAverageConstant": Option("float", 0.01, low=0, high=1, when="CalibMovingAverage"),
        "CalibDataSize": Option("int", -1, low=1, extra=_ALL),
        "cle": Option("bool", False),
        "cle.cle_steps": Option("int", 1, low=1, high=1000, extra=_ALL, when="cle"),
        "cle.cle_weight_threshold": Option("float", 0.5, low=0, high=100, when="cle"),
        "cle.cle_scale_append_bias": Option("bool", True, when="cle"),
        "cle.cle_scale_use_threshold": Option("bool", True, when="cle"),
        "cle.cle_total_layer_diff_threshold": Option("float", 1.9e-7, low=0, high=1, when="cle"),
        "ReplaceClip6Relu": Option("bool", False, when="cle"),
        "smooth_quant": Option("bool", False),
        "smooth_quant.alpha": Option("float", 0.5, low=0, high=1, when="smooth_quant"),
        "bias_correction": Option("bool", False),
        "gptq": Option("bool", False),
        "gptq.bits": Option("int", 8, low=2, high=8, when="gptq"),
        "gptq.block_size": Option("int", 128, low=1, high=1 << 20, when="gptq"),
        "gptq.group_size": Option("int", -1, low=1, extra=_ALL, when="gptq"),
        "gptq.perc_damp": Option("float", 0.01, low=0, high=1, when="gptq"),
        "gptq.act_order": Option("bool", False, when="gptq"),
        "gptq.per_channel": Option("bool", False, when="gptq"),
        "gptq.mse": Option("bool", False, when="gptq"),
        **_finetuning("adaround", 1000, 0.1),
        "adaround.reg_param": Option("float", 0.01, low=0, high=100, when="adaround"),
        "adaround.warm_start": Option("float", 0.2, low=0, high=1, when="adaround"),
        **_finetuning("adaquant", 3000, 1e-5),
        "exclude": Option("names", ()),
        "exclude_subgraphs": Option("names", ()),
        "exclude_op_types": Option("names", ()),
        "OpTypesToQuantize": Option("names", ()),
        "ExtraOpTypesToQuantize": Option("names", ()),
        "specific_layer_config": Option("names", ()),
        "specific_layer_config.input_tensors": Option(
            "str", "Int16", INTEGERS, when=lambda values: bool(values["specific_layer_config"])
        ),
        "specific_layer_config.weight": Option(
            "str", "Int8", INTEGERS, when=lambda values: bool(values["specific_layer_config"])
        ),
        "layer_type_config": Option("names", ()),
        "layer_type_config.input_tensors": Option(
            "str", "Int16", INTEGERS, when=lambda values: bool(values["layer_type_config"])
        ),
        "layer_type_config.weight": Option(
            "str", "Int8", INTEGERS, when=lambda values: bool(values["layer_type_config"])
        ),
        "auto_mixprecision": Option("bool", False),
        "auto_mixprecision.input_tensors": Option("str", "Int16", INTEGERS, when="auto_mixprecision"),
        "auto_mixprecision.weight": Option("str", "Int8", INTEGERS, when="auto_mixprecision"),
        "auto_mixprecision.target_op_type": Option(
            "names", ("Conv", "ConvTranspose", "Gemm", "MatMul"), when="auto_mixprecision"
        ),
        "auto_mixprecision.metric_default": Option(
            "str", "l2", ("l2", "kl", "cosine", "sqnr", "psnr"), when="auto_mixprecision"
        ),
        "auto_mixprecision.metric_threshold": Option("float", 0.0, low=-1e9, high=1e9, when="auto_mixprecision"),
        "auto_mixprecision.metric_optimize_object": Option(
            "str", "quality", ("speed", "quality"), when="auto_mixprecision"
        ),
        "auto_mixprecision.data_size": Option("int", 0, low=0, when="auto_mixprecision"),
        "auto_mixprecision.dual_quant_nodes": Option("bool", False, when="auto_mixprecision"),
        "EnableNPUCnn": Option("bool", _both_powers),
        "OptimizeModel": Option("bool", True),
        "SimplifyModel": Option("bool", True),
        "ConvertOpsetVersion": Option("int", 0, low=11, high=23, extra=(0.0,)),
        "FoldBatchNorm": Option("bool", lambda values: values["OptimizeModel"]),
        **{f"Fuse{name}": Option("bool", True) for name in ("InstanceNorm", "L2Norm", "Gelu", "LayerNorm")},
        "ConvertBNToConv": Option("bool", _converted),
        "ConvertReduceMeanToGlobalAvgPool": Option("bool", _converted),
        "ConvertSplitToSlice": Option("bool", _converted),
        "SplitLargeKernelPool": Option("bool", _converted),
        "ConvertClipToRelu": Option("bool", False),
        "FoldRelu": Option("bool", False, when=_extended),
        "AlignEltwiseQuantType": Option(
            "bool", False, when=lambda values: _extended(values) and not values["EnableNPUCnn"]
        ),
        **{f"Align{name}": Option("bool", _npu, when=_compiled) for name in ("Concat", "Pool", "Pad", "Slice")},
        **{f"Align{name}": Option("bool", False, when=_extended) for name in ("Transpose", "Reshape")},
        "AdjustBiasScale": Option("bool", True, when=_extended),
        "AdjustWeightScaleForInt32Bias": Option("bool", False, when=lambda values: not _npu(values)),
        **{
            f"Adjust{name}": Option("bool", True, when=_npu)
            for name in ("ShiftCut", "ShiftBias", "ShiftRead", "ShiftWrite", "HardSigmoid", "ShiftSwish")
        },
        "NPULimitationCheck": Option("bool", True, when=_compiled),
        "SimulateDPU": Option("bool", True, when=_compiled),
        "QuantizeBias": Option("bool", True),
        "Int32Bias": Option("bool", lambda values: values["weight"] in INTEGERS and not _npu(values)),
        "Int16Bias": Option("bool", False),
        "MatMulConstBOnly": Option("bool", False),
        "DedicatedQDQPair": Option("bool", False),
        "ForceQuantizeNoInputCheck": Option("bool", False),
        "QuantizeAllOpTypes": Option("bool", False),
        "WeightsOnly": Option("bool", False),
        "Int16Scale": Option("bool", False),
        "UseUnsignedReLU": Option("bool", False),
        **{f"RemoveQDQConv{name}": Option("bool", True) for name in ("Clip", "Relu", "LeakyRelu", "PRelu")},
        **{f"RemoveQDQ{name}": Option("bool", False) for name in ("ConvGelu", "MulAdd", "InstanceNorm")},
        "BF16QDQToCast": Option("bool", False, when=lambda values: values["activation"] == "BFloat16"),
    },
    precision=("activation", "weight"),
    check=_exclusive,
)
"""``cle``, ``smooth_quant`` … are Quark's algorithms by the names of their configurations. In ``exclude`` and
``specific_layer_config`` stand nodes by name or patterns (``^/head/.*``), in ``exclude_subgraphs`` ``first..last``."""
