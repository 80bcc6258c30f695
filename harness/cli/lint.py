"""``boardtune lint``: what a chip's kernels would compute otherwise than was simulated, or not at all."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.common import json_option, print_json


@click.command("lint", short_help="Say what of an .espdl model a chip will not run, or not as it was simulated.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--target", required=True, metavar="CHIP", help="As ESP-PPQ names it: esp32, esp32s3, esp32p4, …")
@click.option("--psram", type=click.IntRange(min=1), metavar="BYTES", help="PSRAM of the board.")
@click.option(
    "--flash-slot", type=click.IntRange(min=1), metavar="BYTES", help="Partition for models; they run from it."
)
@json_option
def command(model: Path, target: str, psram: int | None, flash_slot: int | None, as_json: bool) -> None:
    """Look at MODEL, an .espdl file, before it is sent to a CHIP. Exit code 3 where a finding is an error."""
    from harness.audit.text import finding_lines
    from harness.errors import ExitCode
    from harness.lints.espdl import BoardMemory, lint_file

    memory = BoardMemory(psram, flash_slot, "psram" if flash_slot is None else "flash")
    findings = lint_file(model, target, memory)
    if as_json:
        print_json({"findings": [finding.to_json() for finding in findings]})
    else:
        for line in finding_lines(findings):
            click.echo(line)
    if any(finding.severity == "error" for finding in findings):
        raise click.exceptions.Exit(ExitCode.NO_FEASIBLE_CANDIDATE)
