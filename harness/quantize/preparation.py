"""The steps that make a model ready for quantization. They run in a child process: ONNX Runtime may crash on a model.

The meaning of the model is kept, and checked: if a transformed model's outputs differ from the original's on a random
sample, the transformation is dropped and a notice says so.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter
from onnx import ModelProto, TensorProto

from harness.errors import ModelError
from harness.quantize import graph as graphs
from harness.quantize.continued import mark
from harness.quantize.contract import Cause, ModelRefused
from harness.quantize.graph import MIN_OPSET
from harness.quantize.model_file import INLINE_LIMIT_BYTES, load_model, model_bytes, save_model
from harness.quantize.passes.axes import name_every_axis
from harness.quantize.passes.constants import constants_to_initializers, fill_blanks, sparse_to_dense
from harness.quantize.passes.gemm import normalise_gemms
from harness.quantize.passes.names import rename_colliding_nodes, rename_inner_tensors
from harness.quantize.passes.stay_float import keep_layers_in_float
from harness.quantize.passes.tidy import drop_stale_types, tidy
from harness.quantize.passes.types import add_runtime_types
from harness.quantize.passes.unfuse import unfuse
from harness.quantize.passes.unshare import unshare_initializers
from harness.quantize.passes.widen import other_floats, widen
from harness.quantize.sessions import open_session, random_feeds, run_by_name
from harness.quantize.shapes import fix_dims, model_inputs, tensor_specs
from harness.quantize.snr import snr_db
from harness.recipes.facts import ModelFacts
from harness.scratch import scratch_prefix

_FIRST_OPSET_WITH_CONSTANTS = 9
_FIRST_QUANTIZED_OPSET = 10
"""First opset with quantized operators at all."""
BATCH_WITHIN = "the model may have its batch size written into a node, such as a Reshape: try it without --batch"
SAME_OUTPUT_DB = 60.0
"""Float outputs closer than this to the original's differ by rounding only (float32 carries about 140 dB)."""
SAME_WIDENED_DB = 25.0
"""The same between a model in 16-bit floats and in float32: bfloat16 rounds each value to about 50 dB."""
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)

Phase = Callable[[str], None]
"""Told what comes next, so that a crash can be named."""


@dataclass
class _Work:
    model: ModelProto
    path: Path
    """Of the original, for messages."""
    notices: list[str] = field(default_factory=list)


def prepare(
    path: Path,
    out: Path,
    set_dims: Mapping[str, int],
    batch: int,
    *,
    transform: bool,
    phase: Phase,
    continue_quantized: bool = False,
) -> tuple[ModelProto, tuple[str, ...]]:
    """Writes the prepared model to ``out``; returns it with notices.

    ``transform=False`` leaves out what executes native code on the graph (operator set conversion, graph optimisation,
    the comparison run): the way out after a crash there. ``continue_quantized`` takes models that are quantized in
    part. Raises ModelError.
    """
    phase("reading the model")
    work = _Work(load_model(path), path)
    _check_inputs(work)
    before = graphs.quantization_found(work.model)
    if before and not continue_quantized:
        raise _already_quantized(before, path)
    work.notices += _constant_inputs(work.model)
    work.notices += fix_dims(work.model, set_dims, path, batch)
    if work.model.functions:
        work.model = _inlined(work)
    _tidy(work)
    sparse_to_dense(work.model)
    fill_blanks(work.model)
    graphs.name_nodes(work.model)
    phase("loading the float model")
    _widen(work, transform, phase)
    _check_loads(work, BATCH_WITHIN if batch > 1 else "")
    if transform:
        _transform(work, phase, optimise=not before)
    else:
        normalise(work.model)
    if before:
        # ONNX Runtime would quantize float layers behind a dequantized tensor, the float reference's too.
        keep_layers_in_float(work.model)
    _infer_shapes(work)
    drop_stale_types(work.model)
    graphs.name_nodes(work.model)
    rename_colliding_nodes(work.model)
    graphs.drop_unused_opsets(work.model)
    graphs.clear_labels(work.model)
    if before:
        mark(work.model)
    phase("writing the prepared model")
    save_model(work.model, out)
    return work.model, tuple(work.notices)


def check_loads(path: Path, *, phase: Phase) -> None:
    """Raises ModelError where ``path``, float or quantized, cannot be fed or loaded on this host."""
    phase("reading the model")
    work = _Work(load_model(path), path)
    _check_inputs(work)
    phase("loading the model")
    _check_loads(work)


def facts_of(model: ModelProto) -> ModelFacts:
    """Facts for search spaces, of a prepared model."""
    constants = {t.name: t for g in graphs.all_graphs(model.graph) for t in g.initializer}
    nodes = list(graphs.all_nodes(model))
    matmuls = (n for n in nodes if n.op_type in ("MatMul", "Gemm") and n.input[1] in constants)
    inputs = model_inputs(model)
    return ModelFacts(
        op_types=dict(sorted(Counter(node.op_type for node in nodes).items())),
        parameters=sum(int(np.prod(t.dims, dtype=np.int64)) for t in constants.values() if t.data_type in _FLOATS),
        input_dtypes=tuple(spec.dtype for spec in tensor_specs(inputs)),
        has_dynamic=any(isinstance(size, str) for spec in tensor_specs(inputs) for size in spec.shape),
        opset=graphs.opset_of(model),
        matmul_weights=sum(1 for n in matmuls if len(constants[n.input[1]].dims) == 2),
    )


