"""Models quantized elsewhere, as candidates beside ours: what a file must be, and how it becomes an artifact."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx.external_data_helper import uses_external_data

from harness.errors import ModelError
from harness.quantize import graph as graphs
from harness.quantize.contract import Cause, ModelRefused
from harness.quantize.identity import file_sha256, identity_of
from harness.quantize.model_file import load_model, parse_model, save_model, tensors
from harness.quantize.ort_backend import UnsupportedRecipeError
from harness.quantize.outputs import data_of
from harness.quantize.prepare import PreparedModel
from harness.quantize.shapes import fix_dims, free_dims, model_inputs, tensor_specs
from harness.recipes.recipe import Recipe
from harness.tensors import TensorSpec
from harness.units import format_bytes

_ABSENT = "LiteRT and OpenVINO run on no board that boardtune drives yet"


@dataclass(frozen=True)
class ImportedModel:
    """One file, checked against the float model's interface; whether it is any good is for acceptance to say."""

    given: Path
    artifact: Path
    """What is deployed: the bytes as given, unless free dimensions were fixed or external data put inside."""
    recipe: Recipe
    notices: tuple[str, ...] = ()

    def to_json(self) -> dict[str, str]:
        """What the run's header keeps of it."""
        return {"path": str(self.given), "identity": self.recipe.source, "sha256": self.recipe.source_sha256}


def import_models(
    paths: Sequence[Path], float_model: PreparedModel, folder: Path
) -> tuple[tuple[ImportedModel, ...], tuple[str, ...]]:
    """Reads each file once, in their order, and writes artifacts into ``folder``; returns notices beside them.

    Files of the same content are one candidate. Raises ModelError as :func:`import_model`.
    """
    found: dict[str, ImportedModel] = {}
    notices: list[str] = []
    for index, path in enumerate(paths):
        made = import_model(path, float_model, folder / f"candidate-{index}.onnx")
        first = found.setdefault(made.recipe.source, made)
        if first is not made:
            made.artifact.unlink()
            notices.append(f"--add-candidate {path}: the same model as {first.given}; it is tried once")
        else:
            notices += made.notices
    return tuple(found.values()), tuple(notices)


def import_model(path: Path, float_model: PreparedModel, out: Path) -> ImportedModel:
    """Checks the file and writes what is to be deployed to ``out``.

    Free dimensions get the sizes that the float model has. Raises ModelError for a file that cannot be read, and
    :class:`~harness.quantize.contract.ModelRefused` for another runtime's format or other inputs or outputs.
    """
    _check_format(path)
    external = any(uses_external_data(tensor) for tensor in tensors(parse_model(path)))
    model = load_model(path)
    recipe = Recipe(
        scheme="imported", source=identity_of(model), source_file=path.name, source_sha256=file_sha256(path)
    )
    notices = _fix_dims(model, float_model, path)
    _check_interface(model, float_model, path)
    out.parent.mkdir(parents=True, exist_ok=True)
    if notices or external:
        save_model(model, out)
    else:
        shutil.copyfile(path, out)
    if data_of(out).exists():
        raise ModelRefused("candidates over 2 GB cannot be taken", cause=Cause.UNSUPPORTED, where=path)
    return ImportedModel(path, out, recipe, (*notices, *_float_weights(model, path)))


class ImportedBackend:
    """Implements :class:`harness.quantize.contract.Backend`: the artifact is there already."""

    name = "imported"

    def __init__(self, file: str | None) -> None:
        self._file = file

    def version(self) -> str:
        return ""

    def quantize(self, model: Path, calibration: Path, recipe: Recipe, out: Path) -> tuple[str, ...]:
        """Raises UnsupportedRecipeError where no file was handed over, and ``OSError``."""
        if not self._file:
            raise UnsupportedRecipeError(
                "a recipe of scheme 'imported' names a model made elsewhere, which this cannot make; the file enters a "
                "search with --add-candidate FILE"
            )
        shutil.copyfile(self._file, out)
        return ()


def check_unchanged(recorded: Sequence[Mapping[str, Any]], given: Sequence[Path]) -> None:
    """Raises ModelError naming digests where a candidate of a run (``recorded``: its header's) is gone or another one
    by now."""
    for path in given:
        called = [entry for entry in recorded if Path(str(entry["path"])).name == path.name]
        if not called:
            continue  # by another name, or not of that run: the header tells
        was = f"when the run began its sha256 was {' or '.join(str(entry['sha256']) for entry in called)}"
        hint = "put that file back, or name another --run-dir"
        if not path.exists():
            raise ModelError(f"the candidate is gone: {was}", where=path, hint=hint)
        found = identity_of(load_model(path))
        if found not in {entry["identity"] for entry in called}:
            now = f"now it is {file_sha256(path)} (content {found})"
            raise ModelError(f"the candidate has changed: {was}, {now}", where=path, hint=hint)


