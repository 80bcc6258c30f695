"""Recipes that differ from a trial's in the one thing that a finding asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.audit.finding import Change, changes_between
from harness.errors import ConfigError
from harness.recipes.axes import SIXTEEN_BIT, SUB_BYTE
from harness.recipes.recipe import Calibration, Recipe

Changes = tuple[Change, ...]


def _changed(recipe: Recipe, **values: Any) -> Changes:
    """Nothing where the recipe cannot be so, or is so already."""
    try:
        return changes_between(recipe, recipe.with_changes(**values))
    except ConfigError:
        return ()


def apply(recipe: Recipe, changes: Changes) -> Recipe:
    """The recipe with ``changes`` made. Raises ConfigError."""
    values = recipe.to_dict()
    for change in changes:
        section, dot, name = change.field.partition(".")
        if dot:
            values[section] = {**values[section], name: change.after}
        else:
            values[section] = change.after
    return Recipe.from_dict(values)


def per_channel(recipe: Recipe) -> Changes:
    return _changed(recipe, granularity="per_channel")


def whole_range(recipe: Recipe) -> Changes:
    """Ranges that cut nothing off, of all calibration samples."""
    return _changed(recipe, calibration=Calibration("minmax"))


def clipped_range(recipe: Recipe, percentile: float = 99.9) -> Changes:
    return _changed(recipe, calibration=Calibration("percentile", percentile))


def leave_in_float(recipe: Recipe, nodes: Sequence[str]) -> Changes:
    return _changed(recipe, exclude_nodes=(*recipe.exclude_nodes, *nodes))


def sixteen_bits(recipe: Recipe, tensors: Sequence[str] = ()) -> Changes:
    """Activations in 16 bits: those named, or all."""
    if recipe.scheme != "static" or recipe.activation in SIXTEEN_BIT:
        return ()
    wide = "int16" if recipe.activation == "int8" else "uint16"
    if not tensors:
        return _changed(recipe, activation=wide, format="QDQ")
    overrides = {**dict(recipe.overrides), **dict.fromkeys(tensors, wide)}
    return _changed(recipe, overrides=tuple(overrides.items()))


def equalized(recipe: Recipe) -> Changes:
    """Channels of weights and activations evened out between layers."""
    return _changed(recipe, equalize=True) if recipe.granularity == "per_tensor" else ()


def eight_bit_weights(recipe: Recipe) -> Changes:
    """In place of 4-bit ones."""
    if recipe.weight not in SUB_BYTE:
        return ()
    return _changed(recipe, weight="int8" if recipe.weight == "int4" else "uint8")


def corrected_biases(recipe: Recipe) -> Changes:
    return _changed(recipe, bias_correction=True)


def seven_bits(recipe: Recipe) -> Changes:
    return _changed(recipe, reduce_range=True)


def signed_weights(recipe: Recipe) -> Changes:
    return _changed(recipe, weight="int8", weight_symmetric=None, activation="uint8")


def static(recipe: Recipe) -> Changes:
    """What runs fastest on most processors."""
    return _changed(
        recipe, scheme="static", activation="uint8", weight="int8", weight_symmetric=None, granularity="per_channel"
    )


def everything(recipe: Recipe) -> Changes:
    """All operator types that can be quantized."""
    return _changed(recipe, op_types=(), exclude_op_types=())


def only(recipe: Recipe, op_types: Sequence[str]) -> Changes:
    chosen = [name for name in op_types if name not in recipe.exclude_op_types]
    return _changed(recipe, op_types=tuple(chosen))


def first_that_changes(*choices: Changes) -> Changes:
    """The first of ``choices`` that is not empty."""
    return next((changes for changes in choices if changes), ())