def _check_inputs(work: _Work) -> None:
    inputs = model_inputs(work.model)
    if not inputs:
        message = "the model has no inputs: there is nothing to calibrate or to time"
        raise ModelRefused(message, cause=Cause.UNSUPPORTED, where=work.path)
    for value in inputs:
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "nothing"
            message = f"input {value.name!r} is a {kind}; only tensors can be fed"
            raise ModelRefused(message, cause=Cause.UNSUPPORTED, where=work.path)
        if value.type.tensor_type.elem_type == TensorProto.STRING:
            message = f"input {value.name!r} holds strings; only numbers can be fed"
            raise ModelRefused(message, cause=Cause.UNSUPPORTED, where=work.path)
        if not value.type.tensor_type.HasField("shape"):
            message = f"input {value.name!r} has no shape; export the model with one"
            raise ModelRefused(message, cause=Cause.UNSUPPORTED, where=work.path)


def _already_quantized(found: Counter[str], path: Path) -> ModelRefused:
    listed = ", ".join(f"{count} {name}" for name, count in sorted(found.items()))
    return ModelRefused(
        f"the model is already quantized: it has {listed}",
        cause=Cause.ALREADY_QUANTIZED,
        where=path,
        hint=(
            f"give the float model; this one enters its search beside ours with --add-candidate {path}, is measured as "
            f"it is with boardtune measure {path}, or has its float parts quantized with boardtune quantize "
            "--continue-quantized"
        ),
    )


def _inlined(work: _Work) -> ModelProto:
    try:
        return onnx.inliner.inline_local_functions(work.model)
    except Exception as error:
        # The library says what is wrong with the functions by whatever exception it has.
        raise ModelError(f"its local functions cannot be inlined: {error}", where=work.path) from error


def _tidy(work: _Work) -> None:
    try:
        tidy(work.model)
    except ValueError as error:
        raise ModelRefused(f"its graph has a circle: {error}", cause=Cause.DOES_NOT_LOAD, where=work.path) from error


def _constant_inputs(model: ModelProto) -> list[str]:
    """Initializers that are also listed as inputs (required before IR version 4) become plain constants."""
    constants = graphs.initializers_of(model.graph)
    kept = [value for value in model.graph.input if value.name not in constants]
    dropped = [value.name for value in model.graph.input if value.name in constants]
    listed = model.ir_version >= 4
    # Some exporters say 3 and list no initializer as an input all the same, which tools take at its word.
    model.ir_version = max(model.ir_version, 4)
    if dropped:
        copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
        del model.graph.input[:]
        model.graph.input.extend(copies)
        if not listed:
            return []
        shown = ", ".join(repr(name) for name in dropped[:3]) + (" …" if len(dropped) > 3 else "")
        return [f"inputs with a default value are kept at it: {shown}"]
    return []


def normalise(model: ModelProto) -> None:
    """Brings a float model into the form that quantizers get right, in place; what it computes stays the same."""
    rename_inner_tensors(model)
    for graph in graphs.all_graphs(model.graph):
        constants_to_initializers(graph)
    unfuse(model)
    name_every_axis(model)
    unshare_initializers(model)
    normalise_gemms(model)
    graphs.name_nodes(model)


def _normalised(model: ModelProto) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(onnx.shape_inference.infer_shapes(model))
    normalise(made)
    return made


def _widen(work: _Work, transform: bool, phase: Phase) -> None:
    """Models in other floating-point types are computed in float32 from here on."""
    kinds = other_floats(work.model)
    if not kinds:
        return
    try:
        widened = widen(work.model)
        with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
            open_session(_runnable(widened, Path(folder)), "disabled")
    except Exception as error:
        work.notices.append(f"the model stays in {' and '.join(kinds)}: {str(error).strip().splitlines()[0]}")
        return
    if transform:
        phase("running the float model")
        before, after = _outputs(work.model), _outputs(widened)
        if before is not None and not _same(before, after, SAME_WIDENED_DB):
            work.notices.append(f"the model stays in {' and '.join(kinds)}: in float32 its outputs differ")
            return
    work.model = widened
    what = "; bfloat16 inputs and outputs become float32" if "bfloat16" in kinds else ""
    work.notices.append(f"computed in float32 instead of {' and '.join(kinds)}{what}")


def _check_loads(work: _Work, hint: str = "") -> None:
    try:
        with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
            open_session(_runnable(work.model, Path(folder)), "disabled")
    except Exception as error:
        message = _load_message(work.model, str(error))
        raise ModelRefused(message, cause=Cause.DOES_NOT_LOAD, where=work.path, hint=hint) from error