def _check_format(path: Path) -> None:
    """Raises ModelRefused for what other runtimes execute."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError:
        return  # parse_model says what is wrong
    if head[4:8] == b"TFL3" or path.suffix == ".tflite":
        kind, way = "a LiteRT (TFLite) model", "tf2onnx makes a QDQ ONNX model of it, which can be a candidate"
    elif b"<net " in head or (path.suffix == ".xml" and head.lstrip()[:1] == b"<"):
        kind, way = "an OpenVINO model", "NNCF also quantizes ONNX models: give what it made of the .onnx file"
    else:
        return
    raise ModelRefused(f"is {kind}; {_ABSENT}", cause=Cause.UNSUPPORTED, where=path, hint=way)


def _fix_dims(model: onnx.ModelProto, float_model: PreparedModel, path: Path) -> tuple[str, ...]:
    """Gives free dimensions of inputs the float model's sizes, in place."""
    wanted = {f"{spec.name}:{axis}": size for spec in float_model.inputs for axis, size in enumerate(spec.shape)}
    sizes: dict[str, int] = {}
    for dim in free_dims(model):
        size = wanted.get(dim.place)
        if not isinstance(size, int):
            return ()  # an input that the float model lacks, or has with another rank: told by _check_interface
        if sizes.setdefault(dim.name, size) != size:
            raise ModelRefused(
                f"its dimension {dim.name!r} would have to be both {sizes[dim.name]} and {size} to fit the float model",
                cause=Cause.OTHER_INTERFACE,
                where=path,
            )
    if not sizes:
        return ()
    fix_dims(model, sizes, path)
    listed = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return (f"--add-candidate {path}: free dimensions are fixed as the float model's: {listed}",)


def _float_weights(model: onnx.ModelProto, path: Path) -> tuple[str, ...]:
    """Quantization-aware training is often exported with float weights behind QuantizeLinear, folded on loading."""
    constants = graphs.initializers_of(model.graph)
    quantized = {node.input[0] for node in model.graph.node if node.op_type == graphs.QUANTIZE} & constants.keys()
    size = sum(len(constants[name].raw_data) + 4 * len(constants[name].float_data) for name in quantized)
    if not size:
        return ()
    return (
        f"--add-candidate {path}: {len(quantized)} of its tensors are stored in float and quantized on loading; as "
        f"8-bit integers they would take {format_bytes(size * 3 // 4)} less",
    )


def _check_interface(model: onnx.ModelProto, float_model: PreparedModel, path: Path) -> None:
    for kind, ours, values in (
        ("input", float_model.inputs, model_inputs(model)),
        ("output", float_model.outputs, list(model.graph.output)),
    ):
        theirs = tensor_specs([value for value in values if value.type.tensor_type.elem_type])
        problem, hint = _difference(kind, {spec.name: spec for spec in ours}, {spec.name: spec for spec in theirs})
        if problem:
            raise ModelRefused(
                f"it cannot stand in for the float model: {problem}",
                cause=Cause.OTHER_INTERFACE,
                where=path,
                hint=hint,
            )


def _difference(kind: str, ours: Mapping[str, TensorSpec], theirs: Mapping[str, TensorSpec]) -> tuple[str, str]:
    """The first difference in words, and the way out; empty where there is none."""
    if ours.keys() != theirs.keys():
        return (
            f"its {kind}s are {', '.join(map(repr, sorted(theirs)))}, the float model's "
            f"{', '.join(map(repr, sorted(ours)))}",
            f"export it with the same names of {kind}s, or rename them (onnx.compose, sor4onnx)",
        )
    for name, spec in ours.items():
        other = theirs[name]
        if spec.dtype != other.dtype:
            return (
                f"its {kind} {name!r} is {other.dtype}, the float model's {spec.dtype}",
                f"export it with {spec.dtype} {kind}s, quantizing inside the model: both get the same samples, and "
                "their outputs are compared",
            )
        if not _same_shape(spec.shape, other.shape):
            return (
                f"its {kind} {name!r} has shape {_shape(other.shape)}, the float model's {_shape(spec.shape)}",
                "export it with the float model's shapes",
            )
    return "", ""


def _same_shape(ours: Sequence[int | str], theirs: Sequence[int | str]) -> bool:
    """Where both say a size, it is the same; an output may say nothing at all of its shape."""
    if not ours or not theirs:
        return True
    pairs = zip(ours, theirs, strict=False)
    return len(ours) == len(theirs) and all(a == b or isinstance(a, str) or isinstance(b, str) for a, b in pairs)


def _shape(sizes: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
