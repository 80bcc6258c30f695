"""The figures of a board's section. Each returns ``None`` where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from harness.report import svg, wording
from harness.report.data import BoardSection, Distribution, Entry
from harness.report.markup import Markup
from harness.units import signed

WIDE = (12.4, 4.8)
MIDDLE = (12.4, 3.9)
LOW = (12.4, 3.0)
"""Inches; the page scales them to its width."""

Box = tuple[float, float, float, float]
"""left, bottom, right, top"""


def pareto(board: BoardSection, metric: str, units: Mapping[str, str], limit_ns: float | None = None) -> Markup | None:
    """Latency against a metric, both with their 95 % intervals; ``limit_ns``: the latency constraint."""
    points = [e for e in board.candidates if e.result.latency_ns is not None and metric in e.result.metrics]
    if not points:
        return None
    unit = wording.metric_unit(metric, dict(units))
    scale = 100.0 if unit == "fraction" else 1.0

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        low, high = _focus(points, metric, scale)
        for entry in points:
            if low <= _place(entry, metric, scale)[2] <= high:
                _point(axes, entry, metric, scale)
        _front(axes, points, metric, scale)
        if limit_ns is not None:
            axes.axvline(limit_ns / 1e6, color=svg.BAD, linewidth=1, linestyle=(0, (4, 3)))
        medians = [e.result.latency_ns.p50 / 1e6 for e in points if e.result.latency_ns]
        _latency_axis(axes, medians, " (lower is better)")
        higher = points[0].result.metrics[metric].higher_is_better
        better = "higher" if higher else "lower"
        shown_unit = ", %" if unit == "fraction" else f", {unit}" if unit else ""
        axes.set_ylabel(f"{wording.metric_name(metric)}{shown_unit} ({better} is better)")
        axes.margins(x=0.08, y=0.12)
        _edge_points(axes, [e for e in points if not low <= _place(e, metric, scale)[2] <= high], metric, scale)
        _name_points(figure, axes, points, metric, scale)
        watermark(axes, board.emulated)

    return svg.figure_svg(
        f"pareto-{board.key}",
        WIDE,
        draw,
        title=f"Latency against {wording.metric_name(metric)} of {wording.count(len(points), 'candidate')} on "
        f"{board.name}{', emulated' if board.emulated else ''}; the picks are "
        f"{', '.join(wording.trial_name(e.trial) for e in board.picks) or 'none'}",
    )


def distributions(board: BoardSection) -> Markup | None:
    """Cumulative distribution of the raw samples, and their spread around their own median."""
    shown = board.distributions
    if not shown:
        return None
    colours = series_colours(shown)

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[3, 2])
        for item, colour in zip(shown, colours, strict=True):
            values, shares = _cumulative(item.samples_ns)
            left.step(values, shares, where="post", color=colour, linewidth=1.6)
        _latency_axis(left, [float(v) / 1e6 for d in shown for v in np.quantile(d.samples_ns, (0.02, 0.98))])
        _cut_tail(left, shown)
        left.set_ylabel("share of inferences at most this slow")
        left.set_ylim(0, 1.02)
        left.set_title("All samples")
        _spread(right, shown, colours)
        watermark(left, board.emulated)

    names = ", ".join("float" if d.is_float else wording.trial_name(d.trial) for d in shown)
    return svg.figure_svg(
        f"spread-{board.key}",
        MIDDLE,
        draw,
        title=f"Distribution of the latency samples of {names} on {board.name}{', emulated' if board.emulated else ''}",
    )


def canary_drift(board: BoardSection) -> Markup | None:
    """Canary block medians over the run, relative to their median: how steady the board was."""
    blocks = board.canary
    if len(blocks) < 2:
        return None
    middle = median(block.median_ns for block in blocks)
    relative = [100 * (block.median_ns / middle - 1) for block in blocks]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.axhline(0, color=svg.MUTED, linewidth=0.8)
        spans = _spans([(b.phase, b.trial) for b in blocks])
        stride = -(-len(spans) // 20)  # so that the names do not run into each other
        for index, (start, stop, even) in enumerate(spans):
            if even:
                axes.axvspan(start - 0.5, stop - 0.5, color=svg.GRID, alpha=0.5, linewidth=0)
            phase, trial = blocks[start].phase, blocks[start].trial
            label = wording.trial_name(trial) + ("*" if phase == "final" else "")
            above = axes.get_xaxis_transform()
            if index % stride:
                continue
            axes.text((start + stop - 1) / 2, 1.02, label, transform=above, ha="center", fontsize=8, color=svg.MUTED)
        axes.plot(range(len(blocks)), relative, color=svg.ACCENT, linewidth=1, marker="o", markersize=2.6)
        spread = max(2.0, 1.15 * max(abs(value) for value in relative))
        digits = 0 if spread > 3 else 1
        axes.set_ylim(-spread, spread)
        axes.set_xlim(-0.5, len(blocks) - 0.5)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{signed(value, digits)} %"))
        axes.set_ylabel("canary, from its median")
        axes.set_xlabel("canary blocks by trial (* = finals)")
        axes.set_xticks([])
        axes.grid(False, axis="x")
        _temperature(axes, board)
        watermark(axes, board.emulated, below=True)

    return svg.figure_svg(
        f"canary-{board.key}",
        LOW,
        draw,
        title=f"Canary latency over the run on {board.name}{', emulated' if board.emulated else ''}: between "
        f"{signed(min(relative), 1)} % and {signed(max(relative), 1)} % of its median",
    )


def series_colours(shown: Sequence[Distribution]) -> list[str]:
    """Float has its own colour, picks take the series' in order."""
    colours, used = [], 0
    for item in shown:
        colours.append(svg.FLOAT if item.is_float else svg.SERIES[used % len(svg.SERIES)])
        used += not item.is_float
    return colours


