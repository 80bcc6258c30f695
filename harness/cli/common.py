"""Options that several commands share, and reading them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
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


def parse_set_dims(texts: Iterable[str]) -> dict[str, int]:
    """``NAME=N`` pairs; raises :class:`ConfigError` naming the text that is none."""
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        if not name or not size.isdigit() or int(size) < 1:
            raise ConfigError(f"--set-dim {text!r} is not NAME=N with N at least 1", hint="such as --set-dim width=320")
        sizes[name] = int(size)
    return sizes


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options that the user set; the others are left to the plan file and its defaults."""
    return {name: value for name, value in values.items() if value is not None and value != ()}


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
