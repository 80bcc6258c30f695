"""Tables of a sensitivity analysis for the terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from harness.sensitivity.candidates import MixedCandidate
from harness.sensitivity.result import Effect, Sensitivity

_NAME_WIDTH = 14


def groups_table(found: Sensitivity, top: int) -> Table:
    """The ``top`` most sensitive groups."""
    hidden = len(found.groups) - top
    title = f"Sensitivity of {len(found.groups)} groups on {found.samples} samples"
    caption = f"{hidden} less sensitive groups are not shown (--top)" if hidden > 0 else None
    table = Table(title=title, box=SIMPLE_HEAD, caption=caption)
    table.add_column("#", justify="right")
    table.add_column("group", overflow="fold", min_width=_NAME_WIDTH)
    table.add_column("operators")
    table.add_column("alone", justify="right")
    for name in found.higher_is_better:
        table.add_column(f"loss {escape(name)}", justify="right")
    table.add_column("left out", justify="right")
    for name in found.higher_is_better:
        table.add_column(f"gain {escape(name)}", justify="right")
    for place, item in enumerate(found.groups[:top], start=1):
        table.add_row(
            str(place),
            escape(item.group.name),
            "+".join(dict.fromkeys(item.group.op_types)),
            _number(item.alone.snr_db, "{:.1f} dB"),
            *(_number(found.loss(item, name), "{:.3g}") for name in found.higher_is_better),
            _number(found.snr_gain_db(item), "{:+.1f} dB"),
            *(_number(found.gain(item, name), "{:+.3g}") for name in found.higher_is_better),
        )
    return table


def candidates_table(
    found: Sensitivity, candidates: Sequence[MixedCandidate], best: Collection[MixedCandidate]
) -> Table:
    """What keeping the most sensitive groups precise gives; the rows ``best`` are marked."""
    table = Table(title="The most sensitive groups kept precise", box=SIMPLE_HEAD)
    table.add_column("recipe")
    table.add_column("SNR", justify="right")
    for name in found.higher_is_better:
        table.add_column(escape(name), justify="right")
    rows: list[tuple[str, Effect]] = [("float32", found.float32), ("all quantized", found.quantized)]
    rows += [(f"{c.name} *" if c in best else c.name, c.effect) for c in candidates]
    for label, effect in rows:
        values = (_number(effect.metrics[name], "{:.4g}") for name in found.higher_is_better)
        snr = "" if label == "float32" else _number(effect.snr_db, "{:.1f} dB")
        table.add_row(label, snr, *values)
    return table


def summary(found: Sensitivity, best: Sequence[MixedCandidate]) -> str:
    """One line on the candidates worth a trial."""
    if not best:
        return "no mixture is closer to float than everything quantized"
    return "worth a trial on a board (*): " + ", ".join(candidate.name for candidate in best)


def _number(value: float | None, pattern: str) -> str:
    return "not finite" if value is None else pattern.format(value)
