"""Progress of a search in a terminal: a line per board and the best so far; plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

import click

from harness.controller.progress import Progress, Watcher
from harness.report.wording import metric_name, ratio
from harness.results import Candidate
from harness.units import format_metric, format_ns


@contextlib.contextmanager
def watcher_for(boards: Sequence[str], *, quiet: bool) -> Iterator[Watcher]:
    """Writes to stderr, so that ``--json`` and redirections stay clean."""
    if quiet or not sys.stderr.isatty():
        yield PlainWatcher(boards, quiet=quiet)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield LiveWatcher(boards, live)


class PlainWatcher:
    """A line when a trial or a finalist has ended; only warnings when quiet."""

    def __init__(self, boards: Sequence[str], *, quiet: bool) -> None:
        self._boards = boards
        self._quiet = quiet
        self._shown: tuple[int, int] | None = None
        self._phase = ""

    def notice(self, message: str) -> None:
        if not self._quiet:
            click.echo(f"note: {message}", err=True)

    def update(self, progress: Progress) -> None:
        if self._quiet:
            return
        if progress.phase != self._phase:
            self._phase = progress.phase
            click.echo(f"{progress.phase} …", err=True)
        if progress.snapshot is not None and (progress.snapshot.ended, progress.snapshot.finals) != self._shown:
            self._shown = (progress.snapshot.ended, progress.snapshot.finals)
            best = "; ".join(best_line(progress, board) for board in self._boards)
            click.echo(f"{headline(progress)} | {best}", err=True)


class LiveWatcher:
    """Redraws in place."""

    def __init__(self, boards: Sequence[str], live: object) -> None:
        self._boards = boards
        self._live = live

    def notice(self, message: str) -> None:
        from rich.live import Live

        if isinstance(self._live, Live):
            self._live.console.print(f"note: {message}", style="yellow", markup=False, highlight=False)

    def update(self, progress: Progress) -> None:
        from rich.live import Live
        from rich.text import Text

        lines = [headline(progress)]
        lines += [f"  {best_line(progress, board)}" for board in self._boards]
        if progress.snapshot is not None:
            lines += [f"  {number:04d} {stage:<10} {label}" for number, label, stage in progress.snapshot.running]
        if isinstance(self._live, Live):
            self._live.update(Text("\n".join(lines)))


def headline(progress: Progress) -> str:
    if progress.snapshot is None:
        return f"{progress.phase} …"
    counts = progress.snapshot.counts
    others = [f"{count} {name}" for name, count in counts.items() if name != "done" and count]
    aside = f" ({', '.join(others)})" if others else ""
    trials = f"{progress.snapshot.ended} of {progress.trials} trials{aside}"
    if progress.phase == "searching":
        return f"{progress.phase}: {trials}"
    return f"{progress.phase}: {progress.snapshot.finals} measured afresh, after {trials}"


def best_line(progress: Progress, board: str) -> str:
    """Board, device time, and the pick as it would be now against float."""
    seconds = progress.snapshot.device_seconds.get(board, 0.0) if progress.snapshot else 0.0
    emulated = any(board in c.boards and c.boards[board].emulated for c in progress.candidates)
    where = f"{board} ({'emulated, ' if emulated else ''}{seconds:.0f} s on the board)"
    by_trial = {candidate.trial: candidate for candidate in progress.candidates}
    picks = [by_trial[trial] for trial in progress.best.get(board, ()) if trial in by_trial]
    if not picks:
        return f"{where}: nothing to pick yet"
    return f"{where}: best {describe(picks[0], board, by_trial.get(0))}"


def describe(candidate: Candidate, board: str, baseline: Candidate | None) -> str:
    result = candidate.boards[board]
    if result.latency_ns is None:
        return f"{candidate.trial:04d}"
    text = f"{candidate.trial:04d} {format_ns(result.latency_ns.p50)}"
    reference = baseline.boards.get(board) if baseline else None
    if reference is not None and reference.latency_ns is not None and candidate.trial != 0:
        quotient = reference.latency_ns.p50 / result.latency_ns.p50
        text += f" ({ratio(max(quotient, 1 / quotient))} {'faster' if quotient >= 1 else 'slower'} than float)"
    for name, metric in list(result.metrics.items())[:1]:
        text += f", {metric_name(name)} {format_metric(metric.value, metric.unit)}"
    return f"{text}, {candidate.label}"