def _point(axes: Axes, entry: Entry, metric: str, scale: float) -> None:
    x, (x_low, x_high), y, (y_low, y_high) = _place(entry, metric, scale)
    colour, marker, size, filled, order = _mark(entry)
    axes.errorbar(
        [x],
        [y],
        xerr=[[max(x - x_low, 0)], [max(x_high - x, 0)]],
        yerr=[[max(y - y_low, 0)], [max(y_high - y, 0)]],
        fmt=marker,
        markersize=size,
        color=colour,
        markerfacecolor=colour if filled else svg.PAPER,
        markeredgewidth=1.4,
        elinewidth=1.1,
        capsize=2,
        zorder=order,
    )


def _mark(entry: Entry) -> tuple[str, str, float, bool, int]:
    """colour, marker, size, filled, drawing order"""
    if entry.rank is not None:
        return (svg.FLOAT if entry.is_float else svg.ACCENT), "o", 8.5, True, 5
    if entry.is_float:
        return svg.FLOAT, "s", 7, True, 4
    if entry.broken or entry.result.verdict == "invalid":
        return svg.BAD, "x", 6, True, 2
    if "undecided" in entry.result.constraints.values():
        return svg.WARN, "D", 5.5, False, 3
    return svg.MUTED, "o", 5.5, False, 3


def _place(entry: Entry, metric: str, scale: float) -> tuple[float, tuple[float, float], float, tuple[float, float]]:
    """x and its interval in ms, y and its interval; the metric's bars are those of the paired difference to float."""
    latency, score = entry.result.latency_ns, entry.result.metrics[metric]
    if latency is None:
        raise ValueError(f"trial {entry.trial} has no latency to place")
    y = score.value * scale
    if score.ci95 is None or entry.is_float:
        bars = (y, y)
    elif score.difference is None:  # compared with float already: the interval is the value's own
        bars = (score.ci95[0] * scale, score.ci95[1] * scale)
    else:
        bars = (y + (score.ci95[0] - score.difference) * scale, y + (score.ci95[1] - score.difference) * scale)
    return latency.p50 / 1e6, (latency.ci95[0] / 1e6, latency.ci95[1] / 1e6), y, bars


def _front(axes: Axes, points: Sequence[Entry], metric: str, scale: float) -> None:
    """Staircase through the candidates that keep the constraints and that none other beats on both."""
    higher = points[0].result.metrics[metric].higher_is_better
    kept = sorted(
        (_place(e, metric, scale)[0], _place(e, metric, scale)[2])
        for e in points
        if not e.broken and e.result.verdict != "invalid"
    )
    front: list[tuple[float, float]] = []
    for x, y in kept:
        if not front or (y > front[-1][1] if higher else y < front[-1][1]):
            front.append((x, y))
    if len(front) > 1:
        xs, ys = zip(*front, strict=True)
        axes.step(xs, ys, where="post", color=svg.ACCENT, linewidth=1.2, alpha=0.45, zorder=1)


