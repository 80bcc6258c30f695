"""``boardtune diagnose``: where a trial's accuracy and time went, and which recipe would get them back."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.common import json_option, print_json


@click.command("diagnose", short_help="Say where a trial's accuracy and time went.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--trial", type=click.IntRange(min=0), required=True, help="Number of the trial.")
@click.option("--board", help="Look at this board's results only.  [default: all of the run]")
@click.option("--apply", "apply_them", is_flag=True, help="Give the proposed recipes to the search's next --resume.")
@click.option("--model", type=click.Path(path_type=Path), help="Where the float model is now, if it was moved.")
@click.option("--calib", help="Where the calibration set is now.")
@click.option("--eval", help="Where the evaluation set is now.")
@json_option
def command(
    run: Path,
    trial: int,
    board: str | None,
    apply_them: bool,
    model: Path | None,
    calib: str | None,
    eval: str | None,
    as_json: bool,
) -> None:
    """Compare a trial of RUN with the float model, layer by layer on this host, and with the results of its boards.
    No board is touched; exit code 0 whatever is found."""
    from harness.diagnose.apply import apply_to_run
    from harness.diagnose.case import DiagnoseJob
    from harness.diagnose.run import diagnose
    from harness.diagnose.text import diagnosis_lines, proposed_lines

    found = diagnose(DiagnoseJob(run, trial, board, model, calib, eval))
    proposed = apply_to_run(run, found) if apply_them else []
    if as_json:
        shown = [item.to_json() for item in proposed]
        print_json({**found.to_json(), "proposed": shown})
        return
    for notice in found.notices:
        click.echo(f"note: {notice}", err=True)
    for line in diagnosis_lines(found):
        click.echo(line)
    if apply_them:
        click.echo("")
        for line in proposed_lines(proposed, str(run)):
            click.echo(line)
