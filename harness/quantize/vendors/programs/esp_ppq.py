"""What ESP-PPQ is told to do. Runs in ESP-PPQ's own environment (esp-ppq 1.3, torch, onnx < 1.20).

The options are those of ``harness.recipes.esp_ppq``, completed. How they become a ``QuantizationSetting`` follows the
public attributes of ``esp_ppq.api.QuantizationSettingFactory.espdl_setting`` (see
https://docs.espressif.com/projects/esp-dl/en/latest/tutorials/how_to_quantize_model.html).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Job = dict[str, Any]
Options = dict[str, Any]


class Unsupported(Exception):
    boardtune_cause = "unsupported"


def warm() -> dict[str, str]:
    os.environ.setdefault("TQDM_DISABLE", "1")
    import importlib.metadata

    import esp_ppq.api  # noqa: F401
    import onnx  # noqa: F401
    import onnxsim  # noqa: F401

    return {name: importlib.metadata.version(name) for name in ("esp-ppq", "onnx", "torch")}


def quantize(job: Job, tell: Callable[[str], None]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    options = job["options"]
    with tempfile.TemporaryDirectory(prefix="boardtune-esp-ppq-") as folder:
        tell("simplifying the model")
        model = simplified(job, folder)
        calibration = Calibration(job["calibration"], options["calib_steps"])
        ranked = []
        if needs_ranking(options):
            tell("ranking layers by their error")
            ranked = ranking(job, model, calibration, folder)
        setting = make_setting(options, ranked, model)
        tell("quantizing")
        out = os.path.join(folder, "made.espdl")
        run(model, out, calibration, options, setting, options["quant_type"])
        shutil.move(out, job["out"])
        return {"notices": [], "settings": json.loads(setting.to_json())}


class Calibration:
    """Samples one at a time, as the exporter wants a batch of one; a dict or a tensor, as the model has inputs."""

    def __init__(self, path: str, steps: int) -> None:
        import numpy
        import torch

        with numpy.load(path, allow_pickle=False) as arrays:
            self.names = list(arrays.files)
            arrays = [arrays[name] for name in self.names]
        count = len(arrays[0])
        self.steps = min(steps, count)
        chosen = sorted(set(numpy.linspace(0, count - 1, self.steps).round().astype(int).tolist()))
        self.steps = len(chosen)
        self.samples = []
        for row in chosen:
            tensors = [torch.from_numpy(numpy.ascontiguousarray(array[row : row + 1])) for array in arrays]
            self.samples.append(tensors[0] if len(tensors) == 1 else tensors)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def first(self) -> list[Any]:
        sample = self.samples[0]
        return sample if isinstance(sample, list) else [sample]


def cached(job: Job, scratch: str, name: str, make: Callable[[str], None], suffix: str) -> str:
    """What any recipe of this model needs, made once; in ``scratch`` where nothing is kept.
    ``make(path)`` writes it."""
    folder = job.get("cache")
    if not folder:
        path = os.path.join(scratch, name + suffix)
        make(path)
        return path
    path = os.path.join(folder, name + suffix)
    if os.path.exists(path):
        return path
    os.makedirs(folder, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=folder, suffix=suffix)
    os.close(handle)
    try:
        make(partial)
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
    return path


def simplified(job: Job, folder: str) -> str:
    """A copy of the model, simplified; ESP-PPQ overwrites what it is given."""
    import onnx
    import onnxsim

    def make(path: str) -> None:
        model, right = onnxsim.simplify(onnx.load(job["model"]))
        if not right:
            raise RuntimeError("onnxsim changed what the model computes")
        onnx.save(onnx.shape_inference.infer_shapes(model), path)

    kept = cached(job, folder, f"esp-ppq-{job['digests']['model']}-simplified", make, ".onnx")
    path = os.path.join(folder, "model.onnx")
    shutil.copyfile(kept, path)
    return path


def needs_ranking(options: Options) -> bool:
    passes = ("bias_correction", "horizontal_layer_split", "mixed_precision", "tqt", "blockwise_reconstruction")
    wanted = [name for name in passes if options[name] and options.get(name + ".topk", -1) > 0]
    if options["mixed_precision"] and options["mixed_precision.layers"]:
        wanted.remove("mixed_precision")
    return bool(wanted)


def ranking(job: Job, model: str, calibration: Calibration, folder: str) -> list[str]:
    """Names of layers by the error that plain int8 makes in each alone, the largest first."""
    from esp_ppq.api import QuantizationSettingFactory
    from esp_ppq.quantization.analyse import layerwise_error_analyse

    options = job["options"]

    def make(path: str) -> None:
        copy = os.path.join(folder, "ranked.onnx")
        shutil.copyfile(model, copy)
        setting = QuantizationSettingFactory.espdl_setting()
        graph = run(copy, os.path.join(folder, "ranked.espdl"), calibration, options, setting, "w8a8")
        errors = layerwise_error_analyse(
            graph=graph, running_device="cpu", collate_fn=lambda batch: batch, dataloader=calibration, verbose=False
        )
        ordered = sorted(((float(error), name) for name, error in errors.items()), reverse=True)
        with open(path, "w") as stream:
            json.dump([name for _, name in ordered], stream)

    key = json.dumps([job["digests"]["model"], job["digests"]["calibration"], options["target"], calibration.steps])
    name = f"esp-ppq-{hashlib.sha256(key.encode()).hexdigest()}-ranking"
    with open(cached(job, folder, name, make, ".json")) as stream:
        names: list[str] = json.load(stream)
    return names


def run(model: str, out: str, calibration: Calibration, options: Options, setting: Any, quant_type: str) -> Any:
    from esp_ppq.api import espdl_quantize_onnx

    # Its default makes one Attention of MatMul, Softmax and MatMul, which the interpreter that accepts and evaluates
    # artifacts does not have, nor any esp-dl before 3.3.
    setting.espdl_attention_fusion = False
    return espdl_quantize_onnx(
        onnx_import_file=model,
        espdl_export_file=out,
        calib_dataloader=calibration,
        calib_steps=max(calibration.steps, 8),
        input_shape=None,
        inputs=calibration.first,
        target=options["target"],
        quant_type=quant_type,
        collate_fn=lambda batch: batch,
        setting=setting,
        device="cpu",
        error_report=False,
        export_config=False,
        export_test_values=False,
        verbose=0,
        metadata_props=Metadata(model, options["target"]),
    )


class Metadata(dict[str, str]):
    """What the file says of itself: ``boardtune.target``; and ``boardtune.axes``, which maps inputs and outputs to the
    order of the ONNX tensor's axes in which the file has them, where it is another.

    The exporter turns images to NHWC and writes it nowhere. It knows the order only when it asks for these entries,
    which is why they are made then.
    """

    def __init__(self, model: str, target: str) -> None:
        super().__init__({"boardtune.target": target, "boardtune.axes": ""})
        self._model = model

    def items(self) -> Any:
        import onnx
        from esp_ppq.parser.espdl.espdl_typedef import ExporterPatternInfo

        graph = onnx.load(self._model, load_external_data=False).graph
        known = ExporterPatternInfo()
        orders = {value.name: known.get_var_permute(value.name) for value in (*graph.input, *graph.output)}
        turned = {name: [int(axis) for axis in order] for name, order in orders.items() if order}
        kept = {name: order for name, order in turned.items() if order != sorted(order)}
        return {
            "boardtune.target": self["boardtune.target"],
            "boardtune.axes": json.dumps(kept, sort_keys=True),
        }.items()


def make_setting(options: Options, ranked: list[str], model: str) -> Any:
    from esp_ppq.api import QuantizationSettingFactory

    sixteen = options["quant_type"] == "w16a16"
    setting = QuantizationSettingFactory.espdl_setting(num_of_bits=16 if sixteen else 8)
    if not sixteen:
        setting.quantize_activation_setting.calib_algorithm = options["calib_algorithm"]
    setting.equalization = options["weight_equalization"]
    setting.weight_split = options["horizontal_layer_split"]
    setting.bias_correct = options["bias_correction"]
    setting.tqt_optimization = options["tqt"]
    setting.fusion = True
    setting.fusion_setting.align_quantization = options["fusion_alignment"]
    setting.blockwise_reconstruction = options["blockwise_reconstruction"]
    if options["weight_equalization"]:
        take(
            setting.equalization_setting, options, "weight_equalization", ("iterations", "value_threshold", "opt_level")
        )
    if options["horizontal_layer_split"]:
        take(setting.weight_split_setting, options, "horizontal_layer_split", ("value_threshold",))
        setting.weight_split_setting.interested_layers = top(ranked, options["horizontal_layer_split.topk"])
    if options["bias_correction"]:
        take(setting.bias_correct_setting, options, "bias_correction", ("block_size", "steps"))
        setting.bias_correct_setting.interested_layers = top(ranked, options["bias_correction.topk"])
    if options["tqt"]:
        trained = ("lr", "steps", "block_size", "is_scale_trainable", "gamma", "int_lambda")
        take(setting.tqt_optimization_setting, options, "tqt", trained)
        setting.tqt_optimization_setting.interested_layers = top(ranked, options["tqt.topk"])
        setting.tqt_optimization_setting.collecting_device = "cpu"
    if options["blockwise_reconstruction"]:
        names = ("is_scale_trainable", "block_size", "steps", "lr", "gamma")
        take(setting.blockwise_reconstruction_setting, options, "blockwise_reconstruction", names)
        layers = top(ranked, options["blockwise_reconstruction.topk"])
        setting.blockwise_reconstruction_setting.interested_layers = layers
        setting.blockwise_reconstruction_setting.collecting_device = "cpu"
    if options["fusion_alignment"]:
        fusion = setting.fusion_setting
        fusion.align_elementwise_to = options["fusion_alignment.elementwise_to"]
        fusion.align_concat_to = options["fusion_alignment.concat_to"]
        fusion.align_avgpooling_to = options["fusion_alignment.avgpooling_to"]
        fusion.align_resize_to = options["fusion_alignment.resize_to"]
        fusion.force_alignment_overlap = options["fusion_alignment.force_overlap"]
    if options["mixed_precision"]:
        raise_precision(setting, options, ranked, model)
    return setting


def take(setting: Any, options: Options, group: str, names: Sequence[str]) -> None:
    for name in names:
        setattr(setting, name, options[f"{group}.{name}"])


def top(ranked: list[str], count: int) -> list[str]:
    """Empty means every layer to ESP-PPQ."""
    return [] if count == -1 else ranked[:count]


def raise_precision(setting: Any, options: Options, ranked: list[str], model: str) -> None:
    """16 bit for the layers named; without names for those of the largest error and what reads them."""
    import onnx
    from esp_ppq.api import get_target_platform

    graph = onnx.load(model).graph
    nodes = {node.name: node for node in graph.node}
    layers = list(options["mixed_precision.layers"])
    unknown = [name for name in layers if name not in nodes]
    if unknown:
        raise Unsupported(f"the simplified model has no node {unknown[0]!r} to keep at 16 bit")
    for name in [] if layers else ranked[: options["mixed_precision.topk"]]:
        layers.append(name)
        outputs = set(nodes[name].output) if name in nodes else set()
        layers += [node.name for node in graph.node if outputs & set(node.input)]
    for name in dict.fromkeys(layers):
        setting.dispatching_table.append(name, get_target_platform(options["target"], 16))
        setting.quantize_activation_setting.calib_algorithm_per_layer[name] = "minmax"
        setting.quantize_parameter_setting.calib_algorithm_per_layer[name] = "minmax"