def _name_points(figure: Figure, axes: Axes, points: Sequence[Entry], metric: str, scale: float) -> None:
    """Names beside picks and float, each at the nearest place where it covers no mark and no other name."""
    named = sorted((e for e in points if e.rank is not None or e.is_float), key=lambda e: e.rank or 0)
    figure.draw_without_rendering()  # places in points are known only after the layout
    to_points = 72 / figure.dpi
    spots = [axes.transData.transform(_place(e, metric, scale)[::2]) * to_points for e in points]
    taken = [(float(x) - 6, float(y) - 6, float(x) + 6, float(y) + 6) for x, y in spots]
    for entry in named:
        name = wording.trial_name(entry.trial)
        label = f"float {name}" if entry.is_float else name
        label = f"{label} · pick {entry.rank}" if entry.rank is not None else label
        place = _place(entry, metric, scale)[::2]
        x, y = (float(v) for v in axes.transData.transform(place) * to_points)
        box, side, up = _free_place(x, y, 5.6 * len(label), taken)
        taken.append(box)
        axes.annotate(
            label,
            place,
            xytext=(16 * side, up),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=9,
            fontweight="bold" if entry.rank == 1 else "normal",
            color=svg.INK,
            zorder=6,
            arrowprops={"arrowstyle": "-", "color": svg.MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 5},
        )


def _free_place(x: float, y: float, width: float, taken: Sequence[Box]) -> tuple[Box, int, float]:
    """A box of ``width`` by 12 points beside (x, y), its side (1 right, -1 left) and how far up it is."""
    choices = [(up, side) for step in range(12) for up in (3.0 + 11 * step, -8.0 - 11 * step) for side in (1, -1)]
    for up, side in choices:
        near = x + 14 * side
        left = near if side > 0 else near - width
        box = (left, y + up - 6, left + width, y + up + 6)
        if not any(box[0] < t[2] and t[0] < box[2] and box[1] < t[3] and t[1] < box[3] for t in taken):
            return box, side, up
    return (x, y, x, y), 1, 3.0


def _focus(points: Sequence[Entry], metric: str, scale: float) -> tuple[float, float]:
    """Range of the metric to draw: what keeps the constraints and float, and as much again on either side."""
    kept = [e for e in points if not e.broken or e.is_float] or list(points)
    bars = [bound for e in kept for bound in _place(e, metric, scale)[3]]
    reach = max(bars) - min(bars)
    return (min(bars) - reach, max(bars) + reach) if reach > 0 else (-np.inf, np.inf)


def _edge_points(axes: Axes, outside: Sequence[Entry], metric: str, scale: float) -> None:
    """Marks at the edge for candidates off the scale, each with its value."""
    middle = sum(axes.get_ylim()) / 2
    across = axes.get_xaxis_transform()
    for row, entry in enumerate(sorted(outside, key=lambda e: _place(e, metric, scale)[2])):
        x, _, y, _ = _place(entry, metric, scale)
        low = y < middle
        height = 0.03 + 0.055 * row if low else 0.97 - 0.055 * row
        axes.plot([x], [height], "v" if low else "^", color=svg.BAD, markersize=6, transform=across)
        note = f"{wording.trial_name(entry.trial)}: {y:.3g}"
        axes.annotate(note, (x, height), xycoords=across, xytext=(8, 0), textcoords="offset points", va="center",
                      fontsize=8.5, color=svg.BAD)  # fmt: skip


def _cut_tail(axes: Axes, shown: Sequence[Distribution]) -> None:
    """Ends the axis a little beyond the slowest model's 99th percentile, and says how far the samples go."""
    end = 1.3 * max(float(np.quantile(d.samples_ns, 0.99)) for d in shown) / 1e6
    slowest = max(float(d.samples_ns.max()) for d in shown)
    if slowest / 1e6 > end:
        axes.set_xlim(right=end)
        note = f"slowest: {wording.latency(slowest)} \N{RIGHTWARDS ARROW}"
        axes.text(0.99, 0.9, note, transform=axes.transAxes, ha="right", fontsize=8.5, color=svg.MUTED)


