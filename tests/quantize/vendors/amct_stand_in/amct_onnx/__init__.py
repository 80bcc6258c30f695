"""NOT Huawei's AMCT: a stand-in with its documented signatures, for tests (see README.md beside this package).

Calibration is by observed outputs: ``quantize_model`` makes every input of a quantized layer an output of the modified
model, and :data:`AMCT_SO` is handed to whoever runs it; the session wrapper installed here keeps what passes.
"""

from __future__ import annotations

import json
import re

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

__version__ = "0.stand-in"

AMCT_SO = onnxruntime.SessionOptions()
AMCT_SO.log_severity_level = 4
LAYERS = ("Conv", "Gemm", "MatMul")
_observed = {}


class _Session(onnxruntime.InferenceSession):
    """Real AMCT observes inside its custom operators; here the session does."""

    def __init__(self, path, options=None, **kwargs):
        super().__init__(path, options, **kwargs)
        self._observes = options is AMCT_SO

    def run(self, names, feed, *args):
        values = super().run(names, feed, *args)
        if self._observes:
            for output, value in zip(self.get_outputs(), values, strict=True):
                _observed.setdefault(output.name, []).append(numpy.asarray(value, dtype=numpy.float64))
            for name, value in feed.items():
                _observed.setdefault(name, []).append(numpy.asarray(value, dtype=numpy.float64))
        return values


onnxruntime.InferenceSession = _Session


def create_quant_config(
    config_file, model_file, skip_layers=None, batch_num=1, activation_offset=True, config_defination=None
):
    graph = onnx.load(model_file).graph
    with open(config_defination) as stream:
        message = _parse(stream.read())
    layers = {}
    skipped = {*message.get("skip_layers", []), *(skip_layers or [])}
    for node in graph.node:
        wanted = node.op_type in LAYERS and node.name not in skipped
        if wanted and node.op_type not in message.get("skip_layer_types", []):
            chosen = message["common_config"][0]
            for override in message.get("override_layer_types", []):
                if override["layer_type"][0] == node.op_type:
                    chosen = override["calibration_config"][0]
            for override in message.get("override_layer_configs", []):
                if override["layer_name"][0] == node.name:
                    chosen = override["calibration_config"][0]
            layers[node.name] = chosen
    rest = {name: value[0] for name, value in message.items() if not isinstance(value[0], dict)}
    rest["skip_fusion_layers"] = message.get("skip_fusion_layers", [])
    assert rest["batch_num"] == batch_num
    assert rest["activation_offset"] == activation_offset
    with open(config_file, "w") as stream:
        json.dump({"version": 1, **rest, "layers": layers}, stream)


def quantize_preprocess(config_file, record_file, model_file, modified_onnx_file):
    _observe(config_file, model_file, modified_onnx_file)
    with open(record_file, "w") as stream:
        json.dump({"balanced": True}, stream)


def quantize_model(config_file, model_file, modified_onnx_file, record_file):
    balanced = dict(_observed)
    _observed.clear()
    _observe(config_file, model_file, modified_onnx_file)
    with open(config_file) as stream:
        config = json.load(stream)
    needs = any("dmq_balancer" in layer for layer in config["layers"].values())
    if needs and not balanced:
        raise RuntimeError("dmq_balancer without quantize_preprocess and a run of its model")
    with open(record_file, "w") as stream:
        json.dump({"config": config, "model": model_file}, stream)


def save_model(modified_onnx_file, record_file, save_path):
    with open(record_file) as stream:
        record = json.load(stream)
    config, model = record["config"], onnx.load(record["model"])
    if not _observed:
        raise RuntimeError("no batch has passed the modified model")
    passed = len(next(iter(_observed.values())))
    if passed < config["batch_num"]:
        raise RuntimeError(f"{passed} batches have passed, batch_num is {config['batch_num']}")
    constants = {constant.name: numpy_helper.to_array(constant) for constant in model.graph.initializer}
    nodes, deployed = [], []
    for node in model.graph.node:
        layer = config["layers"].get(node.name)
        if layer is None or node.input[1] not in constants:
            nodes.append(node)
            deployed.append(node)
            continue
        scale, offset, kind = _activation(node.input[0], layer, config)
        weight = _weights(constants[node.input[1]], layer, node, config)
        name = f"{node.name}.weight"
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
        for part, value in (("scale", numpy.float32(scale)), ("zero", numpy.array(offset, kind))):
            model.graph.initializer.append(numpy_helper.from_array(numpy.asarray(value), f"{node.name}.{part}"))
        pair = [f"{node.name}.scale", f"{node.name}.zero"]
        domain = "com.microsoft" if kind == numpy.int16 else ""
        nodes += [
            helper.make_node("QuantizeLinear", [node.input[0], *pair], [f"{node.name}.q"], domain=domain),
            helper.make_node("DequantizeLinear", [f"{node.name}.q", *pair], [f"{node.name}.dq"], domain=domain),
        ]
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.input[0], made.input[1] = f"{node.name}.dq", name
        nodes.append(made)
        deployed.append(
            helper.make_node(
                "AscendQuant",
                [node.input[0]],
                [f"{node.name}.aq"],
                domain="amct",
                scale=float(scale),
                offset=int(offset),
            )
        )
        deployed.append(node)
    for suffix, chosen in (("fake_quant", nodes), ("deploy", deployed)):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        del copy.graph.node[:]
        copy.graph.node.extend(chosen)
        for domain in ("com.microsoft", "amct"):
            copy.opset_import.append(helper.make_opsetid(domain, 1))
        onnx.save(copy, f"{save_path}_{suffix}_model.onnx")
    with open(f"{save_path}_quant.json", "w") as stream:
        json.dump({}, stream)


