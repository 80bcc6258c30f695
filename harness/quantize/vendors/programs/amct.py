"""What Huawei's AMCT is told to do. Runs in AMCT's own environment (amct_onnx with its operators built, onnxruntime).

The options are those of ``harness.recipes.amct``, completed. The calls are the documented ones, in the order of
Huawei's sample (https://gitee.com/ascend/samples, ``amct_onnx/resnet-101``). This was never run with AMCT itself.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

Job = dict[str, Any]
Options = dict[str, Any]

STANDARD = {"", "ai.onnx", "com.microsoft"}


class Unsupported(Exception):
    boardtune_cause = "unsupported"


def warm() -> dict[str, str]:
    import importlib.metadata

    import amct_onnx
    import onnxruntime  # noqa: F401

    versions = {"amct_onnx": str(getattr(amct_onnx, "__version__", "unknown"))}
    for name in ("amct_onnx", "onnx", "onnxruntime"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions.setdefault(name, "unknown")
    return versions


def quantize(job: Job, tell: Callable[[str], None]) -> dict[str, Any]:
    import amct_onnx as amct

    options = job["options"]
    check_layers(job["model"], options)
    feeds = list(batches(job["model"], job["calibration"]))
    notices = []
    if options["batch_num"] > len(feeds):
        notices.append(f"batch_num {options['batch_num']} is more than there is: {len(feeds)} batches were used")
    count = min(options["batch_num"], len(feeds))
    with tempfile.TemporaryDirectory(prefix="boardtune-amct-") as folder:
        os.chdir(folder)
        model = os.path.join(folder, "model.onnx")
        shutil.copyfile(job["model"], model)
        definition = configuration({**options, "batch_num": count})
        with open("quant.cfg", "w") as stream:
            stream.write(definition)
        tell("configuring")
        amct.create_quant_config(
            config_file="config.json",
            model_file=model,
            skip_layers=list(options["skip_layers"]),
            batch_num=count,
            activation_offset=options["activation_offset"],
            config_defination="quant.cfg",
        )
        if options["dmq_balancer"]:
            tell("balancing")
            amct.quantize_preprocess("config.json", "record.txt", model, "balanced.onnx")
            run(amct, "balanced.onnx", feeds[:count])
        tell("calibrating")
        amct.quantize_model("config.json", model, "modified.onnx", "record.txt")
        run(amct, "modified.onnx", feeds[:count])
        tell("saving")
        amct.save_model("modified.onnx", "record.txt", os.path.join(folder, "made"))
        check_operators("made_fake_quant_model.onnx")
        shutil.move("made_fake_quant_model.onnx", job["out"])
        shutil.move("made_deploy_model.onnx", deployed(job["out"]))
        with open("config.json") as stream:
            settings = {"quant_cfg": definition, "config": json.load(stream)}
    return {"notices": notices, "settings": settings}


def deployed(out: str) -> str:
    """Where the model that is compiled for the chip goes, beside the one that is run here."""
    stem, suffix = os.path.splitext(out)
    return f"{stem}.deploy{suffix}"


def run(amct: Any, model: str, feeds: list[dict[str, Any]]) -> None:
    """AMCT's operators in the model observe what passes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, amct.AMCT_SO, providers=["CPUExecutionProvider"])
    for feed in feeds:
        session.run(None, feed)


def batches(model: str, path: str) -> Iterator[dict[str, Any]]:
    """Samples, a batch of the model's own size at a time."""
    import numpy
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    constants = {constant.name for constant in graph.initializer}
    shapes = {value.name: value.type.tensor_type.shape.dim for value in graph.input if value.name not in constants}
    with numpy.load(path, allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in shapes}
    # An array of one axis more than its input holds whole inputs.
    whole = {name: array.ndim > len(shapes[name]) for name, array in found.items()}
    sizes = {dims[0].dim_value or 1 for name, dims in shapes.items() if dims and not whole[name]}
    batch = max(sizes, default=1)
    count = min(len(array) for array in found.values()) // batch * batch
    for start in range(0, count, batch):
        yield {
            name: numpy.ascontiguousarray(array[start] if whole[name] else array[start : start + batch])
            for name, array in found.items()
        }


# ---- configuration ---------------------------------------------------------------------------------------------------


def configuration(options: Options) -> str:
    """The text form of AMCT's configuration message."""
    lines = [f"batch_num: {options['batch_num']}"]
    for name in ("activation_offset", "joint_quant", "do_fusion"):
        lines.append(f"{name}: {word(options[name])}")
    for name in ("skip_layers", "skip_layer_types", "skip_fusion_layers"):
        lines += [f"{name}: {json.dumps(value)}" for value in options[name]]
    if options["fakequant_precision_mode"] != "DEFAULT":
        lines.append(f"fakequant_precision_mode: {options['fakequant_precision_mode']}")
    lines += ["common_config {", *calibration(options, options["dst_type"]), "}"]
    for group, field in (("override_layer_types", "layer_type"), ("override_layer_configs", "layer_name")):
        for name in options[group]:
            lines += [f"{group} {{", f"  {field}: {json.dumps(name)}", "  calibration_config {"]
            lines += ["  " + line for line in calibration(options, options[f"{group}.dst_type"])]
            lines += ["  }", "}"]
    return "\n".join(lines) + "\n"


def calibration(options: Options, dst_type: str) -> list[str]:
    weights, activations = options["wts_quant_algo"], options["acts_quant_algo"]
    lines = [f"  {weights} {{", *fields(options, weights), f"    channel_wise: {word(options['channel_wise'])}", "  }"]
    lines += [f"  {activations} {{", *fields(options, activations)]
    lines += [f"    asymmetric: {word(options['asymmetric'])}", f"    dst_type: {dst_type}", "  }"]
    if options["dmq_balancer"]:
        lines += ["  dmq_balancer {", *fields(options, "dmq_balancer"), "  }"]
    return lines


def fields(options: Options, group: str) -> list[str]:
    start = group + "."
    return [f"    {name[len(start) :]}: {word(value)}" for name, value in options.items() if name.startswith(start)]


def word(value: Any) -> str:
    return (
        str(value).lower() if isinstance(value, bool) else f"{value:.10g}" if isinstance(value, float) else str(value)
    )


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_layers(model: str, options: Options) -> None:
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    names, types = {node.name for node in graph.node}, {node.op_type for node in graph.node}
    for name in (*options["skip_layers"], *options["skip_fusion_layers"], *options["override_layer_configs"]):
        if name not in names:
            raise Unsupported(f"the model has no layer {name!r}")
    for name in (*options["skip_layer_types"], *options["override_layer_types"]):
        if name not in types:
            raise Unsupported(f"the model has no operator {name!r}; it has {', '.join(sorted(types))}")


def check_operators(path: str) -> None:
    import onnx

    model = onnx.load(path, load_external_data=False)
    own = sorted({f"{node.domain}.{node.op_type}" for node in model.graph.node if node.domain not in STANDARD})
    own += sorted({node.op_type for node in model.graph.node if node.op_type.startswith("Ascend")} - set(own))
    if own:
        raise Unsupported(
            f"the fake-quant model it made has AMCT's own operators ({', '.join(own)}), which ONNX Runtime has only "
            "with AMCT's library: it can be neither checked nor run outside AMCT's environment"
        )