def _cumulative(samples_ns: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Milliseconds and shares of the empirical distribution; at most 401 steps, both ends always among them."""
    values = np.sort(samples_ns) / 1e6
    kept = np.unique(np.linspace(0, len(values) - 1, min(len(values), 401)).round().astype(np.int64))
    return values[kept], (kept + 1) / len(values)


def _spread(axes: Axes, shown: Sequence[Distribution], colours: Sequence[str]) -> None:
    parts = [100 * (d.samples_ns / np.median(d.samples_ns) - 1) for d in shown]
    # A rare stall of a shared machine must not squeeze everything else into a line.
    reach = max(2.0, *(min(3 * float(np.quantile(np.abs(p), 0.75)), float(np.abs(p).max())) for p in parts))
    rows = list(range(len(shown), 0, -1))
    for row, values, colour in zip(rows, parts, colours, strict=True):
        counts, edges = np.histogram(np.clip(values, -reach, reach), bins=60, range=(-reach, reach))
        height = 0.42 * np.repeat(counts / counts.max(), 2)
        across = np.repeat(edges, 2)[1:-1]
        axes.fill_between(across, row - height, row + height, color=colour, alpha=0.3, linewidth=0)
        low, high = np.quantile(values, (0.25, 0.75))
        axes.plot([max(low, -reach), min(high, reach)], [row, row], color=colour, linewidth=3.5, solid_capstyle="round")
        axes.plot([0], [row], "o", color=svg.PAPER, markeredgecolor=colour, markersize=4)
    axes.set_yticks(rows, ["float" if d.is_float else wording.trial_name(d.trial) for d in shown])
    axes.set_xlim(-reach * 1.05, reach * 1.05)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{signed(value, 0)} %"))
    axes.set_xlabel("from the own median")
    axes.set_title("Spread")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)


def _temperature(axes: Axes, board: BoardSection) -> None:
    values = [b.temperature_c for b in board.canary]
    if all(value is None for value in values):
        return
    other = axes.twinx()
    shown = [np.nan if value is None else value for value in values]
    other.plot(range(len(values)), shown, color=svg.WARN, linewidth=1, linestyle=(0, (5, 2)), alpha=0.9)
    other.set_ylabel("board, °C", color=svg.WARN)
    other.tick_params(axis="y", labelcolor=svg.WARN, color=svg.WARN)
    other.yaxis.set_major_locator(MaxNLocator(4))
    other.grid(False)
    known = [value for value in values if value is not None]
    # In the upper part and over at least a few degrees, so that it does not lie on the canary's own line.
    span = max(max(known) - min(known), 3.0)
    other.set_ylim(max(known) - 4 * span, max(known) + span / 3)


def _latency_axis(axes: Axes, values_ms: Sequence[float], note: str = "") -> None:
    """Logarithmic where the values span more than a factor of four; shows microseconds where they suit better."""
    if min(values_ms) > 0 and max(values_ms) / min(values_ms) > 4:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    small = median(values_ms) < 1
    factor = 1000 if small else 1
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{factor * value:.6g}"))
    axes.set_xlabel(f"latency, {'µs' if small else 'ms'}{note}")


def watermark(axes: Axes, emulated: bool, *, below: bool = False) -> None:
    """Outside the axes, where no data is: at the upper right, or ``below`` them."""
    if emulated:
        height, side = (-0.03, "top") if below else (1.01, "bottom")
        axes.text(1.0, height, "EMULATED", transform=axes.transAxes, ha="right", va=side, fontsize=11,
                  fontweight="bold", color=svg.WARN)  # fmt: skip


def _spans(keys: Sequence[tuple[str, int]]) -> list[tuple[int, int, bool]]:
    """Runs of equal keys: (start, end after, whether shaded)."""
    spans: list[tuple[int, int, bool]] = []
    start = 0
    for i in range(1, len(keys) + 1):
        if i == len(keys) or keys[i] != keys[start]:
            spans.append((start, i, len(spans) % 2 == 0))
            start = i
    return spans
