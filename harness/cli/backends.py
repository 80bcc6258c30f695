"""``boardtune backends``: list, install, check, remove.

Imports happen inside the commands, so that ``boardtune --help`` does not wait for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness.cli.common import json_option, print_json


@click.group(name="backends")
def command() -> None:
    """Vendors' quantizers, each in an environment of its own."""


@command.command(name="list", short_help="Lists the vendors' quantizers and whether they are installed.")
@json_option
def list_backends(as_json: bool) -> None:
    """Lists the vendors' quantizers, what each needs, and whether it is installed."""
    from harness.errors import ConfigError
    from harness.quantize.vendors.environments import VENDORS, find_environment

    rows: list[dict[str, Any]] = []
    for vendor in VENDORS.values():
        row: dict[str, Any] = {"name": vendor.name, "title": vendor.title, "requirements": list(vendor.requirements)}
        try:
            environment = find_environment(vendor.name)
        except ConfigError as error:
            rows.append({**row, "installed": False, "why": error.message, "hint": error.hint})
        else:
            rows.append(
                {**row, "installed": True, "python": str(environment.python), "versions": dict(environment.versions)}
            )
    if as_json:
        print_json({"backends": rows})
        return
    for row in rows:
        click.echo(f"{row['name']}: {row['title']}")
        if row["installed"]:
            versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
            click.echo(f"  installed: {versions or 'as it is'} ({row['python']})")
        else:
            click.echo(f"  {row['why']}: {row['hint']}")


@command.command(short_help="Installs a vendor's quantizer.")
@click.argument("name")
@click.option("--python", type=click.Path(path_type=Path), help="Interpreter to make the environment with.")
@click.option(
    "--pip-arg", "pip_arguments", multiple=True, help="Argument for pip, e.g. --index-url=URL; may be repeated."
)
@click.option("--wheel", type=click.Path(path_type=Path), help="The vendor's package, where no index has it (amct).")
@json_option
def install(name: str, python: Path | None, pip_arguments: tuple[str, ...], wheel: Path | None, as_json: bool) -> None:
    """Makes the environment of a vendor's quantizer: finds an interpreter that fits, installs, and imports it once."""
    from harness.quantize.vendors import environments

    made = environments.install(
        name, python=python, pip_arguments=pip_arguments, wheel=wheel, tell=lambda text: click.echo(text, err=True)
    )
    _show(made.vendor.name, str(made.python), dict(made.versions), as_json)


@command.command(short_help="Tries whether a vendor's quantizer works.")
@click.argument("name")
@json_option
def check(name: str, as_json: bool) -> None:
    """Imports the vendor's package in its environment and prints the versions."""
    from harness.quantize.vendors import environments

    found = environments.find_environment(name)
    versions = environments.check(found.vendor, found.python)
    _show(name, str(found.python), versions, as_json)


@command.command(short_help="Removes a vendor's environment.")
@click.argument("name")
def remove(name: str) -> None:
    """Removes what `install` made."""
    from harness.quantize.vendors import environments

    gone = environments.remove(name)
    click.echo(f"{name}: {'removed' if gone else 'was not installed'}")


def _show(name: str, python: str, versions: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "python": python, "versions": versions})
        return
    click.echo(f"{name}: {', '.join(f'{package} {version}' for package, version in versions.items())} ({python})")
