"""Named search spaces, adapted to a model.

``quick`` and ``xint8-like`` are lists; ``standard`` and ``full`` are conditional spaces whose seeds are the quick list.
A preset is always resolved into recipes before anything is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from harness.errors import ConfigError
from harness.recipes.axes import ALIGNABLE, ActivationType, CalibrationMethod, WeightType
from harness.recipes.esp_presets import ESP_PRESETS, esp_preset
from harness.recipes.facts import ModelFacts
from harness.recipes.mixed import MixedAxis
from harness.recipes.quark_presets import QUARK_PRESETS
from harness.recipes.recipe import FLOAT32, Calibration, Recipe
from harness.recipes.space import ParameterSource, Space, grid, listed_space
from harness.suggest import near_hint

_TYPES: Mapping[str, tuple[ActivationType, WeightType]] = {
    "u8s8": ("uint8", "int8"),
    "s8s8": ("int8", "int8"),
    "u8u8": ("uint8", "uint8"),
    "u16s8": ("uint16", "int8"),
    "s16s8": ("int16", "int8"),
    "s16s16": ("int16", "int16"),
    "u8s4": ("uint8", "int4"),
    "u16s4": ("uint16", "int4"),
}
_METHODS: tuple[str, ...] = get_args(CalibrationMethod)
_EIGHT_BIT = ("u8s8", "s8s8", "u8u8")


def quick_recipes(facts: ModelFacts, mixed: MixedAxis | None = None) -> tuple[Recipe, ...]:
    """About a dozen recipes that differ where models and boards differ most; the float baseline first.

    ``mixed`` adds some with the most sensitive groups kept precise. Dynamic quantization comes last for models made of
    convolutions, where it is slower than float. Networks with attention, gates or hard-swish get more recipes that
    quantize only what carries weights, and get them early.
    """
    naive = Recipe(scheme="static", activation="int8", weight="int8")
    channelwise = naive.with_changes(granularity="per_channel")
    base = channelwise.with_changes(activation="uint8")
    recipes = [
        FLOAT32,
        naive,
        channelwise,
        base,
        base.with_changes(calibration=Calibration("percentile", 99.99)),
        base.with_changes(calibration=Calibration("entropy")),
        Recipe(scheme="float16"),
        base.with_changes(activation="uint16"),
        base.with_changes(weight="uint8", weight_symmetric=False),
        base.with_changes(format="QOperator"),
    ]
    if facts.delicate and facts.weighted:
        recipes[4:4] = _only_weighted(base, facts)
    elif facts.weighted and set(facts.op_types) - set(facts.weighted):
        recipes.append(base.with_changes(op_types=facts.weighted))
    dynamic = Recipe(scheme="dynamic", weight="int8", granularity="per_channel")
    if facts.suits_dynamic:
        recipes.insert(4, dynamic)
    if facts.suits_block_weights:
        recipes.append(Recipe(scheme="weight_only", weight="int4", block_size=32, format="QOperator"))
    if facts.op_types.get("GRU") or facts.op_types.get("RNN"):
        # Nothing else reaches their weights; of LSTM's, dynamic quantization has a form of its own.
        recipes.append(Recipe(scheme="weight_only", weight="int8", format="QDQ"))
    recipes.append(base.with_changes(calibration=Calibration("mse")))
    recipes.append(dynamic)
    if mixed is not None:
        recipes += [*mixed.seeds(base), *mixed.seeds(naive)[:1]]
    return tuple(dict.fromkeys(recipes))


def _only_weighted(base: Recipe, facts: ModelFacts) -> list[Recipe]:
    """Everything but the operators that do the arithmetic stays float: the best cheap fix for attention and gates.

    Their inputs are still long-tailed, so it is mostly with the tails cut off that this loses nothing.
    """
    percentile, mse = Calibration("percentile", 99.99), Calibration("mse")
    only = base.with_changes(op_types=facts.weighted)
    return [
        only.with_changes(calibration=percentile),
        only,
        only.with_changes(calibration=mse),
        only.with_changes(activation="int8"),
        only.with_changes(activation="int8", calibration=percentile),
    ]


def _quick(facts: ModelFacts, mixed: MixedAxis | None) -> Space:
    return listed_space("quick", quick_recipes(facts, mixed))


def _xint8_like(facts: ModelFacts, mixed: MixedAxis | None) -> Space:
    """Power-of-two scales, symmetric int8: what shift-only accelerators take."""
    base = Recipe(scheme="static", activation_symmetric=True, weight_symmetric=True, scale="power_of_two")
    methods = (Calibration("mse"), Calibration("minmax"), Calibration("percentile", 99.99), Calibration("entropy"))
    per_tensor = [base.with_changes(calibration=method) for method in methods]
    per_channel = [recipe.with_changes(granularity="per_channel") for recipe in per_tensor[:2]]
    corrected = []
    if facts.weighted:
        evened = {"equalize": _can_equalize(facts), "bias_correction": True}
        corrected = [base.with_changes(calibration=Calibration("mse"), **evened)]
        corrected.append(corrected[0].with_changes(rounding="adaround"))
    mixtures = mixed.seeds(per_tensor[0]) if mixed is not None else ()
    return listed_space("xint8-like", [FLOAT32, *per_tensor, *corrected, *per_channel, *mixtures])


def _selection(source: ParameterSource, facts: ModelFacts) -> tuple[str, ...]:
    if not facts.weighted or set(facts.op_types) <= set(facts.weighted):
        return ()
    only_weighted = source.categorical("operators", ("all", "weighted")) == "weighted"
    return facts.weighted if only_weighted else ()


_EVENABLE = ("Clip", "LeakyRelu", "PRelu", "Relu")
"""Activations that keep scales (Clip as far as its bound is not reached): between two layers they let their weights be
evened out."""


def _can_equalize(facts: ModelFacts) -> bool:
    layers = sum(facts.op_types.get(name, 0) for name in ("Conv", "Gemm", "MatMul"))
    return layers > 1 and any(facts.op_types.get(name) for name in _EVENABLE)


def _can_smooth(facts: ModelFacts) -> bool:
    return facts.matmul_weights > 0 and facts.op_types.get("LayerNormalization", 0) > 0


def _corrections(facts: ModelFacts) -> Mapping[str, Mapping[str, Any]]:
    """What helps most against the error of weights (and of activations, where they are smoothed), by name."""
    choices: dict[str, Mapping[str, Any]] = {"none": {}}
    if not facts.weighted:
        return choices
    choices["bias"] = {"bias_correction": True}
    choices["adaround"] = {"rounding": "adaround", "bias_correction": True}
    choices["adaquant"] = {"rounding": "adaquant", "weight_clip": "mse"}
    if _can_equalize(facts):
        choices["equalize"] = {"equalize": True, "bias_correction": True}
    if _can_smooth(facts):
        choices["smooth"] = {"smooth_alpha": 0.5}
    return choices


def _correction(source: ParameterSource, facts: ModelFacts) -> Mapping[str, Any]:
    choices = _corrections(facts)
    return choices[source.categorical("correction", tuple(choices))] if len(choices) > 1 else {}


def _every_correction(source: ParameterSource, facts: ModelFacts, weight: WeightType) -> dict[str, Any]:
    """Each method on its own; asked only where the model has what it works on."""
    if not facts.weighted:
        return {}
    chosen: dict[str, Any] = {"weight_clip": source.categorical("weight_clip", ("none", "mse"))}
    if weight != "int16":
        chosen["rounding"] = source.categorical("rounding", ("nearest", "adaround", "adaquant"))
    if chosen.get("rounding") != "adaquant":
        chosen["bias_correction"] = _flag(source, "bias_correction")
    if _can_equalize(facts):
        chosen["equalize"] = _flag(source, "equalize")
    if _can_smooth(facts) and _flag(source, "smooth"):
        chosen["smooth_alpha"] = round(source.floating("smooth_alpha", 0.2, 0.9), 3)
    alignable = [name for name in ALIGNABLE if facts.op_types.get(name)]
    if alignable and _flag(source, "align_scales"):
        chosen["align_scales"] = alignable
    return chosen


def _schemes(facts: ModelFacts, everything: bool) -> tuple[str, ...]:
    schemes = ["static", "float16"]
    if facts.suits_block_weights:
        schemes.append("weight_only")
    if facts.suits_dynamic or everything:
        schemes.append("dynamic")
    return tuple(schemes)


def _flag(source: ParameterSource, name: str) -> bool:
    return source.categorical(name, ("no", "yes")) == "yes"


def _granularity(source: ParameterSource) -> str:
    return source.categorical("granularity", ("per_channel", "per_tensor"))


def _standard_recipe(source: ParameterSource, facts: ModelFacts) -> Recipe:
    scheme = source.categorical("scheme", _schemes(facts, everything=False))
    if scheme == "float16":
        return Recipe(scheme="float16")
    if scheme == "weight_only":
        return _weight_only(source, ("int4", "int8"), (32, 128))
    if scheme == "dynamic":
        return Recipe.from_dict({"scheme": "dynamic", "granularity": _granularity(source)})
    types = source.categorical("types", ("u8s8", "s8s8", "u8u8", "u16s8"))
    activation, weight = _TYPES[types]
    method = source.categorical("method", ("minmax", "percentile", "entropy", "mse"))
    percentile = None
    if method == "percentile":
        percentile = float(source.categorical("percentile", ("99.9", "99.99", "99.999")))
    return Recipe.from_dict(
        {
            "scheme": "static",
            "activation": activation,
            "weight": weight,
            "format": source.categorical("format", ("QDQ", "QOperator")) if types in _EIGHT_BIT else "QDQ",
            "granularity": _granularity(source),
            "activation_symmetric": _flag(source, "activation_symmetric"),
            "calibration": {"method": method, "percentile": percentile},
            "op_types": list(_selection(source, facts)),
            **_correction(source, facts),
        }
    )


def _weight_only(source: ParameterSource, weights: Sequence[str], blocks: Sequence[int]) -> Recipe:
    return Recipe.from_dict(
        {
            "scheme": "weight_only",
            "weight": source.categorical("weight_only.weight", tuple(weights)),
            "block_size": int(source.categorical("block_size", tuple(str(b) for b in blocks))),
            "format": "QOperator",
        }
    )


def _full_recipe(source: ParameterSource, facts: ModelFacts) -> Recipe:
    scheme = source.categorical("scheme", _schemes(facts, everything=True))
    excluded = [name for name in sorted(facts.op_types) if _flag(source, f"float.{name}")]
    if scheme == "float16":
        return Recipe(scheme="float16", exclude_op_types=tuple(excluded))
    if scheme == "weight_only":
        return _weight_only(source, ("int4", "uint4", "int8"), (16, 32, 64, 128))
    if scheme == "dynamic":
        return Recipe.from_dict(
            {
                "scheme": "dynamic",
                "weight": source.categorical("dynamic.weight", ("int8", "uint8")),
                "granularity": _granularity(source),
                "reduce_range": _flag(source, "reduce_range"),
                "exclude_op_types": excluded,
            }
        )
    types = source.categorical("types", tuple(_TYPES))
    activation, weight = _TYPES[types]
    method = source.categorical("method", _METHODS)
    percentile = None
    if method == "percentile":
        # The share cut off is what matters, over orders of magnitude.
        percentile = 100.0 - source.floating("percentile_tail", 1e-4, 1.0, log=True)
    power_of_two = types == "s8s8" and _flag(source, "power_of_two")
    return Recipe.from_dict(
        {
            "scheme": "static",
            "activation": activation,
            "weight": weight,
            "format": (
                source.categorical("format", ("QDQ", "QOperator"))
                if types in _EIGHT_BIT and not power_of_two
                else "QDQ"
            ),
            "granularity": _granularity(source),
            "activation_symmetric": True if power_of_two else _flag(source, "activation_symmetric"),
            "weight_symmetric": _flag(source, "weight_symmetric") if weight == "uint8" else None,
            "reduce_range": types in _EIGHT_BIT and _flag(source, "reduce_range"),
            "scale": "power_of_two" if power_of_two else "float32",
            "calibration": {"method": method, "percentile": percentile},
            "exclude_op_types": excluded,
            **_every_correction(source, facts, weight),
        }
    )


def _standard(facts: ModelFacts, mixed: MixedAxis | None) -> Space:
    def build(source: ParameterSource) -> Recipe:
        recipe = _standard_recipe(source, facts)
        return recipe if mixed is None else mixed.suggest(source, recipe)

    space = Space("standard", None, build, seeds=quick_recipes(facts, mixed))
    count = sum(1 for _ in grid(space))
    return Space("standard", None, space.builder, size=count, seeds=space.seeds)


def _full(facts: ModelFacts, mixed: MixedAxis | None) -> Space:
    def build(source: ParameterSource) -> Recipe:
        recipe = _full_recipe(source, facts)
        return recipe if mixed is None else mixed.suggest(source, recipe, singly=True)

    return Space("full", None, build, seeds=quick_recipes(facts, mixed))


PRESETS: Mapping[str, Callable[[ModelFacts, MixedAxis | None], Space]] = {
    "quick": _quick,
    "standard": _standard,
    "full": _full,
    "xint8-like": _xint8_like,
}
"""Search spaces by name."""


def preset(name: str, facts: ModelFacts, mixed: MixedAxis | None = None, *, esp_targets: Sequence[str] = ()) -> Space:
    """The named space for a model, with ``mixed`` as a further axis; where ``esp_targets`` names the boards' chips, of
    ESP-PPQ's recipes. Raises ConfigError for an unknown name."""
    if esp_targets:
        return esp_preset(name, esp_targets)
    if name in QUARK_PRESETS:
        if mixed is not None:
            hint = "leave --mixed-precision out; Quark's recipes have specific_layer_config and auto_mixprecision"
            raise ConfigError(f"preset {name!r} has no mixed-precision axis of ours", hint=hint)
        return QUARK_PRESETS[name]()
    if name not in PRESETS:
        if name in ESP_PRESETS:
            hint = f"take one of {', '.join(PRESETS)}, or name such boards only"
            raise ConfigError(f"preset {name!r} is for boards that run .espdl models", hint=hint)
        everywhere = (*PRESETS, *QUARK_PRESETS)
        known = f"known presets: {', '.join(everywhere)}"
        guess = near_hint(name, everywhere)
        raise ConfigError(f"unknown preset {name!r}", hint=f"{guess} ({known})" if guess else known)
    return PRESETS[name](facts, mixed)
