"""``boardtune sensitivity``: what quantizing each part of a model costs; no board is touched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.common import (
    json_option,
    model_argument,
    one_model,
    preprocess_option,
    print_json,
    set_dim_option,
)

if TYPE_CHECKING:
    from harness.sensitivity.once import SensitivityReport


@click.command("sensitivity", short_help="Show what quantizing each part of a model costs.")
@model_argument
@click.option("--model", type=click.Path(path_type=Path), help="Float ONNX model; it is not changed.")
@click.option("--calib", required=True, help="Calibration samples: .npz, folder, or module:function.")
@click.option("--eval", help="Evaluation samples, same forms.  [default: the calibration samples]")
@preprocess_option
@click.option(
    "--recipe", metavar="FILE|preset:NAME[#k]", help="Static recipe to analyse.  [default: u8/s8 per channel]"
)
@click.option("--samples", type=click.IntRange(min=1), help="Evaluation samples to use.  [default: all]")
@set_dim_option
@click.option("--metric", "metrics", multiple=True, help="As of search; repeatable.  [default: what fits the labels]")
@click.option(
    "--max-memory", type=click.IntRange(min=1), default=1024, show_default=True, help="Of cached activations, in MiB."
)
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Groups to show.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the table, the plot and recipes.")
@json_option
def command(
    model_argument: Path | None,
    model: Path | None,
    calib: str,
    eval: str | None,
    preprocess: Path | None,
    recipe: str | None,
    samples: int | None,
    set_dim: tuple[str, ...],
    metrics: tuple[str, ...],
    max_memory: int,
    top: int,
    out: Path | None,
    as_json: bool,
) -> int:
    """Show, for each group of operators of MODEL, the loss of quantizing only it and the gain of leaving only it in
    float; then try keeping the most sensitive ones precise."""
    from harness.quantize.shapes import parse_set_dims
    from harness.sensitivity.once import SensitivityJob, run_sensitivity, write_report

    job = SensitivityJob(
        model=one_model(model_argument, model),
        calib=calib,
        eval=eval,
        preprocess=preprocess,
        recipe=recipe,
        samples=samples,
        set_dims=parse_set_dims(set_dim),
        metrics=metrics,
        cached_bytes=max_memory << 20,
    )
    report = run_sensitivity(job, _show_stage)
    _show_stage("")
    files = write_report(report, out) if out is not None else ()
    if as_json:
        print_json({**report.to_json(), "files": [str(file) for file in files]})
        return 0
    _print(report, top)
    if out is not None:
        click.echo(f"written: {len(files)} files in {out}")
        for candidate in report.best():
            click.echo(f"  to make it: boardtune quantize --recipe {out / candidate.name}.recipe.json …")
    return 0


def _show_stage(name: str) -> None:
    """On one line of a terminal, the last one gone; nothing elsewhere."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{name}", nl=False, err=True)


def _progress(phase: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{phase}", nl=False, err=True)


def _print(report: SensitivityReport, top: int) -> None:
    from rich.console import Console

    from harness.sensitivity.table import candidates_table, groups_table, summary

    for notice in report.notices:
        click.echo(f"note: {notice}", err=True)
    console = Console()
    console.print(groups_table(report.found, top))
    console.print(candidates_table(report.found, report.candidates, report.best()))
    console.print(summary(report.found, report.best()), markup=False, highlight=False)
