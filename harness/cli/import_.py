"""``boardtune import``: another tool's search as recipes."""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.cli.common import json_option, print_json

SHOWN = 10


@click.command("import", short_help="Take over the experiments of an AutoQuant run.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("recipes"), show_default=True, help="Folder to write to."
)
@click.option("--best", type=click.IntRange(min=1), default=SHOWN, show_default=True, help="How many, best first.")
@click.option("--target", help="Chip, where the folder does not say it.")
@json_option
def command(folder: Path, out: Path, best: int, target: str | None, as_json: bool) -> None:
    """Write the best experiments of FOLDER, the run_dir of an ESP-PPQ AutoQuant search, as recipe files: a
    search tries those first that are given with --recipe."""
    from harness.errors import ConfigError
    from harness.ledger.autoquant import read_autoquant

    run = read_autoquant(folder, target)
    chosen = run.experiments[:best]
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for place, experiment in enumerate(chosen, 1):
            path = out / f"autoquant-{place:03d}.json"
            path.write_text(json.dumps(experiment.recipe.to_dict(), indent=2) + "\n", encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise ConfigError(f"cannot write: {error.strerror or error}", where=out) from None
    for notice in run.notices:
        click.echo(f"note: {notice}", err=True)
    if as_json:
        rows = [
            {"file": str(path), "experiment": e.index, "score": e.score, "label": e.recipe.label, **e.extras}
            for path, e in zip(written, chosen, strict=True)
        ]
        print_json({"maximize": run.maximize, "found": len(run.experiments), "recipes": rows})
        return
    click.echo(f"{len(run.experiments)} different experiments; the best {len(written)}:")
    for path, experiment in zip(written, chosen, strict=True):
        click.echo(f"  {path}  score {experiment.score:.6g}  {experiment.recipe.label}")
