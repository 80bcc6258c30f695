"""``boardtune report``: the HTML report of a run, made again from its directory."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("report", short_help="Make the report of a run again.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="File to write.  [default: RUN/report.html]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the report's path and the run's summary.")
def command(run: Path, out: Path | None, as_json: bool) -> None:
    """Make the report of RUN from its directory, also while the run goes on."""
    from rich.console import Console

    from harness.errors import ConfigError
    from harness.ledger.files import write_atomic
    from harness.ledger.run_directory import REPORT, RunDirectory
    from harness.report.load import load_report_data
    from harness.report.page import render_html
    from harness.report.terminal import print_verdicts

    data = load_report_data(RunDirectory.open(run))
    path = out or run / REPORT
    try:
        write_atomic(path, render_html(data))
    except OSError as error:
        message = f"cannot write the report: {error.strerror or error}"
        raise ConfigError(message, where=path, hint="name a file in a folder that exists with --out") from None
    if as_json:
        click.echo(json.dumps({"report": str(path), "summary": data.summary}))
        return
    print_verdicts(Console(), data)
    click.echo(f"report: {path}")
