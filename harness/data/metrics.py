"""Metrics by name, checked against the data and the model's outputs before any board is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.data.callables import is_callable_spec
from harness.data.custom_metric import custom_metric
from harness.data.dataset import Dataset
from harness.data.fidelity import FIDELITY, Fidelity
from harness.data.metric import Metric
from harness.data.output_error import OutputError
from harness.data.stored import Array
from harness.data.topk import TopK
from harness.errors import DataError
from harness.suggest import did_you_mean, near_hint
from harness.tensors import TensorSpec

TOP = {"top1": 1, "top5": 5}
ERRORS = ("mae", "mse")
BUILTIN = (*TOP, *ERRORS, *FIDELITY)
FORMS = f"Metrics: {', '.join(BUILTIN)}, METRIC@OUTPUT, module:function:max or module:function:min."


def resolve_metrics(
    names: Sequence[str], dataset: Dataset, outputs: Sequence[TensorSpec], *, allow_code: bool = True
) -> tuple[Metric, ...]:
    """Metrics by name, the first being the one ranked on; without names, the defaults that fit the data.

    Defaults: ``top1`` then ``snr`` with class labels; ``mae`` then ``snr`` with labels of an output's own shape;
    ``snr`` without labels. ``outputs`` are the model's, with the batch axis first. Raises :class:`DataError` where a
    metric is unknown, given twice, or does not fit the labels or the outputs.
    """
    if not outputs:
        raise DataError("the model has no outputs to compute a metric from")
    chosen = list(names) or _defaults(dataset, outputs)
    metrics: list[Metric] = []
    for name in chosen:
        metric = _resolve(name, dataset, outputs, allow_code)
        if any(metric.name == other.name for other in metrics):
            raise DataError(f"the metric {metric.name!r} is given twice")
        metrics.append(metric)
    return tuple(metrics)


def _resolve(name: str, dataset: Dataset, outputs: Sequence[TensorSpec], allow_code: bool) -> Metric:
    if ":" in name:
        if not allow_code:
            raise DataError(f"the metric {name!r} is code, which is not run from here")
        return custom_metric(name)
    kind, _, wanted = name.partition("@")
    if kind not in BUILTIN:
        raise DataError(f"unknown metric {name!r}", hint=_unknown_hint(kind))
    if kind in TOP:
        return _top(name, TOP[kind], _output(name, wanted, outputs), dataset)
    if kind in ERRORS:
        return _error(name, kind, _output(name, wanted, outputs), dataset)
    # Without a name, numbers that mean a class or an index are left out: their size is no signal.
    floats = tuple(output for output in outputs if _kind(output) == "f")
    chosen = (_output(name, wanted, outputs),) if wanted else floats or tuple(outputs)
    return Fidelity(name=name, kind=kind, outputs=tuple(o.name for o in chosen))


def _top(name: str, k: int, output: TensorSpec, dataset: Dataset) -> TopK:
    labels = dataset.labels
    if labels is None:
        raise DataError(
            f"the metric {name!r} needs labels, and the data has none",
            where=dataset.origin,
            hint="Add an array called 'labels', or use snr, which compares with the float model.",
        )
    classes = _class_count(name, output)
    _check_class_labels(name, labels, classes, output, dataset.origin)
    if classes == 0 and k > 1:
        raise DataError(f"the metric {name!r} needs scores; output {output.name!r} holds class numbers")
    if classes and k >= classes:
        raise DataError(
            f"the metric {name!r} is always 1: output {output.name!r} has {classes} classes", hint="Use top1."
        )
    return TopK(name=name, k=k, output=output.name)


def _class_count(name: str, output: TensorSpec) -> int | None:
    """Classes of an output of scores, 0 if it holds class numbers, ``None`` while a dimension is free."""
    rest = [size for size in output.shape[1:] if size != 1]
    if _kind(output) in {"i", "u"} and not rest:
        return 0
    if len(rest) != 1:
        raise DataError(
            f"the metric {name!r} needs scores [samples, classes]; output {output.name!r} is "
            f"[{', '.join(map(str, ('samples', *output.shape[1:])))}]",
            hint="Name another output with METRIC@OUTPUT, or give module:function.",
        )
    return rest[0] if isinstance(rest[0], int) else None


def _check_class_labels(name: str, labels: Array, classes: int | None, output: TensorSpec, origin: str) -> None:
    if labels.ndim != 1 or not (
        labels.dtype.kind in "iub" or (labels.dtype.kind == "f" and bool((labels == np.rint(labels)).all()))
    ):
        one_hot = labels.ndim == 2 and labels.dtype.kind in "iufb" and bool((labels.sum(axis=1) == 1).all())
        raise DataError(
            f"the metric {name!r} needs one class number per sample; labels are "
            f"{list(labels.shape)} {labels.dtype.name}",
            where=origin,
            hint="They look one-hot: store labels.argmax(1)." if one_hot else "Store integers 0..classes-1.",
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes and high >= classes):
        wrong = labels < 0 if low < 0 else labels >= (classes or 0)
        sample = int(np.argmax(wrong))
        hint = "Labels are class numbers from 0."
        if low == 1 and classes and high == classes:
            hint = "They look counted from 1: subtract 1."
        elif classes and low >= 0:
            hint = "Is the data for this model? Another output can be named with METRIC@OUTPUT."
        limit = f"0..{classes - 1}, the classes of output {output.name!r}" if classes else "0 and up"
        raise DataError(f"label {labels[sample]} of sample {sample} is outside {limit}", where=origin, hint=hint)


def _error(name: str, kind: str, output: TensorSpec, dataset: Dataset) -> OutputError:
    return OutputError(
        name=name,
        squared=kind == "mse",
        output=output.name,
        versus_float=not _is_target(dataset.labels, output),
    )


def _is_target(labels: Array | None, output: TensorSpec) -> bool:
    """Whether the labels are values the output should have: numbers of the output's own shape, axes of 1 aside."""
    if labels is None or labels.dtype.kind not in "iuf":
        return False
    have = [size for size in labels.shape[1:] if size != 1]
    want = [size for size in output.shape[1:] if size != 1]
    return len(have) == len(want) and all(isinstance(w, str) or w == h for w, h in zip(want, have, strict=True))


