"""What the user asks for: model, data, boards, objectives, budgets; from a YAML file, options, or Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from harness.data.yaml_lines import read_mapping
from harness.errors import ConfigError
from harness.suggest import did_you_mean
from harness.units import parse_duration_ns, parse_size_bytes

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


_RECORDED = "recorded"
"""Validation context: the values are those of :meth:`Plan.to_json`, where nanoseconds and bytes are plain numbers."""


_NUMBER = re.compile(r"[0-9.]+")


def _duration(value: object, info: ValidationInfo) -> object:
    if isinstance(value, int | float) and not _recorded(info):
        raise ValueError(f"{value} has no unit: write {value}ms, {value}s or {value}m")
    return parse_duration_ns(value) if isinstance(value, str) else value


def _size(value: object, info: ValidationInfo) -> object:
    bare = isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value) is not None)
    if bare and not _recorded(info):
        raise ValueError(f"{value} has no unit: write {value}kB, {value}MB or {value}B")
    return parse_size_bytes(value) if isinstance(value, str) else value


def _recorded(info: ValidationInfo) -> bool:
    return isinstance(info.context, Mapping) and bool(info.context.get(_RECORDED))


def _bound(value: object) -> object:
    """YAML reads ``0.9`` as a number; a bound is text, as units and signs say what it means."""
    return str(value) if isinstance(value, int | float) else value


def _names(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


DurationNs = Annotated[int, BeforeValidator(_duration), Field(gt=0)]
SizeBytes = Annotated[int, BeforeValidator(_size), Field(gt=0)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]

_OWN = "Value error, "
"""What pydantic puts before our own messages."""
_SEVERAL_TYPES = ("preprocess",)

Objective = Literal["latency", "accuracy", "pareto"]
Sampler = Literal["tpe", "random", "grid", "nsga2", "gp", "qmc", "cmaes"]
MixedPrecision = Literal["none", "float", "a16", "both"]
Effort = Literal["quick", "standard"]
Postprocess = Literal["none", "softmax", "argmax"]
"""What follows the model inside the timed region, on the last axis of each output."""


class Plan(BaseModel):
    """One search. Immutable; everything that decides a result is in it.

    Durations are given as text (``8ms``, ``10m``) and kept in nanoseconds; sizes as text and kept in bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path
    calib: str
    """Calibration set: ``.npz``, folder of ``.npy``, image folder, or ``module:function``."""
    eval: str | None = None
    """Evaluation set, same forms; without it, candidates are compared with float on the calibration set (SNR)."""
    preprocess: Path | Mapping[str, Any] | None = None
    """A YAML file, or its content."""
    set_dim: Mapping[str, Annotated[StrictInt, Field(gt=0)]] = Field(default_factory=dict)
    boards: Names = ("local",)
    preset: str = "quick"
    mixed_precision: MixedPrecision = "none"
    """How further recipes keep the model's most sensitive groups precise: in ``float``, with 16-bit activations
    (``a16``), or either way."""
    recipes: tuple[Path, ...] = ()
    """Recipe files tried right after the float baseline."""
    candidates: tuple[Path, ...] = ()
    """Models quantized elsewhere, ONNX: each is tried beside ours, before any recipe."""
    trials: Annotated[int, Field(ge=1)] | None = None
    """``None``: as many as the preset has recipes, or 32 for an open space."""
    top_k: Annotated[int, Field(ge=1)] = 3
    objective: Objective = "pareto"
    filter: str = "pareto"
    """``pareto``, ``balanced``, ``score`` or ``module:function``."""
    sampler: Sampler = "tpe"
    max_latency: DurationNs | None = None
    min_accuracy: Annotated[str, BeforeValidator(_bound)] | None = None
    """``-0.5pp`` relative to float, or absolute; the default of each metric where ``None``."""
    max_size: SizeBytes | None = None
    max_memory: SizeBytes | None = None
    min_offload: Annotated[float, Field(ge=0, le=1)] | None = None
    budget: DurationNs | None = None
    """Device time over all boards together."""
    max_time: DurationNs | None = None
    """Wall time of the search."""
    seed: Annotated[int, Field(ge=0)] = 0
    metrics: Names = ()
    """The first one is ranked on; the defaults fit the data."""
    scope: Literal["inference", "pipeline"] = "inference"
    postprocess: Postprocess = "none"
    """What follows the model with ``scope: pipeline``; metrics are about the model's own outputs all the same."""
    batch: Annotated[int, Field(ge=1)] = 1
    """Samples per inference: the size of a free first axis."""
    min_snr: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """dB; ``None``: 15, or 3 where a limit on accuracy against labels decides (``harness.controller.floor``)."""
    effort: Effort = "standard"
    """How long each candidate is measured; ``quick`` suits demonstrations."""
    window: Annotated[int, Field(ge=1, le=64)] | None = None
    """Trials in the making at once; ``None`` chooses by the number of boards."""
    quantize_timeout: DurationNs = 600 * 10**9
    quantize_memory: SizeBytes = 8 << 30

    @field_validator("*", mode="before")
    @classmethod
    def _no_yes_or_no(cls, value: object) -> object:
        # Python takes True for 1, and no field is a question.
        if isinstance(value, bool):
            raise ValueError("a yes/no value means nothing here")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.boards:
            raise ValueError("boards: name at least one board (see `boardtune boards list`)")
        if self.postprocess != "none" and self.scope != "pipeline":
            raise ValueError(f"postprocess: {self.postprocess} is timed only with --scope pipeline; add that")
        if len(set(self.boards)) != len(self.boards):
            twice = next(name for name in self.boards if self.boards.count(name) > 1)
            raise ValueError(f"boards: {twice!r} is named twice")
        if self.trials is not None and self.top_k > self.trials:
            raise ValueError(
                f"top_k: {self.top_k} candidates cannot be picked from {self.trials} trials; "
                "raise --trials or lower --top-k"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, every field explicit; durations in nanoseconds, sizes in bytes."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What :meth:`to_json` gave. Raises pydantic's ``ValidationError``, which is a ``ValueError``."""
        return cls.model_validate(value, context={_RECORDED: True})


def make_plan(values: Mapping[str, Any], *, where: str = "") -> Plan:
    """Validates; raises :class:`ConfigError` that names the option, its value and a close spelling."""
    return _made(values, lambda place: where)


def load_plan(path: Path, overrides: Mapping[str, Any]) -> Plan:
    """Reads a plan file; ``overrides`` (options given on the command line) win over it.

    Paths in the file are relative to the file. Raises :class:`ConfigError`, with ``file:line`` for what the file says.
    """
    values, lines = read_mapping(path, "plan")
    if isinstance(values.get("min_accuracy"), int | float) and not isinstance(values["min_accuracy"], bool):
        # As it is written: +0.02 is against float, and 0.02 is not.
        values["min_accuracy"] = lines.text(("min_accuracy",)) or values["min_accuracy"]

    def where(place: Sequence[str | int]) -> str:
        return "" if place and place[0] in overrides else lines.where(place)

    return _made({**_rebased(values, path.parent), **overrides}, where)


def _made(values: Mapping[str, Any], where: Callable[[Sequence[str | int]], str]) -> Plan:
    unknown = [str(key) for key in values if key not in Plan.model_fields]
    if unknown:
        raise ConfigError(
            f"unknown key {unknown[0]!r} in the plan",
            hint=did_you_mean(unknown[0], list(Plan.model_fields)),
            where=where((unknown[0],)),
        )
    try:
        return Plan(**values)
    except ValidationError as error:
        raise ConfigError(_describe(error), where=where(_place(error.errors()[0]))) from None


def _rebased(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    result = dict(values)
    for key in ("model", "calib", "eval", "preprocess"):
        value = result.get(key)
        if isinstance(value, str) and ":" not in value and not Path(value).is_absolute():
            result[key] = str(folder / value)
    for key in ("recipes", "candidates"):
        if isinstance(result.get(key), list):
            result[key] = [str(folder / str(item)) for item in result[key]]
    return result


def _place(item: ErrorDetails) -> tuple[str | int, ...]:
    """Where in the plan it is wrong; of what does not fit together, the field that the message begins with."""
    if item["loc"]:
        # What follows a field that takes several types is pydantic's name of a type.
        several = item["loc"][0] in _SEVERAL_TYPES
        return item["loc"][:1] if several else item["loc"]
    field, colon, _ = item["msg"].removeprefix(_OWN).partition(":")
    return (field,) if colon else ()


def _describe(error: ValidationError) -> str:
    parts: dict[str, None] = {}
    for item in error.errors():
        place = ".".join(str(step) for step in _place(item)) if item["loc"] else ""
        message = item["msg"].removeprefix(_OWN)
        got = "" if not place or item["type"] == "missing" else f" (got {item['input']!r:.200})"
        parts[f"{place}: {message}{got}" if place else message] = None
    return "; ".join(parts)
