"""Checks of recipe values; every message names the field, the value and what is possible."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from harness.errors import ConfigError
from harness.recipes.axes import ALIGNABLE, SIXTEEN_BIT, SUB_BYTE, ActivationType
from harness.suggest import near_hint

if TYPE_CHECKING:
    from harness.recipes.recipe import Recipe


def check_keys(section: str, value: object, known: Sequence[str]) -> None:
    """Raises ConfigError unless ``value`` is a mapping with known keys only."""
    name = f"recipe section {section!r}" if section else "a recipe"
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a mapping of fields, not {type(value).__name__}: {value!r}")
    for key in value:
        if key not in known:
            path = f"{section}.{key}" if section else str(key)
            hint = near_hint(str(key), known) or f"known fields: {', '.join(known)}"
            raise ConfigError(f"unknown recipe field {path!r}", hint=hint)


def require_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        guess = near_hint(str(value), choices)
        possible = f"possible: {', '.join(choices)}"
        hint = f"{guess} ({possible})" if guess else possible
        raise ConfigError(f"recipe field {name!r} has the unknown value {value!r}", hint=hint)


def require_type(name: str, value: object, kind: type | tuple[type, ...]) -> None:
    # bool is an int to Python, but ``samples: true`` is a mistake.
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(k.__name__ for k in kinds)
        raise ConfigError(f"recipe field {name!r} must be {wanted}, not {type(value).__name__}: {value!r}")


def require_names(name: str, value: object) -> tuple[str, ...]:
    """Sorted without duplicates: order and repetition mean nothing."""
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise ConfigError(f"recipe field {name!r} must be a list of names, not {type(value).__name__}: {value!r}")
    for item in value:
        if not isinstance(item, str) or not item:
            raise ConfigError(f"recipe field {name!r} must hold names only, not {item!r}")
    return tuple(sorted(set(value)))


def require_pairs(name: str, value: object) -> tuple[tuple[str, str], ...]:
    """A mapping, or a list of pairs of names; sorted without duplicates."""
    items = list(value.items()) if isinstance(value, Mapping) else value
    if isinstance(items, str) or not isinstance(items, list | tuple | set | frozenset):
        raise ConfigError(f"recipe field {name!r} must hold pairs of names, not {type(value).__name__}: {value!r}")
    for item in items:
        is_pair = isinstance(item, list | tuple) and len(item) == 2
        if not is_pair or not all(isinstance(part, str) and part for part in item):
            raise ConfigError(f"recipe field {name!r} must hold pairs of names only, not {item!r}")
    return tuple(sorted({(str(first), str(second)) for first, second in items}))


def find_problem(recipe: Recipe) -> str:
    """Why the combination of fields cannot be built; empty if it can.

    Sources: ONNX operator specifications, ``onnxruntime.quantization.quantize.check_static_quant_arguments``.
    """
    rule = _RULES.get(recipe.scheme)
    problem = rule(recipe) if rule else ""
    both = set(recipe.op_types) & set(recipe.exclude_op_types)
    if not problem and both:
        return f"recipe fields 'op_types' and 'exclude_op_types' both name {', '.join(sorted(both))}"
    return problem


def _static_problem(r: Recipe) -> str:
    if r.format == "QOperator" and r.activation in SIXTEEN_BIT:
        return f"recipe field 'activation' is {r.activation!r}, but QOperator is 8-bit only; use format QDQ"
    if r.format == "QOperator" and r.weight not in ("int8", "uint8"):
        return f"recipe field 'weight' is {r.weight!r}, but QOperator is 8-bit only; use format QDQ"
    if r.activation == "int8" and r.weight == "uint8":
        return (
            "recipe field 'weight' is 'uint8' with 'activation' int8: ONNX Runtime has no such kernels; "
            "use int8 weights or uint8 activations"
        )
    if r.scale == "power_of_two" and not r.weight_symmetric:
        return "recipe field 'scale' is 'power_of_two', which needs 'weight_symmetric' true"
    if r.scale == "power_of_two" and r.format == "QOperator":
        return "recipe field 'scale' is 'power_of_two', which needs format QDQ"
    if r.reduce_range and r.weight not in ("int8", "uint8"):
        return f"recipe field 'reduce_range' is true, which is for 8-bit weights, not {r.weight!r}"
    return _algorithm_problem(r)


def _algorithm_problem(r: Recipe) -> str:
    if r.smooth_alpha is not None and not 0.0 <= r.smooth_alpha <= 1.0:
        return f"recipe field 'smooth_alpha' is {r.smooth_alpha}; it must be from 0 to 1"
    if r.rounding != "nearest" and r.weight in SIXTEEN_BIT:
        return f"recipe field 'rounding' is {r.rounding!r}, which 16-bit weights have no use for"
    for op_type in r.align_scales:
        if op_type not in ALIGNABLE:
            guess = near_hint(op_type, ALIGNABLE)
            return f"recipe field 'align_scales' names {op_type!r}; {guess or 'possible: ' + ', '.join(ALIGNABLE)}"
    if r.overrides and r.format != "QDQ":
        return "recipe field 'overrides' needs format QDQ"
    names = [name for name, _ in r.overrides]
    for name, kind in r.overrides:
        if kind not in ACTIVATION_TYPES:
            return f"recipe field 'overrides' gives {name!r} the type {kind!r}; possible: {', '.join(ACTIVATION_TYPES)}"
        if names.count(name) > 1:
            return f"recipe field 'overrides' names {name!r} twice"
    return ""


def _dynamic_problem(r: Recipe) -> str:
    if r.weight not in ("int8", "uint8"):
        other = "; for 4 bits use scheme weight_only" if r.weight in SUB_BYTE else ""
        return f"recipe field 'weight' is {r.weight!r}, but dynamic quantization has 8-bit weights only{other}"
    return ""


def _weight_only_problem(r: Recipe) -> str:
    if r.weight == "int16":
        return "recipe field 'weight' is 'int16', but block-wise weights have 4 or 8 bits"
    if r.block_size not in _BLOCK_SIZES:
        return (
            f"recipe field 'block_size' is {r.block_size}; it must be a power of two, {_BLOCK_SIZES[0]} to "
            f"{_BLOCK_SIZES[-1]}"
        )
    return ""


def _imported_problem(r: Recipe) -> str:
    if not re.fullmatch("[0-9a-f]{64}", r.source):
        return f"recipe field 'source' is {r.source!r}; an imported model needs the sha256 of its content there"
    return ""


ACTIVATION_TYPES: tuple[str, ...] = get_args(ActivationType)
_BLOCK_SIZES = (16, 32, 64, 128, 256)
_RULES = {
    "static": _static_problem,
    "dynamic": _dynamic_problem,
    "weight_only": _weight_only_problem,
    "imported": _imported_problem,
}
