"""Search spaces of Quark recipes, equal to those of Quark's own Auto-Search.

Source: ``quark.onnx.quantization.auto_search.qconfig_mapping`` of amd-quark 0.13 (MIT): its four predefined spaces,
with their values in their order. What they put on a GPU (``cuda:0``) is on the CPU here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.recipes.quark import TABLE
from harness.recipes.recipe import FLOAT32, Recipe
from harness.recipes.space import ParameterSource, Space

_NONE = "none"
STEP = 3000
"""Of the numbers of iterations; they begin with it too."""


def quark_recipe(**options: Any) -> Recipe:
    """``a__b`` stands for the option ``a.b``."""
    return Recipe(
        scheme="vendor",
        backend=TABLE.backend,
        options=tuple((name.replace("__", "."), value) for name, value in options.items()),
    )


@dataclass(frozen=True)
class Training:
    """One of the algorithms that the second stage tries."""

    learning_rate: tuple[float, float]
    """Sampled on a logarithmic scale."""
    fixed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AutoSearchSpace:
    """One of Quark's predefined spaces."""

    fixed: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]]
    """Options of calibration; what belongs to one stands after it."""
    iterations: int
    """Most of them."""
    training: Mapping[str, Training]

    def first_stage(self) -> Iterator[dict[str, Any]]:
        """Options of every configuration of stage 1, in Quark's order; some come to the same recipe."""
        # Its grid has plain values outside, then the groups of activation, weight and CLE.
        names = [name for name in self.axes if "." not in name]
        names += [name for name in self.axes if name.startswith(("activation.", "weight."))]
        for chosen in itertools.product(*(self.axes[name] for name in names)):
            options = {**self.fixed, **dict(zip(names, chosen, strict=True))}
            for steps in self.axes["cle.cle_steps"] if options["cle"] else (None,):
                yield options if steps is None else {**options, "cle.cle_steps": steps}

    @property
    def discrete(self) -> int:
        """Number of discrete combinations as Quark counts them, conditions aside."""
        total = len(self.training)
        for values in self.axes.values():
            total *= len(values)
        return total

    def suggest(self, source: ParameterSource) -> Recipe:
        """Calibration, and one of the algorithms that train, or none, which is stage 1."""
        options = dict(self.fixed)
        for name, values in self.axes.items():
            if self._matters(name, options):
                options[name] = _choice(source, name, values)
        algorithm = source.categorical("algorithms", (_NONE, *self.training))
        if algorithm == _NONE:
            return quark_recipe(**options)
        trained = self.training[algorithm]
        options[algorithm] = True
        count = source.integer(f"{algorithm}.num_iterations/{STEP}", 1, self.iterations // STEP)
        options[f"{algorithm}.num_iterations"] = count * STEP
        low, high = trained.learning_rate
        options[f"{algorithm}.learning_rate"] = source.floating(f"{algorithm}.learning_rate", low, high, log=True)
        options.update({f"{algorithm}.{name}": value for name, value in trained.fixed.items()})
        return quark_recipe(**options)

    def answers(self, options: Mapping[str, Any]) -> dict[str, str]:
        """What :meth:`suggest` has to be answered for these options of stage 1."""
        asked = {name: _word(options[name]) for name in self.axes if self._matters(name, options)}
        return {**asked, "algorithms": _NONE}

    def _matters(self, name: str, options: Mapping[str, Any]) -> bool:
        if name == "cle.cle_steps":
            return options["cle"] is True
        if name == "PercentileCandidates":
            return options.get("activation.calibration_method") == "LayerwisePercentile"
        return True


_CLE = {"cle": (True, False)}
_STEPS = {"cle.cle_steps": (-1, 1)}
_METHODS = ("MinMax", "Percentile", "LayerwisePercentile")
_ADAQUANT = {"data_size": 1000, "batch_size": 2, "early_stop": True}
_THOROUGH = {"data_size": 3000, "batch_size": 2, "early_stop": True}
_TRAINING = {"adaround": Training((1e-2, 1e-1)), "adaquant": Training((1e-6, 1e-4), _ADAQUANT)}

AUTO_SEARCH: Mapping[str, AutoSearchSpace] = {
    "XINT8_SEARCH": AutoSearchSpace(
        {
            "activation": "XInt8",
            "activation.symmetric": True,
            "activation.calibration_method": "MinMSE",
            "weight": "XInt8",
            "weight.symmetric": True,
            "weight.quant_granularity": "Tensor",
            "OptimizeModel": True,
        },
        {**_CLE, **_STEPS},
        20_000,
        _TRAINING,
    ),
    "A8W8_SEARCH": AutoSearchSpace(
        {
            "activation": "Int8",
            "weight": "Int8",
            "weight.symmetric": True,
            "weight.quant_granularity": "Tensor",
            "OptimizeModel": True,
            "AlignSlice": False,
            "FoldRelu": True,
            "AlignConcat": True,
        },
        {
            **_CLE,
            "activation.symmetric": (True, False),
            "activation.calibration_method": _METHODS,
            "PercentileCandidates": ((99.99, 99.999, 99.9999), (99.0, 99.9, 99.99, 99.999, 99.9999)),
            **_STEPS,
        },
        20_000,
        _TRAINING,
    ),
    "A16W8_SEARCH": AutoSearchSpace(
        {
            "activation": "Int16",
            "weight": "Int8",
            "weight.symmetric": True,
            "weight.quant_granularity": "Tensor",
            "OptimizeModel": True,
            "AlignSlice": False,
            "FoldRelu": True,
            "AlignConcat": True,
            "AlignEltwiseQuantType": True,
        },
        {
            **_CLE,
            "activation.symmetric": (True, False),
            "activation.calibration_method": ("MinMax", "Percentile"),
            **_STEPS,
        },
        20_000,
        _TRAINING,
    ),
    "ADVANCED_SEARCH": AutoSearchSpace(
        {
            "activation": "Int8",
            "activation.scale_type": "Float32",
            "weight": "Int8",
            "weight.symmetric": True,
            "OptimizeModel": True,
        },
        {
            **_CLE,
            "activation.symmetric": (True, False),
            "activation.calibration_method": _METHODS,
            "weight.calibration_method": ("MinMax", "MinMSE"),
            **_STEPS,
        },
        30_000,
        {"adaround": Training((1e-2, 1e-1), _THOROUGH), "adaquant": Training((1e-6, 1e-3), _THOROUGH)},
    ),
}


def auto_search(name: str, space: AutoSearchSpace) -> Space:
    """Stage 1 first, every calibration in Quark's order; then the sampler, which has learned from it, over the
    algorithms that train."""
    first = {quark_recipe(**options): space.answers(options) for options in space.first_stage()}
    answers = {recipe.digest: given for recipe, given in first.items()}
    return Space(name, None, space.suggest, seeds=(FLOAT32, *first), answers=answers)


def _choice(source: ParameterSource, name: str, values: Sequence[Any]) -> Any:
    """Samplers answer in words."""
    words = {_word(value): value for value in values}
    return words[source.categorical(name, tuple(words))]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(f"{item:.10g}" for item in value) if isinstance(value, tuple) else str(value)


QUARK_PRESETS: Mapping[str, Callable[[], Space]] = {
    "quark-xint8": lambda: auto_search("quark-xint8", AUTO_SEARCH["XINT8_SEARCH"]),
    "quark-a8w8": lambda: auto_search("quark-a8w8", AUTO_SEARCH["A8W8_SEARCH"]),
    "quark-a16w8": lambda: auto_search("quark-a16w8", AUTO_SEARCH["A16W8_SEARCH"]),
    "quark-advanced": lambda: auto_search("quark-advanced", AUTO_SEARCH["ADVANCED_SEARCH"]),
}
