"""Pareto sets and hypervolume; lower is better in every objective.

Points are tuples of equal length without NaN; equal points do not dominate each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Point = tuple[float, ...]


def dominates(a: Point, b: Point) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def pareto_set(points: Sequence[Point], among: Iterable[int] | None = None) -> list[int]:
    """Indices of the points no other dominates, ascending; of those ``among``, if given."""
    front: list[int] = []
    # A dominating point sorts before what it dominates, so each needs comparing with the set so far only.
    for i in sorted(range(len(points)) if among is None else among, key=lambda i: points[i]):
        if not any(dominates(points[j], points[i]) for j in front):
            front.append(i)
    return sorted(front)


def fronts(points: Sequence[Point]) -> Iterator[list[int]]:
    """Indices of the Pareto set, of the Pareto set without it, and so on."""
    left = set(range(len(points)))
    while left:
        front = pareto_set(points, left)
        yield front
        left.difference_update(front)


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """Volume dominated by the points up to the reference, by slicing along the last objective.

    Exact for any number of objectives; the cost grows fast with it, two or three are meant.
    """
    inside = sorted({p for p in points if all(x < r for x, r in zip(p, reference, strict=True))}, key=lambda p: p[-1])
    if not inside:
        return 0.0
    if len(reference) == 1:
        return reference[0] - inside[0][0]
    total = 0.0
    for i, point in enumerate(inside):
        upper = inside[i + 1][-1] if i + 1 < len(inside) else reference[-1]
        if upper > point[-1]:
            total += (upper - point[-1]) * hypervolume([p[:-1] for p in inside[: i + 1]], reference[:-1])
    return total


def normalised(points: Sequence[Point], least: Sequence[float] = ()) -> list[Point]:
    """Each objective stretched to 0..1 over the points; 0 where all are equal. ``least``: spans that are taken as no
    shorter than these, by objective."""
    lows = [min(column) for column in zip(*points, strict=True)]
    spans = [max(column) - low for column, low in zip(zip(*points, strict=True), lows, strict=True)]
    if least:
        spans = [max(span, shortest) for span, shortest in zip(spans, least, strict=True)]
    return [
        tuple((x - low) / span if span > 0 else 0.0 for x, low, span in zip(p, lows, spans, strict=True))
        for p in points
    ]


def greedy_hypervolume(points: Sequence[Point], k: int, reference: Point | None = None) -> list[int]:
    """Indices of up to k points, each the one that adds most volume to those before it; ties go to the lower index.

    Greedy choice reaches at least 1 - 1/e of the best volume, as hypervolume is submodular (Nemhauser et al. 1978).
    ``reference`` defaults to 1.1 in every objective, for normalised points.
    """
    if not points:
        return []
    reference = reference or (1.1,) * len(points[0])
    chosen: list[int] = []
    while len(chosen) < min(k, len(points)):
        volumes = {
            i: hypervolume([points[j] for j in (*chosen, i)], reference) for i in range(len(points)) if i not in chosen
        }
        best = max(volumes.values())
        chosen.append(min(i for i, volume in volumes.items() if volume >= best))
    return chosen
