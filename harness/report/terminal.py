"""The verdicts and the top-K table in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report import wording
from harness.report.data import BoardSection, Entry, ReportData
from harness.report.verdict import pace
from harness.results import BoardResult, MetricResult
from harness.units import format_metric, two_digits

_TONES = {"ship": "bold green", "float": "bold", "undecided": "bold yellow", "none": "bold red"}
_PACES = {"faster": "green", "slower": "red", "level": "dim", "unknown": "dim"}
_GAP = 2
"""Blanks between columns."""
_RECIPE_WIDTH = 20
"""Narrower than that, a recipe's name is not worth a column: it moves below the table."""


def print_verdicts(console: Console, data: ReportData) -> None:
    """One sentence per board, with its caveats."""
    for board in data.boards:
        console.print(Text(board.verdict.sentence, style=_TONES[board.verdict.tone]))
        for caveat in board.verdict.caveats:
            console.print(Text(f"  {caveat}", style="yellow"))


def print_top(console: Console, data: ReportData) -> None:
    """Per board: a table of its picks against float, then one line for each that says why."""
    for board in data.boards:
        rows = [_row(entry, board, data) for entry in _entries(board)]
        layout = _layout(rows, _metrics(board, data), console.width)
        console.print(_table(board, rows, layout))
        console.print(_notes(rows, labels=not layout.recipe_width))
        console.print()


@dataclass(frozen=True)
class _Row:
    """Names from boards and models are shown as they are: as :class:`Text`, no markup in them is interpreted."""

    trial: str
    recipe: Text
    latency: Text
    half_width: Text
    interval: Text
    against: Text
    metrics: Mapping[str, Text]
    size: Text
    why: str
    first: bool
    """It is the first pick."""


@dataclass(frozen=True)
class _Layout:
    metrics: tuple[str, ...]
    interval: bool
    """Both ends of the confidence interval, rather than half its width."""
    recipe_width: int
    """0: recipes stand below the table."""
    gap: int = _GAP


def _entries(board: BoardSection) -> Sequence[Entry]:
    if board.baseline is not None and board.baseline.rank is None:
        return [board.baseline, *board.picks]
    return board.picks


def _metrics(board: BoardSection, data: ReportData) -> tuple[str, ...]:
    return tuple(name for name in data.metrics if any(name in entry.result.metrics for entry in board.candidates))


def _row(entry: Entry, board: BoardSection, data: ReportData) -> _Row:
    result, latency = entry.result, entry.result.latency_ns
    base = board.baseline.result if board.baseline is not None and board.baseline.trial != entry.trial else None
    why = "the model as given" if entry.is_float and entry.rank is None else result.reason or ""
    undecided = [name for name, outcome in result.constraints.items() if outcome == "undecided"]
    if undecided and "undecided" not in why:
        why = f"undecided on {' and '.join(undecided)}; {why}".rstrip("; ")
    if result.verdict != "valid":
        why = f"{result.verdict}: {'; '.join((*result.reasons, why))}".rstrip("; ")
    if result.accuracy_from != "device" and entry.rank is not None:
        why = f"{why}; accuracy is {result.accuracy_from}".lstrip("; ")
    half = (latency.ci95[1] - latency.ci95[0]) / 2 / latency.p50 if latency else None
    return _Row(
        trial=wording.trial_name(entry.trial),
        recipe=Text(entry.label),
        latency=Text(wording.latency(latency.p50 if latency else None)),
        half_width=Text("" if half is None else f" ±{two_digits(100 * half)} %", style="dim"),
        interval=Text(wording.latency_interval(*latency.ci95) if latency else wording.NONE, style="dim"),
        against=_against(result, base),
        metrics={name: _metric(result.metrics.get(name), name, data, of_float=base is None) for name in data.metrics},
        size=Text(wording.size(result.artifact.size_bytes)),
        why=why,
        first=entry.rank == 1,
    )


