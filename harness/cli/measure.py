"""``boardtune measure``."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from device_agents.contract import AgentError
from harness.cli.common import (
    json_option,
    model_argument,
    one_model,
    preprocess_option,
    print_json,
    set_dim_option,
)
from harness.cli.exit_codes import exit_code_of, worst
from harness.errors import BoardtuneError, ExitCode
from harness.plan import Effort, Postprocess
from harness.quantize.shapes import parse_set_dims
from harness.report.wording import metric_name
from harness.results import BoardResult
from harness.units import format_bytes, format_difference, format_metric, format_ns


@click.command("measure", short_help="Measure one model on boards.")
@model_argument
@click.option("--model", type=click.Path(path_type=Path), help="Instead of the argument.")
@click.option("--boards", default="local", show_default=True, help="Boards to measure on, separated by commas.")
@click.option("--eval", "data", help="Samples: .npz, folder, or module:function.  [default: seeded random inputs]")
@click.option("--reference", type=click.Path(path_type=Path), help="Float model to compare the outputs with.")
@click.option(
    "--metric", "metrics", multiple=True, help="top1, top5, mae, mse, cosine, snr, module:function; repeatable."
)
@click.option(
    "--scope",
    type=click.Choice(["inference", "pipeline"]),
    default="inference",
    show_default=True,
    help="What is timed: the model alone, or pre- and post-processing too.",
)
@click.option(
    "--postprocess",
    type=click.Choice(get_args(Postprocess)),
    default="none",
    show_default=True,
    help="What follows the model with --scope pipeline.",
)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Samples per inference.")
@click.option(
    "--effort",
    type=click.Choice(get_args(Effort)),
    default="standard",
    show_default=True,
    help="How long it is measured.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of made-up inputs and of the order."
)
@preprocess_option
@set_dim_option
@json_option
def command(
    model_argument: Path | None,
    model: Path | None,
    boards: str,
    data: str | None,
    reference: Path | None,
    metrics: tuple[str, ...],
    scope: str,
    postprocess: Postprocess,
    batch: int,
    effort: Effort,
    seed: int,
    preprocess: Path | None,
    set_dim: tuple[str, ...],
    as_json: bool,
) -> int:
    """Measure one MODEL, float or quantized, on boards, by the full protocol. With --json, a board that failed is null,
    and the error is on stderr."""
    from harness.controller.measuring import MeasureJob, measure
    from harness.controller.outcome import board_json

    path = one_model(model_argument, model)
    job = MeasureJob(
        model=path,
        boards=[name.strip() for name in boards.split(",") if name.strip()],
        data=data,
        reference=reference,
        preprocess=preprocess,
        set_dim=parse_set_dims(set_dim),
        metrics=metrics,
        batch=batch,
        pipeline=scope == "pipeline",
        postprocess=postprocess,
        effort=effort,
        seed=seed,
    )
    measured = measure(job, tell=lambda message: click.echo(f"note: {message}", err=True))
    if as_json:
        names = dict.fromkeys(job.boards)
        print_json({n: board_json(measured.results[n]) if n in measured.results else None for n in names})
    else:
        for name, result in measured.results.items():
            for line in lines_of(name, result):
                click.echo(line)
    codes = [exit_code_of(error) for error in measured.failures.values()]
    for name, error in measured.failures.items():
        click.echo(f"error: {failure_text(name, error)}", err=True)
    if any(result.verdict == "invalid" for result in measured.results.values()):
        codes.append(ExitCode.MEASUREMENTS_INVALID)
    return int(worst(codes))


def failure_text(board: str, error: Exception) -> str:
    """One board's failure; names the board, as several are measured."""
    if isinstance(error, AgentError):
        hint = f"\n  {error.hint}" if error.hint else ""
        return f"board {board!r}: {error.message}{hint}"
    if isinstance(error, BoardtuneError):
        return f"board {board!r}: {error}"
    return f"board {board!r}: internal error: {type(error).__name__}: {error}"


def lines_of(name: str, result: BoardResult) -> list[str]:
    """One board's result in words."""
    stamp = " (emulated)" if result.emulated else ""
    lines = [f"{name}{stamp}: {result.verdict}"]
    lines += [f"  because {reason}" for reason in result.reasons]
    latency = result.latency_ns
    if latency is not None:
        low, high = latency.ci95
        tail = f", p90 {format_ns(latency.p90)}" if latency.p90 is not None else ""
        lines.append(
            f"  latency   {format_ns(latency.p50)}, 95 % within {format_ns(low)} to {format_ns(high)}{tail}"
            f" ({latency.n} samples in {latency.blocks} blocks)"
        )
    if result.load_ns is not None:
        first = f", first inference {format_ns(result.first_ns)}" if result.first_ns is not None else ""
        lines.append(f"  load      {format_ns(result.load_ns)}{first}")
    memory = f", peak memory {format_bytes(result.peak_memory_bytes)}" if result.peak_memory_bytes else ""
    lines.append(f"  size      {format_bytes(result.artifact.size_bytes)}{memory}")
    for metric, value in result.metrics.items():
        difference = (
            f" ({format_difference(value.difference, value.unit)} against the reference)"
            if value.difference is not None
            else ""
        )
        shown = format_metric(value.value, value.unit)
        lines.append(f"  {metric_name(metric):<9} {shown}{difference} on {value.n} samples")
    placed = {provider: len(nodes) for provider, nodes in result.placement.get("nodes", {}).items()}
    lines += [f"  placement {count} nodes on {provider}" for provider, count in placed.items()]
    return lines
