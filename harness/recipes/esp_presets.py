"""Search spaces of ESP-PPQ recipes, for boards that run ``.espdl`` models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.errors import ConfigError
from harness.recipes.esp_ppq import CALIBRATIONS, PARAMETERS, SWITCHES, TABLE, TARGETS, belongs, first_stage
from harness.recipes.recipe import FLOAT32, Recipe
from harness.recipes.space import ParameterSource, Space, listed_space
from harness.suggest import did_you_mean

PER_CHANNEL_TARGETS = frozenset({"esp32p4", "esp32s31"})
"""Weights have a scale per channel there, which leaves equalization little to do; the guide to Espressif's own quantize
skill advises against it."""


def esp_recipe(**options: Any) -> Recipe:
    """``a__b`` stands for the option ``a.b``."""
    return Recipe(
        scheme="vendor",
        backend=TABLE.backend,
        options=tuple((name.replace("__", "."), value) for name, value in options.items()),
    )


def esp_quick(targets: Sequence[str]) -> Space:
    """What is worth a try first, cheap before dear: 8 bits, 16 for some layers, corrections, then training."""
    lists = [_quick_recipes(target) for target in targets]
    # Targets take turns, so that none of several boards waits for the others' list to end.
    mixed = [recipe for row in itertools.zip_longest(*lists) for recipe in row if recipe is not None]
    return listed_space("quick", [FLOAT32, *mixed])


def _quick_recipes(target: str) -> list[Recipe]:
    evened = target not in PER_CHANNEL_TARGETS
    first, *others = [esp_recipe(target=target, calib_algorithm=method) for method in CALIBRATIONS]
    # Few networks keep their accuracy with one power of two per tensor; which layers need more comes early.
    recipes = [
        first,
        esp_recipe(target=target, mixed_precision=True, mixed_precision__topk=1),
        esp_recipe(target=target, mixed_precision=True, mixed_precision__topk=3),
        esp_recipe(target=target, quant_type="w8a16"),
        *others,
        esp_recipe(target=target, calib_algorithm="kl", bias_correction=True),
    ]
    if evened:
        recipes.append(esp_recipe(target=target, calib_algorithm="mse", weight_equalization=True))
    recipes.append(esp_recipe(target=target, calib_algorithm="mse", bias_correction=True, weight_equalization=evened))
    recipes.append(esp_recipe(target=target, quant_type="w16a16"))
    recipes.append(esp_recipe(target=target, tqt=True))
    recipes.append(esp_recipe(target=target, blockwise_reconstruction=True))
    return recipes


def esp_standard(targets: Sequence[str]) -> Space:
    """Everything that needs no training, conditionally."""

    def build(source: ParameterSource) -> Recipe:
        return _sampled(source, targets, trained=False)

    return _taught("standard", build, esp_quick(targets).seeds)


def esp_full(targets: Sequence[str]) -> Space:
    """All of it: also what is trained (TQT, block-wise reconstruction)."""

    def build(source: ParameterSource) -> Recipe:
        return _sampled(source, targets, trained=True)

    return _taught("full", build, esp_quick(targets).seeds)


def _sampled(source: ParameterSource, targets: Sequence[str], *, trained: bool) -> Recipe:
    options: dict[str, Any] = {"target": _target(source, targets)}
    options["quant_type"] = source.categorical("quant_type", ("w8a8", "w8a16", "w16a16"))
    if options["quant_type"] != "w16a16":
        options["calib_algorithm"] = source.categorical("calib_algorithm", CALIBRATIONS)
    switches = ["bias_correction", "horizontal_layer_split"]
    if options["target"] not in PER_CHANNEL_TARGETS:
        switches.append("weight_equalization")
    if options["quant_type"] == "w8a8":
        switches.append("mixed_precision")
    if trained:
        switches += ["tqt", "blockwise_reconstruction"]
    for switch in switches:
        options[switch] = source.categorical(switch, ("off", "on")) == "on"
    wider: Mapping[str, tuple[Any, ...]] = {"mixed_precision.topk": (1, 2, 3, 5), "horizontal_layer_split.topk": (1, 2)}
    for name, values in PARAMETERS.items():
        group = name.partition(".")[0]
        if "." in name and group != "fusion_alignment" and options.get(group) is True:
            options[name] = _choice(source, name, wider.get(name, values))
    return esp_recipe(**options)


def autoquant_exhaustive(targets: Sequence[str]) -> Space:
    """AutoQuant's ``exhaustive`` space, 1,067,040 experiments per target, for a sampler to search."""

    def build(source: ParameterSource) -> Recipe:
        return _autoquant(source, targets)

    return Space("esp-ppq-exhaustive", None, build, seeds=(FLOAT32,))


