"""What AMD's Quark is told to do. Runs in Quark's own environment (amd-quark 0.13, torch, onnx 1.21 to 1.22).

The options are those of ``harness.recipes.quark``, completed. How they become a ``QConfig`` follows the public classes
of ``quark.onnx`` (https://quark.docs.amd.com/latest/onnx/config/user_guide_config_description_for_onnx.html).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Job = dict[str, Any]
Options = dict[str, Any]

ALGORITHMS = ("cle", "smooth_quant", "bias_correction", "gptq", "adaround", "adaquant", "auto_mixprecision")
OWN_DOMAIN = "com.amd.quark"


class Unsupported(Exception):
    boardtune_cause = "unsupported"


def warm() -> dict[str, str]:
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("QUARK_LOG_LEVEL", "warning")
    import importlib
    import importlib.metadata

    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import quark.onnx  # noqa: F401

    # What it imports only when it quantizes, and would in every child again.
    for name in ("sympy", "onnxslim.core", "onnxslim.cli._main"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return {name: importlib.metadata.version(name) for name in ("amd-quark", "onnx", "onnxruntime", "torch")}


def quantize(job: Job, tell: Callable[[str], None]) -> dict[str, Any]:
    import torch
    from quark.onnx import ModelQuantizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    options = job["options"]
    check_nodes(job["model"], options)
    with tempfile.TemporaryDirectory(prefix="boardtune-quark-") as folder:
        # It leaves tables where it stands.
        os.chdir(folder)
        config = make_config(options, folder)
        settings = plain(config.to_dict())
        out = os.path.join(folder, "made.onnx")
        reader = Reader(job["model"], job["calibration"])
        tell("quantizing")
        with warnings_of_quark() as told, shared_ranges(job, told):
            ModelQuantizer(config).quantize_model(job["model"], out, reader)
        if not os.path.exists(out):
            raise RuntimeError(f"Quark made no model: {told[-1] if told else 'it gave no reason'}")
        check_operators(out)
        notices = take_probes_out(job["model"], out)
        shutil.move(out, job["out"])
        return {"notices": notices, "settings": settings}


class Reader:
    """Samples as Quark's calibration data readers give them, a batch of the model's own size at a time."""

    def __init__(self, model: str, path: str) -> None:
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
        self._feeds = []
        for start in range(0, count, batch):
            feed = {}
            for name, array in found.items():
                part = array[start] if whole[name] else array[start : start + batch]
                feed[name] = numpy.ascontiguousarray(part)
            self._feeds.append(feed)
        self._next = 0

    def __len__(self) -> int:
        return len(self._feeds)

    def get_next(self) -> Any:
        self._next += 1
        return self._feeds[self._next - 1] if self._next <= len(self._feeds) else None

    def reset_iter(self) -> None:
        self._next = 0


# ---- configuration ---------------------------------------------------------------------------------------------------


def make_config(options: Options, folder: str) -> Any:
    from quark.onnx import QConfig, QLayerConfig

    layers = {
        name: {
            QLayerConfig(
                input_tensors=spec(options[f"{name}.input_tensors"]), weight=spec(options[f"{name}.weight"])
            ): list(options[name])
        }
        for name in ("specific_layer_config", "layer_type_config")
        if options[name]
    }
    if options["exclude_op_types"]:
        layers.setdefault("layer_type_config", {})[None] = list(options["exclude_op_types"])
    extra = extra_options(options)
    # Both keep scratch files; elsewhere than in this folder nobody would remove them.
    extra.update(TmpDir=folder, PrintSummary=False)
    return QConfig(
        global_config=QLayerConfig(input_tensors=side(options, "activation"), weight=side(options, "weight")),
        exclude=[*options["exclude"], *(subgraph(pair) for pair in options["exclude_subgraphs"])],
        algo_config=algorithms(options),
        extra_options=extra,
        **layers,
    )


def spec(name: str, **values: Any) -> Any:
    import quark.onnx

    return getattr(quark.onnx, f"{name}Spec")(**values)


def side(options: Options, name: str) -> Any:
    from quark.onnx import CalibMethod, QuantGranularity, ScaleType

    if f"{name}.symmetric" not in options:
        return spec(options[name])
    # With scales that are powers of two Quark uses the activations' method for weights.
    method = options.get(f"{name}.calibration_method") or options.get("activation.calibration_method", "MinMax")
    return spec(
        options[name],
        symmetric=options[f"{name}.symmetric"],
        scale_type=ScaleType[options[f"{name}.scale_type"]],
        calibration_method=CalibMethod[method],
        quant_granularity=QuantGranularity[options.get(f"{name}.quant_granularity", "Tensor")],
    )


def algorithms(options: Options) -> list[Any]:
    from quark.onnx import (
        AdaQuantConfig,
        AdaRoundConfig,
        AutoMixprecisionConfig,
        BiasCorrectionConfig,
        CLEConfig,
        GPTQConfig,
        QLayerConfig,
        SmoothQuantConfig,
    )

    classes = {
        "cle": CLEConfig,
        "smooth_quant": SmoothQuantConfig,
        "bias_correction": BiasCorrectionConfig,
        "gptq": GPTQConfig,
        "adaround": AdaRoundConfig,
        "adaquant": AdaQuantConfig,
    }
    made = []
    for name, build in classes.items():
        if options[name]:
            values = belonging(options, name)
            if values.get("data_size") == -1:
                del values["data_size"]
            made.append(build(**values))
    if options["auto_mixprecision"]:
        values = belonging(options, "auto_mixprecision")
        target = QLayerConfig(input_tensors=spec(values.pop("input_tensors")), weight=spec(values.pop("weight")))
        made.append(AutoMixprecisionConfig(target_layer_config=target, **values))
    return made


def belonging(options: Options, switch: str) -> Options:
    """Values of what belongs to a switch, by their own names."""
    start = switch + "."
    return {name[len(start) :]: value for name, value in options.items() if name.startswith(start)}


def extra_options(options: Options) -> Options:
    """What Quark calls so: options of its own names, which begin with a capital letter."""
    extra = {name: value for name, value in options.items() if name[0].isupper()}
    for name in ("OpTypesToQuantize", "ExtraOpTypesToQuantize"):
        if not extra[name]:
            del extra[name]
    for name, unset in (("CalibDataSize", -1), ("ConvertOpsetVersion", 0)):
        if extra[name] == unset:
            del extra[name]
    return extra


def subgraph(pair: str) -> tuple[list[str], list[str]]:
    first, _, last = pair.partition("..")
    return [first], [last]


def plain(value: Any) -> Any:
    """As JSON; without the folder that is different every time."""
    settings = json.loads(json.dumps(value, default=str))
    settings["extra_options"].pop("TmpDir")
    return settings


# ---- ranges ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def shared_ranges(job: Job, told: list[str]) -> Iterator[None]:
    """Ranges that an earlier recipe found by the same means in the same graph are not found again.

    Quark's ``TensorsRangeFile`` is for that, but it is for the user to know when ranges are the same. What calibration
    is called with says it: the graph as it is after all that comes before, the operators, the type, the method and
    its options.
    """
    from quark.onnx.quantization import quantize as module

    find = getattr(module, "run_calibration", None)
    if find is None:
        # Another version of Quark: every recipe finds its own.
        yield
        return

    def found(model: Any, reader: Any, *arguments: Any, **named: Any) -> Any:
        path = None
        if job.get("cache"):
            path = os.path.join(job["cache"], f"quark-{ranges_key(job, model, arguments, named)}-ranges.json")
            if os.path.exists(path):
                return ranges_file(path, "restore")
        ranges = find(model, reader, *arguments, **named)
        check_calibration(told)
        if path is not None:
            os.makedirs(job["cache"], exist_ok=True)
            with tempfile.TemporaryDirectory(dir=job["cache"]) as folder:
                partial = os.path.join(folder, "ranges.json")
                ranges_file(partial, "save", ranges)
                os.replace(partial, path)
        return ranges

    module.run_calibration = found
    try:
        yield
    finally:
        module.run_calibration = find


def ranges_file(path: str, command: str, ranges: Any = None) -> Any:
    """In Quark's own format, which keeps 32-bit floats exactly."""
    from quark.onnx.utils.file_utils import save_and_restore_func

    return save_and_restore_func(
        save_and_restore=path, command_type=command, save_content=ranges, stage_name="tensors_range"
    )