def _load_message(model: ModelProto, text: str) -> str:
    import onnxruntime

    version = onnxruntime.__version__
    opset = re.search(r"Opset (\d+) is under development.*till opset (\d+)", text, re.DOTALL)
    if opset:
        return (
            f"the model uses opset {opset[1]}; ONNX Runtime {version} here knows opsets up to {opset[2]}: export the "
            f"model with opset {opset[2]} or lower, or install a newer onnxruntime"
        )
    ir_version = re.search(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)", text)
    if ir_version:
        return (
            f"the model has IR version {ir_version[1]}; ONNX Runtime {version} here reads up to {ir_version[2]}: save "
            "it with a lower ir_version, or install a newer onnxruntime"
        )
    # ONNX Runtime prefixes source locations and codes that help nobody here.
    reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text.strip())
    return f"ONNX Runtime {version} cannot load the model: {reason}"


def _runnable(model: ModelProto, folder: Path) -> Path | bytes:
    """What a session can be made from; a file where protobuf cannot serialise to memory."""
    if model_bytes(model) <= INLINE_LIMIT_BYTES:
        return bytes(model.SerializeToString())
    path = folder / "model.onnx"
    copy = ModelProto()
    copy.CopyFrom(model)
    save_model(copy, path)
    return path


def _transform(work: _Work, phase: Phase, *, optimise: bool = True) -> None:
    if model_bytes(work.model) > INLINE_LIMIT_BYTES:
        work.notices.append("the model is larger than 2 GB: graph optimisation before quantization is left out")
        normalise(work.model)
        return
    phase("running the float model")
    reference = _outputs(work.model)
    _raise_opset(work, reference, phase)
    if optimise:  # Of a quantized graph it would make another one.
        phase("optimising the graph")
        _adopt(work, reference, "graph optimisation", _optimized)
    phase("normalising the graph")
    _adopt(work, reference, "normalising the graph", _normalised)


def _raise_opset(work: _Work, reference: Mapping[str, np.ndarray] | None, phase: Phase) -> None:
    """To :data:`MIN_OPSET`, or as near as the converter gets without changing what the model computes."""
    opset = graphs.opset_of(work.model)
    failed = ""
    for target in range(MIN_OPSET, max(opset, _FIRST_QUANTIZED_OPSET - 1), -1):
        what = f"conversion from opset {opset} to {target}"
        phase(f"converting the model from opset {opset} to {target}")
        said = len(work.notices)
        if _adopt(work, reference, what, partial(_to_opset, opset=target)):
            break
        # Why it stopped short of the highest is enough.
        failed = failed or work.notices[-1]
        del work.notices[said:]
    if failed:
        work.notices.append(failed)


def _adopt(
    work: _Work, reference: Mapping[str, np.ndarray] | None, what: str, step: Callable[[ModelProto], ModelProto]
) -> bool:
    try:
        candidate = step(work.model)
        same = reference is None or _same(reference, _outputs(candidate))
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        work.notices.append(f"{what} left out: {first}")
        return False
    if same:
        work.model = candidate
    else:
        work.notices.append(f"{what} left out: it changes the model's outputs")
    return same


def _to_opset(model: ModelProto, opset: int) -> ModelProto:
    source = ModelProto()
    source.CopyFrom(model)
    if graphs.opset_of(model) < _FIRST_OPSET_WITH_CONSTANTS:
        # To the converter, an initializer that is no input is undefined there.
        present = {value.name for value in source.graph.input}
        source.graph.input.extend(
            onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
            for t in source.graph.initializer
            if t.name not in present
        )
    converted = onnx.version_converter.convert_version(source, opset)
    converted.ir_version = max(model.ir_version, 7)
    _constant_inputs(converted)
    return converted


def _optimized(model: ModelProto) -> ModelProto:
    """Constants folded, batch norm folded, no-ops removed: ONNX Runtime's hardware-independent level, as its
    ``quant_pre_process`` applies."""
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
        path = Path(folder) / "optimized.onnx"
        open_session(bytes(model.SerializeToString()), "basic", path)
        return onnx.load(path)


def _outputs(model: ModelProto) -> dict[str, np.ndarray] | None:
    """Outputs on one random sample; ``None`` if the model cannot run on it (indices out of range, say)."""
    try:
        session = open_session(bytes(model.SerializeToString()), "disabled")
        return run_by_name(session, random_feeds(tensor_specs(model_inputs(model)), seed=0))
    except Exception:
        return None


def _same(
    reference: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray] | None, floor_db: float = SAME_OUTPUT_DB
) -> bool:
    if outputs is None or list(outputs) != list(reference):
        return False
    return all(snr_db([reference[name]], [outputs[name]]) >= floor_db for name in reference)


def _infer_shapes(work: _Work) -> None:
    if model_bytes(work.model) > INLINE_LIMIT_BYTES:
        return
    try:
        work.model = onnx.shape_inference.infer_shapes(work.model, data_prop=True)
        add_runtime_types(work.model)
    except Exception as error:
        work.notices.append(f"shapes could not be inferred: {str(error).strip().splitlines()[0]}")