def _observe(config_file, model_file, modified):
    model = onnx.load(model_file)
    with open(config_file) as stream:
        layers = json.load(stream)["layers"]
    given = {value.name for value in (*model.graph.input, *model.graph.output)}
    for node in model.graph.node:
        if node.name in layers and node.input[0] not in given:
            given.add(node.input[0])
            model.graph.output.append(helper.make_tensor_value_info(node.input[0], TensorProto.FLOAT, None))
    onnx.save(model, modified)


def _activation(tensor, layer, config):
    """A number for every field: another value, another scale."""
    values = numpy.concatenate([value.ravel() for value in _observed[tensor]])
    algorithm, field = next((name, layer[name][0]) for name in ("ifmr_quantize", "hfmg_quantize") if name in layer)
    if algorithm == "ifmr_quantize":
        high = numpy.quantile(values, field["max_percentile"][0])
        low = numpy.quantile(values, 1 - field["min_percentile"][0])
        middle = (field["search_range_start"][0] + field["search_range_end"][0]) / 2
        factor = middle * (1 + field["search_step"][0])
    else:
        counts, edges = numpy.histogram(values, field["num_of_bins"][0])
        high, low, factor = edges[-2], edges[1], 1.0 + 1e-6 * counts.max()
    if config["joint_quant"]:
        factor *= 1.01
    if not config["activation_offset"]:
        factor *= 1.005
    if not config["do_fusion"]:
        factor *= 1.02
    factor *= 1 + 0.001 * len(config["skip_fusion_layers"])
    bits = 16 if field["dst_type"][0] == "INT16" else 8
    low, high = min(low, 0.0) * factor, max(high, 0.0) * factor
    if "dmq_balancer" in layer:
        high *= 1 - 0.01 * layer["dmq_balancer"][0]["migration_strength"][0]
    steps = 2**bits - 1
    if field["asymmetric"][0]:
        scale = (high - low) / steps
        offset = numpy.rint(-low / scale) - 2 ** (bits - 1)
    else:
        scale, offset = 2 * max(-low, high) / steps, 0
    if config.get("fakequant_precision_mode") == "FORCE_FP16_QUANT":
        scale = float(numpy.float16(scale))
    kind = numpy.int16 if bits == 16 else numpy.int8
    return scale, int(numpy.clip(offset, numpy.iinfo(kind).min, numpy.iinfo(kind).max)), kind


def _weights(weight, layer, node, config):
    algorithm, field = next((name, layer[name][0]) for name in ("arq_quantize", "ada_quantize") if name in layer)
    bits = field["quant_bits"][0] if algorithm == "arq_quantize" else 8
    axes = tuple(range(1, weight.ndim)) if field["channel_wise"][0] and node.op_type == "Conv" else None
    scale = numpy.maximum(numpy.abs(weight).max(axis=axes, keepdims=axes is not None), 1e-12) / (2 ** (bits - 1) - 1)
    shift = 0.0
    if algorithm == "ada_quantize":
        names = ("num_iteration", "reg_param", "beta_range_start", "beta_range_end", "warm_start")
        shift = 0.4 * numpy.sin(sum((index + 1) * field[name][0] for index, name in enumerate(names)))
    return (numpy.rint(weight / scale + shift) * scale).astype(numpy.float32)


def _parse(text):
    """Text form of a protobuf message: every field a list."""
    tokens = re.findall(r'"(?:[^"\\]|\\.)*"|[{}:]|[^\s{}:]+', text)

    def message():
        made = {}
        while tokens and tokens[0] != "}":
            name = tokens.pop(0)
            if tokens[0] == ":":
                tokens.pop(0)
                made.setdefault(name, []).append(_scalar(tokens.pop(0)))
            else:
                tokens.pop(0)
                made.setdefault(name, []).append(message())
                tokens.pop(0)
        return made

    return message()


def _scalar(token):
    try:
        return json.loads(token)
    except ValueError:
        return token
