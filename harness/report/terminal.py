"""The verdicts and the top-K table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report import wording
from harness.report.data import BoardSection, Entry, ReportData
from harness.report.verdict import pace
from harness.results import BoardResult, MetricResult

_TONES = {"ship": "bold green", "float": "bold", "undecided": "bold yellow", "none": "bold red"}
_PACES = {"faster": "green", "slower": "red", "level": "dim", "unknown": "dim"}


def print_verdicts(console: Console, data: ReportData) -> None:
    """One sentence per board, with its caveats."""
    for board in data.boards:
        console.print(Text(board.verdict.sentence, style=_TONES[board.verdict.tone]))
        for caveat in board.verdict.caveats:
            console.print(Text(f"  {caveat}", style="yellow"))


def print_top(console: Console, data: ReportData) -> None:
    """A table per board: its picks against float."""
    for board in data.boards:
        console.print(top_table(data, board))


def top_table(data: ReportData, board: BoardSection) -> Table:
    """Names from boards and models are shown as they are: no markup in them is interpreted."""
    metrics = [m for m in data.metrics if any(m in e.result.metrics for e in board.candidates)]
    title = Text(board.name, style="bold")
    if board.emulated:
        title.append("  EMULATED", style="bold yellow")
    table = Table(title=title, title_justify="left", header_style="dim", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("trial")
    table.add_column("recipe", overflow="fold", min_width=18)
    for name in ("latency", "95 %", "vs float", *map(wording.metric_name, metrics), "size"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", min_width=12)
    entries: Sequence[Entry] = board.picks
    if board.baseline is not None and board.baseline.rank is None:
        entries = [board.baseline, *entries]
    for entry in entries:
        base = board.baseline.result if board.baseline is not None and board.baseline.trial != entry.trial else None
        table.add_row(*_cells(entry, base, metrics, data), style="bold" if entry.rank == 1 else None)
    return table


def _cells(entry: Entry, base: BoardResult | None, metrics: Sequence[str], data: ReportData) -> list[Text]:
    result, latency = entry.result, entry.result.latency_ns
    kind = pace(result, base)
    against = wording.NONE
    if kind != "unknown" and latency is not None and base is not None and base.latency_ns is not None:
        quotient = base.latency_ns.p50 / latency.p50
        against = "level" if kind == "level" else f"{wording.ratio(max(quotient, 1 / quotient))} {kind}"
    why = "the model as given" if entry.is_float and entry.rank is None else result.reason or ""
    if result.verdict != "valid":
        why = f"{result.verdict}: {'; '.join(result.reasons)}" + (f"; {why}" if why else "")
    return [
        Text(wording.trial_name(entry.trial)),
        Text(entry.label),
        Text(wording.latency(latency.p50 if latency else None)),
        Text(wording.latency_interval(*latency.ci95) if latency else wording.NONE, style="dim"),
        Text(against, style=_PACES[kind]),
        *(_metric(result.metrics.get(name), name, data) for name in metrics),
        Text(wording.size(result.artifact.size_bytes)),
        Text(why),
    ]


def _metric(metric: MetricResult | None, name: str, data: ReportData) -> Text:
    if metric is None:
        return Text(wording.NONE)
    unit = wording.metric_unit(name, dict(data.units))
    text = Text(wording.metric_value(metric.value, unit))
    if difference := wording.metric_difference(metric, unit):
        text.append(f" {difference}", style="dim")
    if metric.outcome in ("broken", "undecided"):
        text.append(f" {metric.outcome}", style="red" if metric.outcome == "broken" else "yellow")
    return text
