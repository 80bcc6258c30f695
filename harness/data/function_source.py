"""Samples from a function of the user's: ``module:function`` that gives batches."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.data.callables import load_callable
from harness.data.dataset import LABELS
from harness.data.npz import check_names, refuse_objects
from harness.data.stored import Array, Stored, memory_limit_bytes
from harness.errors import DataError
from harness.tensors import TensorSpec

MAX_SAMPLES = 10_000
"""More are not taken from a function, which may never end."""

_log = logging.getLogger(__name__)


def read_function(spec: str, inputs: Sequence[TensorSpec], limit: int = MAX_SAMPLES) -> Stored:
    """Calls ``module:function`` (or takes the iterable of that name) and gathers its batches up to ``limit`` samples.

    A batch is a mapping of arrays [batch, ...] by input name, with ``labels`` if there are any; or a pair
    (inputs, labels) whose first part is such a mapping, or the array itself for a model of one input; or, for a model
    of one input, that array alone. Raises :class:`DataError`.
    """
    names = [each.name for each in inputs]
    gathered: dict[str, list[Array]] = {}
    count, cut, used, memory = 0, False, 0, memory_limit_bytes()
    for number, batch in enumerate(_batches(spec)):
        arrays = _batch_arrays(batch, names, f"{spec}, batch {number}")
        if gathered and arrays.keys() != gathered.keys():
            raise DataError(f"batch {number} has {sorted(arrays)}, those before had {sorted(gathered)}", where=spec)
        size = min(len(a) for a in arrays.values())
        if size == 0 or size != max(len(a) for a in arrays.values()):
            lengths = {name: len(array) for name, array in arrays.items()}
            raise DataError(f"batch {number} has no or unequal numbers of samples: {lengths}", where=spec)
        take = min(size, limit - count)
        for name, array in arrays.items():
            before = gathered.setdefault(name, [])
            if before and before[0].shape[1:] != array.shape[1:]:
                raise DataError(
                    f"batch {number}: samples of {name!r} are {list(array.shape[1:])}, those before "
                    f"{list(before[0].shape[1:])}",
                    where=spec,
                )
            before.append(array[:take])
            used += before[-1].nbytes
        count += take
        if used > memory:
            raise DataError(f"the first {count} samples already need {used / 2**30:.1f} GiB", where=spec)
        if count >= limit:
            cut = True
            break
    if not gathered:
        raise DataError("the function gave no batch", where=spec)
    joined = {name: np.concatenate(parts) for name, parts in gathered.items()}
    labels = joined.pop(LABELS) if LABELS not in names and LABELS in joined else None
    notice = (f"{spec}: the first {limit} samples were taken",) if cut else ()
    return Stored(joined, labels, notice)


def _batches(spec: str) -> Iterable[Any]:
    source = load_callable(spec)
    try:
        made = source() if callable(source) else source
        if isinstance(made, Mapping | tuple) or not isinstance(made, Iterable):
            # One batch instead of many: a plain dict or an (inputs, labels) pair.
            made = [made]
        yield from itertools.chain(made)
    except DataError:
        raise
    except Exception as error:
        _log.debug("%s failed", spec, exc_info=True)
        raise DataError(f"the function failed: {type(error).__name__}: {error}", where=spec) from error


def _batch_arrays(batch: Any, names: Sequence[str], where: str) -> dict[str, Array]:
    labels: Any = None
    if isinstance(batch, tuple | list) and len(batch) == 2:
        batch, labels = batch
    if isinstance(batch, Mapping):
        found = {str(name): value for name, value in batch.items()}
    elif len(names) == 1:
        found = {names[0]: batch}
    else:
        raise DataError(
            f"a batch of type {type(batch).__name__} for a model of {len(names)} inputs",
            where=where,
            hint=f"Give a dict with {', '.join(map(repr, names))}.",
        )
    if labels is not None:
        found[LABELS] = labels
    check_names(list(found), names, where)
    arrays = {}
    for name in (*names, LABELS):
        if name in found and (name in names or found[name] is not None):
            try:
                array = np.asarray(found[name])
            except (ValueError, TypeError) as error:
                raise DataError(f"{name!r} is not an array: {error}", where=where) from None
            refuse_objects(array.dtype, name, where)
            if array.ndim == 0:
                raise DataError(f"{name!r} is a single number, not [samples, ...]", where=where)
            arrays[name] = array
    return arrays
