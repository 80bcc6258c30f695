"""``boardtune reproduce``: an artifact made again from what it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.common import json_option, preprocess_option, print_json
from harness.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from harness.controller.reproduce import Reproduction


@click.command("reproduce", short_help="Make a trial's model again, and compare it byte by byte.")
@click.argument("run", metavar="RUN|MODEL", type=click.Path(path_type=Path))
@click.option("--trial", type=click.IntRange(min=0), help="Which trial of the run.")
@click.option("--model", type=click.Path(path_type=Path), help="Where the float model is now.")
@click.option("--calib", help="Where the calibration set is now.")
@click.option("--candidate", type=click.Path(path_type=Path), help="Where the file of --add-candidate is now.")
@preprocess_option
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write the model to.")
@json_option
def command(
    run: Path,
    trial: int | None,
    model: Path | None,
    calib: str | None,
    candidate: Path | None,
    preprocess: Path | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Make the model of a trial of RUN again from float model, data and recipe, and compare it with what was measured;
    or that of an exported MODEL, with --model and --calib. Exit code 0: the same bytes; 1: others; 2: the float model
    or the data is not what it was."""
    from harness.controller.origin import origin_of_export, origin_of_trial
    from harness.controller.reproduce import reproduce
    from harness.ledger.run_directory import RunDirectory

    if run.is_file():
        if trial is not None:
            raise ConfigError("--trial belongs to a run directory", where=run, hint="leave it out for a model")
        origin = origin_of_export(run)
    elif trial is None:
        raise ConfigError("which trial?", where=run, hint="give --trial N")
    else:
        origin = origin_of_trial(RunDirectory.open(run), trial)
    found = reproduce(origin, model=model, calibration=calib, preprocess=preprocess, candidate=candidate, out=out)
    if as_json:
        print_json(found.to_json())
    else:
        for line in lines_of(found):
            click.echo(line)
    return int(_CODES[found.status])


_CODES = {
    "equal": ExitCode.OK,
    "relabelled": ExitCode.INTERNAL,
    "differs": ExitCode.INTERNAL,
    "other_inputs": ExitCode.USAGE,
}


def lines_of(found: Reproduction) -> list[str]:
    origin = found.origin
    told = {
        "equal": "equal: the same bytes",
        "relabelled": "the same content, other bytes",
        "differs": "DIFFERS: another model came out",
        "other_inputs": "not made: what it was made from has changed since",
    }[found.status]
    lines = [f"{origin.what} ({origin.recipe.label}): {told}", f"  recorded sha256 {origin.sha256}"]
    if found.made is not None and not found.same:
        lines.append(f"  made     sha256 {found.made.sha256}")
    lines += [f"  {item}" for item in found.changed]
    if found.difference:
        lines.append(f"  {found.difference}")
    if found.status == "differs" and not found.changed:
        lines.append("  data and versions are the same: another processor, which rounds differently, or a defect")
    if found.path is not None:
        lines.append(f"  written to {found.path}")
    return lines
