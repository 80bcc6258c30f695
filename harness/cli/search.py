"""``boardtune search``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from harness.cli.common import (
    given,
    json_option,
    preprocess_option,
    print_json,
    set_dim_option,
)
from harness.errors import ConfigError
from harness.plan import Effort, MixedPrecision, Objective, Plan, Sampler, load_plan, make_plan
from harness.quantize.shapes import parse_set_dims


@click.command("search", short_help="Search recipes for a model on boards.")
@click.argument("model_argument", metavar="[MODEL]", required=False, type=click.Path(path_type=Path))
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="YAML file with any of the options below.")
@click.option("--model", type=click.Path(path_type=Path), help="Float ONNX model; instead of the argument.")
@click.option("--calib", help="Calibration set: .npz, folder, image folder, or module:function.")
@click.option("--eval", help="Evaluation set, same forms.")
@preprocess_option
@set_dim_option
@click.option("--boards", help="Boards to measure on, separated by commas.  [default: local]")
@click.option("--preset", help="What to search: quick, standard, full, xint8-like, quark-xint8 ….  [default: quick]")
@click.option(
    "--mixed-precision",
    type=click.Choice(get_args(MixedPrecision)),
    help="Keep the most sensitive groups in float, with 16-bit activations, or either.  [default: none]",
)
@click.option("--recipe", "recipes", multiple=True, type=click.Path(path_type=Path), help="Recipe file to try first.")
@click.option(
    "--add-candidate",
    "candidates",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="ONNX model quantized elsewhere, tried beside ours; repeatable.",
)
@click.option("--trials", type=int, help="Recipes to try.  [default: all of the preset, or 32]")
@click.option("--top-k", type=int, help="Candidates to hand over.  [default: 3]")
@click.option("--objective", type=click.Choice(get_args(Objective)), help="What to pick by.  [default: pareto]")
@click.option("--filter", help="pareto, balanced, score, or module:function.  [default: pareto]")
@click.option("--sampler", type=click.Choice(get_args(Sampler)), help="How an open space is sampled.  [default: tpe]")
@click.option("--max-latency", help="Limit, such as 8ms.")
@click.option("--min-accuracy", help="Limit, such as -0.5pp (against float) or 0.9.  [default: -1pp for top1, top5]")
@click.option("--max-size", help="Limit of the model file, such as 500kB.")
@click.option("--max-memory", help="Limit of the peak on the board, such as 64MB.")
@click.option("--min-offload", type=float, help="Limit: share of operators on the accelerator, 0..1.")
@click.option(
    "--min-snr",
    type=float,
    help="dB against float below which a model is refused.  [default: 15; 3 where labels decide]",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    help="top1, top5, mae, mse, cosine, snr, module:function; repeatable, ranked on the first.",
)
@click.option("--budget", help="Device time over all boards, such as 10m.")
@click.option("--max-time", help="Wall time of the search, such as 1h.")
@click.option(
    "--effort", type=click.Choice(get_args(Effort)), help="How long each candidate is measured.  [default: standard]"
)
@click.option(
    "--scope",
    type=click.Choice(["inference", "pipeline"]),
    help="What is timed: the model alone, or pre- and post-processing too.  [default: inference]",
)
@click.option(
    "--postprocess",
    type=click.Choice(["none", "softmax", "argmax"]),
    help="What follows the model with --scope pipeline.",
)
@click.option("--batch", type=int, help="Samples per inference.  [default: 1]")
@click.option("--seed", type=int, help="Of all that is random; same seed, same proposals.  [default: 0]")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Folder to write to.  [default: runs/MODEL-TIME]")
@click.option("--resume", is_flag=True, help="Go on with the run in --run-dir.")
@click.option("--dry-run", is_flag=True, help="Say what would be tried and how long it takes; touch no board.")
@click.option("--ray-address", help="Join this Ray cluster instead of starting Ray here.")
@json_option
def command(
    model_argument: Path | None,
    model: Path | None,
    plan_file: Path | None,
    set_dim: tuple[str, ...],
    run_dir: Path | None,
    resume: bool,
    dry_run: bool,
    ray_address: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Search quantization recipes for MODEL on boards, and hand over the best."""
    if model is not None and model_argument is not None:
        raise ConfigError(f"two models: {model_argument} and --model {model}", hint="give one of them")
    values = given({**options, "model": model or model_argument, "set_dim": parse_set_dims(set_dim) or None})
    plan = load_plan(plan_file, values) if plan_file else make_plan(_complete(values), where="")
    if dry_run:
        return _dry_run(plan, as_json)
    if resume and run_dir is None:
        raise ConfigError("--resume needs --run-dir", hint="name the run directory to go on with")
    return run_search(plan, run_dir, resume=resume, ray_address=ray_address, as_json=as_json)