def ranges_key(job: Job, model: Any, arguments: Sequence[Any], named: Options) -> str:
    import importlib.metadata

    import onnx
    from quark.onnx.calibration.interface import extra_options_keys_mapping

    # The last argument holds every extra option of the recipe; those of calibration count, and types of tensors.
    *others, extra = (*arguments, *(named[name] for name in sorted(named)))
    if not isinstance(extra, dict):
        raise RuntimeError("this version of Quark calls its calibration in another way")
    read = {*(name for name, _ in extra_options_keys_mapping), "TensorQuantOverrides"}
    graph = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
    operators, *others = others
    how = [sorted(operators or ()), *map(str, others), sorted((n, str(v)) for n, v in extra.items() if n in read)]
    versions = [importlib.metadata.version(name) for name in ("amd-quark", "onnxruntime")]
    digest = hashlib.sha256(json.dumps([job["digests"]["calibration"], versions, how]).encode())
    digest.update(graph.SerializeToString(deterministic=True))
    return digest.hexdigest()


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_nodes(model: str, options: Options) -> None:
    """Quark takes names of nodes that are not there without a word."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    names = {node.name for node in graph.node}
    types = {node.op_type for node in graph.node}
    pairs = [name for pair in options["exclude_subgraphs"] for name in pair.partition("..")[::2]]
    for name in (*options["exclude"], *options["specific_layer_config"], *pairs):
        if name.startswith("^"):
            found = ".*" in name and matches(name, names)
            problem = f"no node of the model fits the pattern {name!r} (patterns begin with ^ and contain .*)"
        else:
            found = name in names
            problem = f"the model has no node {name!r}"
        if not found:
            raise Unsupported(problem)
    for name in (*options["layer_type_config"], *options["exclude_op_types"]):
        if name not in types:
            raise Unsupported(f"the model has no operator {name!r}; it has {', '.join(sorted(types))}")


def matches(pattern: str, names: set[str]) -> bool:
    try:
        return any(re.search(pattern, name) for name in names)
    except re.error as error:
        raise Unsupported(f"the pattern {pattern!r} is no regular expression: {error}") from None


def check_operators(path: str) -> None:
    """Boards run ONNX's operators and ONNX Runtime's."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    own = sorted({node.op_type for node in graph.node if node.domain == OWN_DOMAIN})
    if own:
        raise Unsupported(
            f"the model it made has Quark's own operators ({', '.join(own)}), which run only with Quark's library of "
            "custom operators; choose an integer spec for activation and weight (Int8, UInt8, XInt8, Int16, UInt16), "
            "without what computes in BFloat16 or BFP16"
        )


def take_probes_out(model: str, path: str) -> list[str]:
    """Quark's bias correction leaves what it observed among the model's outputs."""
    import onnx

    wanted = {value.name for value in onnx.load(model, load_external_data=False).graph.output}
    made = onnx.load(path, load_external_data=False)
    probes = [value for value in made.graph.output if value.name not in wanted]
    if not probes:
        return []
    for value in probes:
        made.graph.output.remove(value)
    onnx.save(made, path)
    return [f"{len(probes)} outputs that Quark left in for its bias correction were taken out"]


def check_calibration(told: Sequence[str]) -> None:
    """Where its calibration fails, Quark goes on with another method."""
    other = [line for line in told if "Will automatically set the 'calibrate_method'" in line]
    if other:
        before = told[max(told.index(other[0]) - 1, 0)]
        raise RuntimeError(f"calibration failed, and Quark would go on with another method: {before}")


@contextlib.contextmanager
def warnings_of_quark() -> Iterator[list[str]]:
    """What Quark warns of meanwhile."""
    lines: list[str] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage().strip())

    handler = Collecting(logging.WARNING)
    loggers = [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and name.startswith("quark")
    ]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield lines
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
