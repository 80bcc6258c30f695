"""The ONNX Runtime backend: recipes to models in ONNX Runtime's formats, which deploy everywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import onnxruntime
from onnx import ModelProto
from onnxruntime.quantization.quant_utils import QuantizationMode, QuantType, add_infer_metadata
from onnxruntime.quantization.registry import IntegerOpsRegistry
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

from harness.quantize import graph as graphs
from harness.quantize import inner
from harness.quantize.algorithms.regions import UnknownTensorError, nodes_after, nodes_between
from harness.quantize.cache import Cache
from harness.quantize.calibrate import Subject
from harness.quantize.continued import finished_nodes
from harness.quantize.float_nodes import namesakes, with_weights_not_finite
from harness.quantize.model_file import load_model, save_model
from harness.quantize.passes.interface import put_back, set_aside
from harness.quantize.passes.names import colliding_tensors, rename
from harness.quantize.passes.unshare import merge_equal_initializers
from harness.quantize.rewriters import OperatorRewriter
from harness.quantize.static_recipe import make_static
from harness.quantize.weight_only import quantize_weight_only
from harness.recipes.recipe import Recipe
from harness.suggest import near_hint

logger = logging.getLogger(__name__)


class UnsupportedRecipeError(ValueError):
    """The recipe cannot be made from this model; the message says why."""


class OrtBackend:
    """Implements :class:`harness.quantize.contract.Backend`."""

    name = "ort"

    def __init__(
        self,
        breathe: Callable[[], None] = lambda: None,
        phase: Callable[[str], None] = lambda name: None,
        cache: Cache | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        """``breathe`` is called between calibration batches, ``phase`` is told what comes next. ``cache`` keeps
        calibration statistics; ``digests`` may hold the sha256 of the ``model`` and the ``calibration`` file."""
        self._breathe = breathe
        self._phase = phase
        self._cache = cache or Cache(None)
        self._digests = dict(digests or {})

    def version(self) -> str:
        return f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}"

    def quantize(self, model: Path, calibration: Path, recipe: Recipe, out: Path) -> tuple[str, ...]:
        """Writes ``out`` (the same recipe gives the same bytes); returns notices.

        Raises :class:`UnsupportedRecipeError`, DataError for calibration data that does not fit, ModelError, and
        whatever ONNX Runtime's rewriters raise.
        """
        self._phase("reading the float model")
        source = load_model(model)
        excluded = excluded_nodes(source, recipe)
        notices: tuple[str, ...] = ()
        self._phase(f"quantizing ({recipe.label})")
        if recipe.scheme == "float32":
            made = source
        elif recipe.scheme == "float16":
            made = _to_float16(source, recipe, excluded)
        elif recipe.scheme == "dynamic":
            made = _dynamic(source, recipe, excluded)
        elif recipe.scheme == "weight_only":
            made = quantize_weight_only(source, recipe, excluded)
        elif recipe.scheme == "static":
            made, notices = self._static(source, model, recipe, excluded, calibration)
        else:
            raise UnsupportedRecipeError(f"scheme {recipe.scheme!r} is not made here")
        merge_equal_initializers(made)
        # The rewriters append nodes as they go; the ONNX standard wants them in order.
        graphs.sort_nodes(made.graph)
        graphs.clear_labels(made)
        graphs.drop_unused_opsets(made)
        self._phase("writing the quantized model")
        save_model(made, out)
        return notices

    def _static(
        self, source: ModelProto, model: Path, recipe: Recipe, excluded: list[str], calibration: Path
    ) -> tuple[ModelProto, tuple[str, ...]]:
        subject = Subject.of(source, model, calibration, self._cache, self._digests)
        return make_static(subject, recipe, excluded, self._breathe, self._phase)


def excluded_nodes(model: ModelProto, recipe: Recipe) -> list[str]:
    """Names of nodes left in float. Raises UnsupportedRecipeError for names the model does not have."""
    nodes = {node.name: node.op_type for node in graphs.all_nodes(model)}
    for name in recipe.exclude_nodes:
        if name not in nodes:
            raise UnsupportedRecipeError(
                f"recipe field 'exclude_nodes' names {name!r}, which the prepared model does not have"
                + (f"; {guess}" if (guess := near_hint(name, nodes)) else "")
            )
    types = set(nodes.values())
    for field_name in ("exclude_op_types", "op_types"):
        for op_type in getattr(recipe, field_name):
            if op_type not in types:
                raise UnsupportedRecipeError(
                    f"recipe field {field_name!r} names {op_type!r}, which the prepared model does not have"
                    + (f"; {guess}" if (guess := near_hint(op_type, types)) else "")
                )
    by_type = [name for name, op_type in nodes.items() if op_type in recipe.exclude_op_types]
    return sorted({*recipe.exclude_nodes, *by_type, *_excluded_regions(model, recipe)})


def _excluded_regions(model: ModelProto, recipe: Recipe) -> set[str]:
    """Names of nodes in the parts of the graph left in float. Raises UnsupportedRecipeError for unknown tensors."""
    field_name = "exclude_after"
    try:
        excluded = nodes_after(model, recipe.exclude_after)
        field_name = "exclude_regions"
        for first, last in recipe.exclude_regions:
            between = nodes_between(model, first, last)
            if not between:
                raise UnsupportedRecipeError(
                    f"recipe field 'exclude_regions': there is no path from {first!r} to {last!r}"
                )
            excluded |= between
        field_name = "overrides"
        nodes_after(model, [name for name, _ in recipe.overrides])
    except UnknownTensorError as error:
        raise UnsupportedRecipeError(f"recipe field {field_name!r} names {error}") from None
    return excluded


def _to_float16(model: ModelProto, recipe: Recipe, excluded: list[str]) -> ModelProto:
    blocked = sorted({*DEFAULT_OP_BLOCK_LIST, *recipe.exclude_op_types})
    excluded = sorted({*excluded, *finished_nodes(model)})
    # The converter gives the mean and deviation of a layer normalization the type of its result; they stay float32.
    several = [n.name for n in model.graph.node if n.op_type == "LayerNormalization" and len(n.output) > 1]
    aside = set_aside(model)
    converted: ModelProto = convert_float_to_float16(
        model,
        keep_io_types=True,
        disable_shape_infer=True,
        op_block_list=blocked,
        node_block_list=sorted({*excluded, *several}),
    )
    put_back(converted, aside)
    return converted


def _dynamic(model: ModelProto, recipe: Recipe, excluded: list[str]) -> ModelProto:
    excluded = sorted({*excluded, *namesakes(model), *finished_nodes(model), *with_weights_not_finite(model)})
    op_types, excluded = _dynamic_selection(model, recipe, excluded)
    add_infer_metadata(model)
    own_names = colliding_tensors(model)
    rename(model, own_names)
    aside = set_aside(model)
    weight = QuantType.QInt8 if recipe.weight == "int8" else QuantType.QUInt8
    rewriter = OperatorRewriter(
        model,
        recipe.granularity == "per_channel",
        recipe.reduce_range,
        QuantizationMode.IntegerOps,
        False,
        weight,
        QuantType.QUInt8,
        None,
        [],
        excluded,
        op_types,
        # Without it, MatMul of two activations is quantized too, which ``quantize_dynamic`` does not do either.
        {"MatMulConstBOnly": True, "WeightSymmetric": recipe.weight_symmetric},
    )
    rewriter.quantize_model()
    quantized: ModelProto = rewriter.model.model
    put_back(quantized, aside)
    rename(quantized, {own: name for name, own in own_names.items()})
    if graphs.opset_of(quantized) >= inner.MIN_OPSET:
        inner.quantize_inner_layers(quantized, recipe, excluded)
    return quantized


def _dynamic_selection(model: ModelProto, recipe: Recipe, excluded: list[str]) -> tuple[list[str], list[str]]:
    """Operator types to quantize and nodes not to, in terms of the graph ONNX Runtime makes first: there each Gemm is
    a MatMul called ``<name>_MatMul`` and an Add."""
    nodes = {node.name: node.op_type for node in graphs.all_nodes(model)}
    left_out = set(excluded)
    op_types = {*recipe.op_types} or {*IntegerOpsRegistry, "Gemm"}
    if "Gemm" in op_types:
        left_out |= {name for name, op_type in nodes.items() if op_type == "MatMul" and "MatMul" not in op_types}
        op_types.add("MatMul")
    elif "MatMul" in op_types:
        left_out |= {name for name, op_type in nodes.items() if op_type == "Gemm"}
    left_out |= {f"{name}_MatMul" for name in left_out if nodes.get(name) == "Gemm"}
    return sorted(op_types), sorted(left_out)
