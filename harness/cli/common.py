"""Options that several commands share, and reading them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
preprocess_option = click.option(
    "--preprocess", type=click.Path(path_type=Path), help="YAML file that declares how stored samples become inputs."
)
set_dim_option = click.option(
    "--set-dim", multiple=True, metavar="NAME=N", help="Fixes a dynamic dimension of the model; may be repeated."
)


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options that the user set; the others are left to the plan file and its defaults."""
    return {name: value for name, value in values.items() if value is not None and value != ()}


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
