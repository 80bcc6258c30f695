"""How a search went on: the latency of each candidate in the order of trials, and the fastest so far."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.report import svg, wording
from harness.report.data import BoardSection, Entry
from harness.report.markup import Markup
from harness.report.plots import LOW, watermark

LEAST = 5
"""Candidates; of fewer the tables say as much."""


def fastest_so_far(entries: Sequence[Entry]) -> tuple[list[int], list[float]]:
    """Trials that beat all before them among those that keep the constraints, and their median latencies in ms."""
    trials: list[int] = []
    best: list[float] = []
    for entry in sorted(entries, key=lambda entry: entry.trial):
        if entry.broken or entry.result.latency_ns is None:
            continue
        latency = entry.result.latency_ns.p50 / 1e6
        if not best or latency < best[-1]:
            trials.append(entry.trial)
            best.append(latency)
    return trials, best


def history(board: BoardSection) -> Markup | None:
    """``None`` for fewer than :data:`LEAST` candidates."""
    points = [entry for entry in board.candidates if entry.result.latency_ns is not None]
    if len(points) < LEAST:
        return None
    kept, broken = ([e for e in points if bool(e.broken) is outcome] for outcome in (False, True))
    trials, best = fastest_so_far(points)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for entries, colour, marker in ((kept, svg.ACCENT, "o"), (broken, svg.MUTED, "x")):
            times = [e.result.latency_ns.p50 / 1e6 for e in entries if e.result.latency_ns is not None]
            axes.scatter([e.trial for e in entries], times, color=colour, marker=marker, s=22)
        if trials:
            last = max(entry.trial for entry in points)
            axes.step([*trials, last], [*best, best[-1]], where="post", color=svg.ACCENT, linewidth=1.2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("trial")
        axes.set_ylabel("latency, ms (lower is better)")
        axes.margins(x=0.03, y=0.12)
        watermark(axes, board.emulated)

    return svg.figure_svg(
        f"history-{board.key}",
        LOW,
        draw,
        title=f"Latency of {wording.count(len(points), 'candidate')} by trial on {board.name}"
        f"{', emulated' if board.emulated else ''}; the fastest that keeps the constraints is "
        f"{wording.trial_name(trials[-1]) if trials else 'none'}",
    )