def autoquant_fast(targets: Sequence[str]) -> Space:
    """AutoQuant's ``fast`` mode: its 48 experiments of stage 1 first, in its order; then the sampler, which has learned
    from them, goes on in the space of its stage 2."""

    def build(source: ParameterSource) -> Recipe:
        return _autoquant(source, targets)

    first = [esp_recipe(target=target, **options) for options in first_stage() for target in targets]
    return _taught("esp-ppq-fast", build, (FLOAT32, *first))


def _autoquant(source: ParameterSource, targets: Sequence[str]) -> Recipe:
    options: dict[str, Any] = {"target": _target(source, targets)}
    for switch, values in SWITCHES.items():
        if len(values) == 1:
            options[switch] = values[0]
        else:
            options[switch] = source.categorical(switch, ("on", "off")) == "on"
    for name, choices in PARAMETERS.items():
        if belongs(name, options):
            options[name] = _choice(source, name, choices)
    return esp_recipe(**options)


def _taught(name: str, build: Callable[[ParameterSource], Recipe], seeds: Sequence[Recipe]) -> Space:
    """A sampled space whose sampler learns from those seeds that it could have proposed itself."""
    answers = {}
    for recipe in seeds:
        known = _Known(dict(recipe.options))
        if recipe.scheme == "vendor" and build(known) == recipe:
            answers[recipe.digest] = known.given
    return Space(name, None, build, seeds=tuple(seeds), answers=answers)


class _Known:
    """Answers as the options of a recipe have it; what they do not say, with the first choice."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self.given: dict[str, Any] = {}

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        word = _word(self._options.get(name))
        self.given[name] = word if word in choices else choices[0]
        return str(self.given[name])

    def integer(self, name: str, low: int, high: int) -> int:
        raise NotImplementedError(name)

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float:
        raise NotImplementedError(name)


def _target(source: ParameterSource, targets: Sequence[str]) -> str:
    return targets[0] if len(targets) == 1 else source.categorical("target", tuple(targets))


def _choice(source: ParameterSource, name: str, values: Sequence[Any]) -> Any:
    """Samplers answer in words."""
    if len(values) == 1:
        return values[0]
    words = {_word(value): value for value in values}
    return words[source.categorical(name, tuple(words))]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


ESP_PRESETS = {
    "quick": esp_quick,
    "standard": esp_standard,
    "full": esp_full,
    "esp-ppq-fast": autoquant_fast,
    "esp-ppq-exhaustive": autoquant_exhaustive,
}


def esp_preset(name: str, targets: Sequence[str]) -> Space:
    """The named space for these chips. Raises :class:`ConfigError` for a name there is none of here."""
    if name not in ESP_PRESETS:
        hint = did_you_mean(name, ESP_PRESETS, what="presets for boards that run .espdl models")
        raise ConfigError(f"preset {name!r} is not for boards that run .espdl models", hint=hint)
    for target in targets:
        if target not in TARGETS:
            raise ConfigError(f"ESP-PPQ has no target {target!r}", hint=did_you_mean(target, TARGETS, what="targets"))
    return ESP_PRESETS[name](targets)
