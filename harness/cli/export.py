"""``boardtune export``: a pick of a run as files to ship."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.ledger.run_directory import RunDirectory


@click.command("export", short_help="Write a pick of a run as files to ship.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--pick", type=click.IntRange(min=1), default=1, show_default=True, help="Which pick, best first.")
@click.option("--board", help="Whose picks; needed where boards pick differently.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(), help="Folder to write to.  [default: here]")
@click.option("--autoquant", is_flag=True, help="Write all ESP-PPQ trials to --out as an AutoQuant run folder instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: Path, pick: int, board: str | None, out: Path, autoquant: bool, as_json: bool) -> None:
    """Write a pick of RUN: the model with its provenance inside, its recipe, and checksums."""
    from harness.ledger.exports import export_pick
    from harness.ledger.run_directory import RunDirectory

    if autoquant:
        _autoquant(RunDirectory.open(run), out, board, as_json)
        return
    files = export_pick(RunDirectory.open(run), out, pick=pick, board=board)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "trial": files.trial,
                    "board": files.board,
                    "emulated": files.emulated,
                    "model": str(files.model),
                    "recipe": str(files.recipe),
                    "checksums": str(files.checksums),
                }
            )
        )
        return
    click.echo(f"trial {files.trial:04d} for {files.board}:")
    for path in (files.model, files.recipe, files.checksums):
        click.echo(f"  {path}")
    if files.emulated:
        click.echo(f"The latency recorded in it is of an emulated board ({files.board}).")


def _autoquant(run: RunDirectory, out: Path, board: str | None, as_json: bool) -> None:
    from harness.ledger.autoquant import write_autoquant

    count, notices = write_autoquant(run, out, board=board)
    for notice in notices:
        click.echo(f"note: {notice}", err=True)
    if as_json:
        click.echo(json.dumps({"folder": str(out), "experiments": count, "notices": notices}))
    else:
        click.echo(f"{count} experiments: {out}")
