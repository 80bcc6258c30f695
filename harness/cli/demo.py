"""``boardtune demo``: the example search, as a newcomer sees it first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from harness.cli.common import json_option
from harness.errors import ConfigError

PLANS: Mapping[str, str] = {"laptop": "plan.yaml", "esp32": "plan-esp32.yaml"}
"""What is shown, and its plan beside the example's model."""


@click.command("demo", short_help="Search recipes for the example model on two boards.")
@click.argument("which", type=click.Choice(list(PLANS)), default="laptop")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Folder to write to.  [default: runs/demo-TIME]")
@json_option
def command(which: str, run_dir: Path | None, as_json: bool) -> int:
    """Search recipes for the example model on two boards: this machine and an emulated Ryzen AI laptop, or (esp32) an
    emulated ESP32-S3 and ESP32-P4, for which ESP-PPQ is installed where it is not."""
    from harness.cli.search import run_search
    from harness.controller.search import default_run_dir
    from harness.plan import load_plan

    plan_file = example_folder() / PLANS[which]
    plan = load_plan(plan_file, {})
    folder = run_dir or default_run_dir(Path("demo"))
    if which == "esp32":
        _have_esp_ppq()
    if not as_json:
        click.echo(
            f"Searching quantization recipes for {plan.model.name} on {', '.join(plan.boards)}: a few minutes.",
            err=True,
        )
    return run_search(plan, folder, as_json=as_json, arguments=["search", "--plan", str(plan_file)])


def _have_esp_ppq() -> None:
    from harness.quantize.vendors.environments import NotInstalled, find_environment, install

    try:
        find_environment("esp_ppq")
    except NotInstalled:
        click.echo(
            "ESP-PPQ makes models for these chips. It is installed first, with PyTorch: a few minutes.", err=True
        )
        install("esp_ppq", tell=lambda text: click.echo(text, err=True))


def example_folder() -> Path:
    """``examples/fashion_mnist`` of a clone; raises :class:`ConfigError` where boardtune was installed without it."""
    folder = Path(__file__).resolve().parents[2] / "examples" / "fashion_mnist"
    if not (folder / "plan.yaml").is_file():
        raise ConfigError(
            "the example's model and data are not part of the installed package",
            hint="clone the repository and run `make demo` there",
        )
    return folder
