"""Options that several commands share, and reading them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from harness.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
preprocess_option = click.option(
    "--preprocess", type=click.Path(path_type=Path), help="YAML file that declares how stored samples become inputs."
)
set_dim_option = click.option(
    "--set-dim", multiple=True, metavar="NAME=N", help="Fixes a dynamic dimension of the model; may be repeated."
)


class FiniteFloat(click.FloatRange):
    """A number; nan and the infinities, which would switch a limit off, are refused."""

    name = "float"

    def __init__(self, above: float | None = None) -> None:
        super().__init__(min=above, min_open=above is not None)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number

    def _describe_range(self) -> str:
        # click writes "x<=None" for a range without ends.
        return "" if self.min is None else super()._describe_range()


model_argument = click.argument("model_argument", metavar="[MODEL]", required=False, type=click.Path(path_type=Path))


def one_model(argument: Path | None, option: Path | None) -> Path:
    """What was given as MODEL or with ``--model``. Raises :class:`ConfigError` unless it is one of them."""
    if (argument is None) == (option is None):
        raise ConfigError("give one model: MODEL or --model")
    return argument or option or Path()


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options that the user set; the others are left to the plan file and its defaults."""
    return {name: value for name, value in values.items() if value is not None and value != ()}


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