def _output(name: str, wanted: str, outputs: Sequence[TensorSpec]) -> TensorSpec:
    known = [output.name for output in outputs]
    if wanted:
        for output in outputs:
            if output.name == wanted:
                return output
        raise DataError(f"the metric {name!r} names no output of the model", hint=did_you_mean(wanted, known))
    if len(outputs) > 1:
        raise DataError(
            f"which output is the metric {name!r} for? The model has {', '.join(map(repr, known))}",
            hint=f"Write {name}@{known[0]}.",
        )
    return outputs[0]


@dataclass(frozen=True)
class _Fit:
    metric: str
    output: TensorSpec


def _defaults(dataset: Dataset, outputs: Sequence[TensorSpec]) -> list[str]:
    if dataset.labels is None:
        return ["snr"]
    fits = [fit for output in outputs if (fit := _fitting(dataset, output)) is not None]
    if not fits:
        raise DataError(
            f"labels of {list(dataset.labels.shape)} {dataset.labels.dtype.name} fit none of the model's outputs",
            where=dataset.origin,
            hint=f"Name a metric. {FORMS}",
        )
    if len(fits) > 1:
        options = ", ".join(f"{fit.metric}@{fit.output.name}" for fit in fits)
        raise DataError(f"the labels fit several outputs: {options}", hint="Name the metric.")
    name = fits[0].metric
    return [f"{name}@{fits[0].output.name}" if len(outputs) > 1 else name, "snr"]


def _fitting(dataset: Dataset, output: TensorSpec) -> _Fit | None:
    labels = dataset.labels
    if labels is None:
        return None
    rest = [size for size in output.shape[1:] if size != 1]
    numbers = _kind(output) in {"i", "u"} and not rest
    if labels.ndim == 1 and labels.dtype.kind in "iub" and (len(rest) == 1 or numbers):
        return _Fit("top1", output)
    return _Fit("mae", output) if _is_target(labels, output) else None


def _kind(output: TensorSpec) -> str:
    """numpy's kind character; floats numpy does not know (bfloat16) count as floats."""
    try:
        return np.dtype(output.dtype).kind
    except TypeError:
        return "f" if "float" in output.dtype else "O"


def _unknown_hint(kind: str) -> str:
    near = near_hint(kind, BUILTIN)
    if near:
        return near
    if is_callable_spec(kind.replace(".", ":", 1)):
        return f"A function is written module:function:max. {FORMS}"
    return FORMS
