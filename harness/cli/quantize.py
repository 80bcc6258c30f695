"""``boardtune quantize``: one recipe, made and accepted on this host; no board is touched."""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.cli.common import FiniteFloat, model_argument, one_model
from harness.errors import ExitCode


@click.command("quantize", short_help="Make one artifact by one recipe, and accept or refuse it.")
@model_argument
@click.option("--model", type=click.Path(path_type=Path), help="Float ONNX model, instead of the argument.")
@click.option("--calib", required=True, help="Calibration samples: .npz, folder, or module:function.")
@click.option("--recipe", required=True, metavar="FILE|preset:NAME[#k]", help="What to make.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write to.")
@click.option("--set-dim", "set_dim", multiple=True, metavar="NAME=N", help="Size of a free dimension; repeatable.")
@click.option("--preprocess", type=click.Path(path_type=Path), help="YAML file that says how samples become inputs.")
@click.option(
    "--min-snr", type=FiniteFloat(), default=15.0, show_default=True, help="Floor against the float model, in dB."
)
@click.option("--timeout", type=FiniteFloat(above=0), default=600.0, show_default=True, help="Seconds.")
@click.option(
    "--max-memory", type=click.IntRange(min=1), default=8192, show_default=True, help="The quantizer's, in MiB."
)
@click.option(
    "--continue-quantized",
    is_flag=True,
    help="Take a model that is quantized in part: what is quantized stays, the recipe is for the rest.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model_argument: Path | None,
    model: Path | None,
    calib: str,
    recipe: str,
    out: Path,
    set_dim: tuple[str, ...],
    preprocess: Path | None,
    min_snr: float,
    timeout: float,
    max_memory: int,
    continue_quantized: bool,
    as_json: bool,
) -> None:
    """Quantize MODEL by one recipe and accept or refuse the result. Exit code 0 or 3 (refused)."""
    from harness.quantize.contract import Artifact, QuantizeLimits
    from harness.quantize.once import quantize_once
    from harness.quantize.shapes import parse_set_dims

    outcome = quantize_once(
        one_model(model_argument, model),
        calib,
        recipe,
        out,
        set_dims=parse_set_dims(set_dim),
        preprocess=preprocess,
        limits=QuantizeLimits(timeout_s=timeout, memory_bytes=max_memory << 20, min_snr_db=min_snr),
        continue_quantized=continue_quantized,
    )
    accepted = isinstance(outcome.result, Artifact)
    if as_json:
        click.echo(json.dumps(outcome.to_json()))
    else:
        label = outcome.recipe.label if outcome.recipe else "the model"
        for notice in outcome.notices:
            click.echo(f"note: {notice}", err=True)
        if isinstance(outcome.result, Artifact):
            ratio = "" if outcome.result.snr_db is None else f", {outcome.result.snr_db:.1f} dB"
            click.echo(f"accepted: {label}{ratio}, {outcome.result.size_bytes} bytes")
            click.echo(f"  {outcome.result.path}")
        else:
            click.echo(f"refused ({outcome.result.cause}): {label}")
            click.echo(f"  {outcome.result.message}")
    click.get_current_context().exit(int(ExitCode.OK if accepted else ExitCode.NO_FEASIBLE_CANDIDATE))
