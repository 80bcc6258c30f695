"""Splits the evaluation samples: one part to search on, the other to report on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.errors import DataError

Rows = npt.NDArray[np.int64]


def split_rows(labels: npt.NDArray[np.generic] | None, n: int, seed: int, fraction: float = 0.5) -> tuple[Rows, Rows]:
    """Disjoint (search, report) rows of 0..n-1, together all of them, each ascending.

    Seeded. Stratified by class where ``labels`` are class numbers [n]: each class gives ``fraction`` of its rows to the
    search part, rounded so that the total is right (largest remainder), and a class of two or more is in both parts.
    Raises :class:`DataError` below two samples, ``ValueError`` for a fraction outside 0..1.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}; it must be between 0 and 1")
    if n < 2:
        raise DataError(
            f"{n} evaluation sample(s) cannot be split into one part to search on and one to report on",
            hint="Give at least 2.",
        )
    generator = np.random.default_rng(seed)
    groups = [generator.permutation(rows) for rows in _strata(labels, n)]
    counts = _search_counts([len(rows) for rows in groups], n, fraction)
    search = np.concatenate([rows[:count] for rows, count in zip(groups, counts, strict=True)])
    report = np.concatenate([rows[count:] for rows, count in zip(groups, counts, strict=True)])
    return np.sort(search).astype(np.int64), np.sort(report).astype(np.int64)


def _strata(labels: npt.NDArray[np.generic] | None, n: int) -> list[Rows]:
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iubUS":
        return [np.arange(n, dtype=np.int64)]
    if len(labels) != n:
        raise DataError(f"{n} samples but {len(labels)} labels")
    _, member = np.unique(labels, return_inverse=True)
    order = np.argsort(member, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(np.bincount(member))[:-1])


def _search_counts(sizes: list[int], n: int, fraction: float) -> list[int]:
    """Rows each stratum gives to the search part; both parts are non-empty."""
    lowest = [1 if size > 1 else 0 for size in sizes]
    highest = [size - 1 if size > 1 else size for size in sizes]
    exact = [size * fraction for size in sizes]
    counts = [min(high, max(low, int(share))) for share, low, high in zip(exact, lowest, highest, strict=True)]
    total = min(n - 1, max(1, round(n * fraction)))
    # The strata furthest below their exact share are rounded up first; ties go to the lower class.
    for _ in range(n):
        gap = total - sum(counts)
        if gap == 0:
            break
        step = 1 if gap > 0 else -1
        room = [i for i in range(len(sizes)) if lowest[i] <= counts[i] + step <= highest[i]]
        if not room:
            break
        chosen = max(room, key=lambda i: (step * (exact[i] - counts[i]), -i))
        counts[chosen] += step
    return counts