def _against(result: BoardResult, base: BoardResult | None) -> Text:
    kind = pace(result, base)
    if kind == "unknown" or base is None or result.latency_ns is None or base.latency_ns is None:
        return Text(wording.NONE, style=_PACES["unknown"])
    quotient = base.latency_ns.p50 / result.latency_ns.p50
    text = "as fast" if kind == "level" else f"{wording.ratio(max(quotient, 1 / quotient))} {kind}"
    return Text(text, style=_PACES[kind])


def _metric(metric: MetricResult | None, name: str, data: ReportData, *, of_float: bool) -> Text:
    unit = wording.metric_unit(name, dict(data.units))
    if metric is None or (of_float and unit == "dB"):  # float against itself says nothing
        return Text(wording.NONE)
    text = Text(format_metric(metric.value, unit))
    if difference := wording.metric_difference(metric, unit):
        text.append(f" {difference}", style="dim")
    if metric.outcome in ("broken", "undecided"):
        text.append(f" {metric.outcome}", style="red" if metric.outcome == "broken" else "yellow")
    return text


def _layout(rows: Sequence[_Row], metrics: tuple[str, ...], width: int) -> _Layout:
    """The most that fits: all metrics and intervals; else half-widths; else the ranked metric alone; else recipes
    below the table."""
    longest = max((row.recipe.cell_len for row in rows), default=0)
    for shown, interval in ((metrics, True), (metrics, False), (metrics[:1], False)):
        left = width - sum(cells + _GAP for cells in _widths(rows, shown, interval))
        if left >= min(longest, 2 * _RECIPE_WIDTH) or (len(shown) <= 1 and not interval and left >= _RECIPE_WIDTH):
            return _Layout(shown, interval, min(longest, left))
    columns = _widths(rows, metrics[:1], False)
    return _Layout(metrics[:1], False, 0, gap=_GAP if sum(columns) + _GAP * (len(columns) - 1) <= width else 1)


def _widths(rows: Sequence[_Row], metrics: Sequence[str], interval: bool) -> list[int]:
    """Cells of each column but the recipe."""
    columns = {
        "trial": [len(row.trial) for row in rows],
        "latency": [_latency(row, interval).cell_len for row in rows],
        "vs float": [row.against.cell_len for row in rows],
        "size": [row.size.cell_len for row in rows],
    }
    if interval:
        columns["95 %"] = [row.interval.cell_len for row in rows]
    for name in metrics:
        columns[wording.metric_name(name)] = [row.metrics[name].cell_len for row in rows]
    return [max(len(title), *cells) if cells else len(title) for title, cells in columns.items()]


def _latency(row: _Row, interval: bool) -> Text:
    return row.latency if interval else row.latency + row.half_width


def _table(board: BoardSection, rows: Sequence[_Row], layout: _Layout) -> Table:
    title = Text(board.name, style="bold")
    if board.emulated:
        title.append("  EMULATED", style="bold yellow")
    table = Table(
        title=title, title_justify="left", header_style="dim", box=None, pad_edge=False, padding=(0, layout.gap, 0, 0)
    )
    table.add_column("trial", no_wrap=True)
    if layout.recipe_width:
        table.add_column("recipe", overflow="fold", width=layout.recipe_width)
    for name in ("latency", *(["95 %"] if layout.interval else []), "vs float"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in layout.metrics:
        table.add_column(Text(wording.metric_name(name)), justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    for row in rows:
        cells = [Text(row.trial), *([row.recipe] if layout.recipe_width else []), _latency(row, layout.interval)]
        cells += [*([row.interval] if layout.interval else []), row.against]
        cells += [*(row.metrics[name] for name in layout.metrics), row.size]
        table.add_row(*cells, style="bold" if row.first else None)
    return table


def _notes(rows: Sequence[_Row], *, labels: bool) -> Table:
    """Why each is there; with its recipe where the table has no room for that."""
    notes = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    notes.add_column(no_wrap=True)
    notes.add_column(overflow="fold")
    for row in rows:
        parts = [row.recipe.plain, row.why] if labels else [row.why]
        notes.add_row(Text(f"  {row.trial}", style="dim"), Text(": ".join(part for part in parts if part)))
    return notes