def run_search(
    plan: Plan,
    run_dir: Path | None,
    *,
    resume: bool = False,
    ray_address: str | None = None,
    as_json: bool = False,
    arguments: list[str] | None = None,
) -> int:
    """Runs, shows progress, prints the result; returns the exit code. ``arguments``: of the command that goes on with
    an interrupted run, where it is not this process's own."""
    from harness.cli.progress import watcher_for
    from harness.controller.search import default_run_dir, search
    from harness.errors import ExitCode

    folder = run_dir or default_run_dir(plan.model)
    with watcher_for(plan.boards, quiet=as_json) as watcher:
        result = search(plan, folder, resume=resume, watcher=watcher, ray_address=ray_address)
    if as_json:
        print_json(result.candidates)
    else:
        print_outcome(folder)
        if result.report is not None:
            click.echo(f"report: {result.report}")
        if any(result.candidates["picks"].values()):
            click.echo(f"to ship a pick: {export_command(folder, result.candidates['picks'])}")
    if result.exit_code == ExitCode.INTERRUPTED:
        click.echo(f"interrupted; go on with:\n  {resume_command(folder, arguments)}", err=True)
    elif result.exit_code == ExitCode.INTERNAL:
        click.echo(f"every trial met a defect of boardtune: see {folder / 'logs'}", err=True)
    elif result.exit_code != ExitCode.OK:
        click.echo(f"no feasible candidate: {result.stop_reason}; the report says what each trial lacked", err=True)
    return int(result.exit_code)


def print_outcome(folder: Path) -> None:
    """Verdicts and the top-K tables."""
    from rich.console import Console

    from harness.ledger.run_directory import RunDirectory
    from harness.report.load import load_report_data
    from harness.report.terminal import print_top, print_verdicts

    data = load_report_data(RunDirectory.open(folder), samples=False)
    console = Console()
    print_top(console, data)
    print_verdicts(console, data)


def export_command(folder: Path, picks: Mapping[str, Sequence[int]]) -> str:
    """The command line that writes the first pick; names a board where boards differ."""
    first = {board: trials[0] for board, trials in picks.items() if trials}
    words = ["boardtune", "export", str(folder), "--pick", "1"]
    if len(set(first.values())) > 1:
        words += ["--board", next(iter(first))]
    return shlex.join(words)


def resume_command(folder: Path, arguments: list[str] | None = None) -> str:
    """The command line that goes on with the run: this one, with --resume and its run directory."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--resume" not in words:
        words.append("--resume")
    if not any(word == "--run-dir" or word.startswith("--run-dir=") for word in words):
        words += ["--run-dir", str(folder)]
    return shlex.join(["boardtune", *words])


def _complete(values: dict[str, Any]) -> dict[str, Any]:
    for name in ("model", "calib"):
        if name not in values:
            raise ConfigError(f"--{name} is missing", hint="give it, or a --plan file that has it")
    return values


def _dry_run(plan: Plan, as_json: bool) -> int:
    from harness.controller.dry_run import describe

    description = describe(plan)
    if as_json:
        print_json(description.to_json())
    else:
        for line in description.lines():
            click.echo(line)
    return 0
