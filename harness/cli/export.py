"""``boardtune export``: a pick of a run as files to ship."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("export", short_help="Write a pick of a run as files to ship.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--pick", type=click.IntRange(min=1), default=1, show_default=True, help="Which pick, best first.")
@click.option("--board", help="Whose picks; needed where boards pick differently.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(), help="Folder to write to.  [default: here]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: Path, pick: int, board: str | None, out: Path, as_json: bool) -> None:
    """Write a pick of RUN: the model with its provenance inside, its recipe, and checksums."""
    from harness.ledger.exports import export_pick
    from harness.ledger.run_directory import RunDirectory

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
