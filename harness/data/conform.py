"""Stored arrays to what the model takes: preprocessing, dtypes, shapes, finiteness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.data.dataset import LABELS, Dataset
from harness.data.preprocess import Preprocess, suggest
from harness.data.stored import Array, Stored, check_fits
from harness.errors import ConfigError, DataError
from harness.tensors import TensorSpec

_CHUNK = 32 << 20


def conform(
    stored: Stored, inputs: Sequence[TensorSpec], preprocess: Preprocess | None, origin: str, *, whole: bool = False
) -> Dataset:
    """Preprocesses and checks; the result fits the model.

    Arrays may hold whole inputs, with one axis more than the input: with a first axis of 1 that one is dropped; others
    are taken with ``whole`` only, and then for every input. Raises :class:`DataError`.
    """
    _check_counts(stored, origin)
    stored = _without_ones(stored, inputs)
    if whole and preprocess is None and all(_is_whole(stored.arrays[spec.name], spec) for spec in inputs):
        return _whole(stored, inputs, origin)
    arrays, raw = dict(stored.arrays), None
    declared: frozenset[str] = frozenset()
    if preprocess is not None:
        _check_memory(stored, inputs, origin)
        try:
            declared = frozenset(preprocess.by_input(inputs))
            raw_arrays, ready = preprocess.apply(arrays, inputs)
        except ConfigError as error:
            raise DataError(error.message, hint=error.hint, where=error.where or origin) from None
        arrays, raw = dict(ready), raw_arrays
    notices = list(stored.notices)
    sizes: dict[str, tuple[int, str]] = {}
    for spec in inputs:
        array = arrays[spec.name]
        _check_shape(array, spec, origin, stored.arrays[spec.name], spec.name in declared, sizes)
        arrays[spec.name], notice = _cast(array, spec, origin)
        notices += notice
        check_finite(arrays[spec.name], spec.name, origin)
    return Dataset(inputs=arrays, raw=raw, labels=_labels(stored.labels, origin), origin=origin, notices=tuple(notices))


def _is_whole(array: Array, spec: TensorSpec) -> bool:
    """Whether each element is all that the model takes at a time."""
    return array.ndim == len(spec.shape) + 1 and all(
        isinstance(want, str) or want == have for want, have in zip(spec.shape, array.shape[1:], strict=True)
    )


def _without_ones(stored: Stored, inputs: Sequence[TensorSpec]) -> Stored:
    arrays = dict(stored.arrays)
    for spec in inputs:
        array = arrays[spec.name]
        if spec.shape[:1] == (1,) and _is_whole(array, spec):
            arrays[spec.name] = array[:, 0]
    return replace(stored, arrays=arrays)


def _whole(stored: Stored, inputs: Sequence[TensorSpec], origin: str) -> Dataset:
    arrays, notices = dict(stored.arrays), list(stored.notices)
    for spec in inputs:
        arrays[spec.name], notice = _cast(arrays[spec.name], spec, origin)
        notices += notice
        check_finite(arrays[spec.name], spec.name, origin)
    return Dataset(
        inputs=arrays, raw=None, labels=_labels(stored.labels, origin), origin=origin, notices=tuple(notices)
    )


def check_finite(array: Array, name: str, origin: str) -> None:
    """Raises :class:`DataError` naming the first sample with NaN or infinity."""
    if array.dtype.kind not in "fc":
        return
    step = max(1, _CHUNK // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        finite = np.isfinite(array[start : start + step].reshape(min(step, len(array) - start), -1)).all(axis=1)
        if not finite.all():
            first = start + int(np.argmin(finite))
            values = array[first]
            kind = "NaN" if np.isnan(values).any() else "infinity"
            raise DataError(
                f"{name!r} has {kind} in sample {first}",
                where=origin,
                hint="Remove or repair these samples.",
            )


def _check_counts(stored: Stored, origin: str) -> None:
    for name, array in (*stored.arrays.items(), *([(LABELS, stored.labels)] if stored.labels is not None else [])):
        if array.ndim == 0:
            raise DataError(f"array {name!r} has no sample axis", where=origin)
        if len(array) == 0:
            raise DataError(f"array {name!r} is empty", where=origin, hint="Give at least one sample on axis 0.")
    counts = {name: len(array) for name, array in stored.arrays.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name!r} has {n}" for name, n in counts.items())
        raise DataError(f"the inputs have different numbers of samples: {found}", where=origin)
    samples = next(iter(counts.values()))
    if stored.labels is not None and len(stored.labels) != samples:
        raise DataError(
            f"{samples} samples but {len(stored.labels)} labels",
            where=origin,
            hint="Give one label per sample, in the same order.",
        )


def _check_memory(stored: Stored, inputs: Sequence[TensorSpec], origin: str) -> None:
    for spec in inputs:
        rest = tuple(n for n in spec.shape[1:] if isinstance(n, int))
        if len(rest) == len(spec.shape) - 1:
            shape = (len(stored.arrays[spec.name]), *rest)
            check_fits(shape, np.dtype(spec.dtype), f"input {spec.name!r} after preprocessing", origin)


def _check_shape(
    array: Array,
    spec: TensorSpec,
    origin: str,
    stored: Array,
    preprocessed: bool,
    sizes: dict[str, tuple[int, str]],
) -> None:
    expected = spec.shape[1:]
    fits = array.ndim == len(spec.shape) and all(
        isinstance(want, str) or want == have for want, have in zip(expected, array.shape[1:], strict=False)
    )
    if not fits:
        after = " after preprocessing" if preprocessed else ""
        hint = "Bring the samples to this shape."
        if _is_whole(array, spec):
            hint = (
                "These are whole inputs, which quantize, audit and sensitivity take if every input comes so; other "
                "commands count samples on an input's first axis."
            )
            raise DataError(
                f"input {spec.name!r}: expected {_shape(('samples', *expected))}, found {_shape(array.shape)}",
                where=origin,
                hint=hint,
            )
        if preprocessed:
            hint = "Change size or layout in the preprocessing."
        elif len(spec.shape) >= 3 and array.ndim >= 3:
            example = suggest(spec, stored.shape[1:])
            hint = f"Declare how images become inputs, with --preprocess FILE and in it:\n{example}"
        raise DataError(
            f"input {spec.name!r}: expected {_shape(('samples', *expected))}, found {_shape(array.shape)}{after}",
            where=origin,
            hint=hint,
        )
    for want, have in zip(expected, array.shape[1:], strict=True):
        if isinstance(want, str) and want:
            size, other = sizes.setdefault(want, (have, spec.name))
            if size != have:
                raise DataError(
                    f"dimension {want!r} is {have} in input {spec.name!r} and {size} in {other!r}", where=origin
                )


def _cast(array: Array, spec: TensorSpec, origin: str) -> tuple[Array, list[str]]:
    """To the input's dtype, only where nothing is lost unsaid: exact casts, and float to float with a notice."""
    try:
        want = np.dtype(spec.dtype)
    except TypeError:
        raise DataError(
            f"input {spec.name!r} has dtype {spec.dtype}, which data cannot be given for", where=origin
        ) from None
    have = array.dtype
    if have == want:
        return array, []
    if have.newbyteorder("=") == want:
        return array.astype(want), []
    if have.kind == want.kind == "f":
        with np.errstate(over="ignore"):
            cast = array.astype(want)
        if want.itemsize < have.itemsize:
            lost = np.isfinite(array) & ~np.isfinite(cast)
            if lost.any():
                raise DataError(
                    f"input {spec.name!r}: sample {int(np.argwhere(lost)[0][0])} has values beyond {want.name}",
                    where=origin,
                )
            return cast, [f"input {spec.name!r}: {have.name} was rounded to {want.name}"]
        return cast, []
    if have.kind in "iub" and want.kind in "iu":
        limits = np.iinfo(want)
        low, high = int(array.min()), int(array.max())
        if limits.min <= low and high <= limits.max:
            return array.astype(want), []
        raise DataError(f"input {spec.name!r}: values {low}..{high} do not fit {want.name}", where=origin)
    hint = f"Store it as {want.name}."
    if have.kind in "iu" and want.kind == "f":
        hint = (
            "How these numbers become inputs must be declared, with --preprocess FILE and in it, for example:\n"
            + suggest(spec, array.shape[1:])
        )
    raise DataError(f"input {spec.name!r}: expected {want.name}, found {have.name}", where=origin, hint=hint)


def _labels(labels: Array | None, origin: str) -> Array | None:
    if labels is None:
        return None
    if labels.dtype.hasobject or labels.dtype.kind not in "biufUS":
        raise DataError(f"labels have dtype {labels.dtype}", where=origin, hint="Give numbers or text.")
    check_finite(labels, LABELS, origin)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    return labels.astype(labels.dtype.newbyteorder("="), copy=True)


def _shape(shape: Sequence[Any]) -> str:
    return "[" + ", ".join(str(n) for n in shape) + "]"
