"""The picture of a sensitivity analysis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.recipes.mixed import KINDS
from harness.sensitivity.candidates import MixedCandidate
from harness.sensitivity.result import Sensitivity

SHOWN = 40
"""Groups drawn, the most sensitive ones."""
_ALONE, _GAIN = "#b3452c", "#2f7d4f"
_COLOURS = {"float": _GAIN, "a16": "#2f5fa8"}
_INCHES_PER_GROUP = 0.22


def draw(found: Sensitivity, candidates: Sequence[MixedCandidate], path: Path) -> None:
    """Writes ``path``; its ending says the format (``.svg``, ``.png``). Raises OSError."""
    # The same analysis gives the same bytes; and a dollar sign in a name is one.
    with mpl.rc_context({"svg.hashsalt": "boardtune", "text.parse_math": False}):
        _draw(found, candidates, path)


def _draw(found: Sensitivity, candidates: Sequence[MixedCandidate], path: Path) -> None:
    items = found.groups[:SHOWN]
    figure = Figure(figsize=(12.4, 3.2 + _INCHES_PER_GROUP * len(items)), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(3, 2, 2))
    places = list(range(len(items)))
    names = [f"{item.group.name} ({'+'.join(dict.fromkeys(item.group.op_types))})" for item in items]
    left.barh(places, [item.alone.snr_db or 0.0 for item in items], color=_ALONE)
    left.set_yticks(places, names, fontsize=7)
    left.set_xlabel("SNR with only this group\nquantized, dB (low: sensitive)")
    middle.barh(places, [found.snr_gain_db(item) or 0.0 for item in items], color=_GAIN)
    middle.set_yticks([])
    middle.set_xlabel("SNR gained by leaving\nonly it in float, dB")
    for axes in (left, middle):
        axes.invert_yaxis()
        axes.margins(y=0.01)
    _curve(right, found, candidates)
    more = len(found.groups) - len(items)
    figure.suptitle(f"Sensitivity on {found.samples} samples" + (f" ({more} groups not shown)" if more else ""))
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else {})


def _curve(axes: Axes, found: Sensitivity, candidates: Sequence[MixedCandidate]) -> None:
    base = found.quantized.snr_db
    for kind in KINDS:
        points = [(c.groups, c.effect.snr_db) for c in candidates if c.kind == kind and c.effect.snr_db is not None]
        if points and base is not None:
            label = {"float": "in float", "a16": "16-bit activations"}[kind]
            axes.plot(*zip((0, base), *points, strict=True), marker="o", color=_COLOURS[kind], label=label)
    axes.set_xlabel("most sensitive groups kept precise")
    axes.set_ylabel("SNR, dB")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
