"""The command reference, from click: ``python tests/docs/cli_reference.py`` writes the lower part of docs/cli.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from harness.cli.main import cli

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"
MARK = "<!-- from here on written by tests/docs/cli_reference.py -->"


def commands(group: click.Group = cli, path: tuple[str, ...] = ("boardtune",)) -> Iterator[tuple[str, click.Command]]:
    """(full name, command) of every command, groups included."""
    yield " ".join(path), group
    context = click.Context(group, info_name=path[-1])
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif command is not None:
            yield " ".join((*path, name)), command


def options(command: click.Command) -> dict[str, str]:
    """Names of an option, joined by commas -> its help with default."""
    context = click.Context(command, info_name="x")
    found = {}
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            found[", ".join((*parameter.opts, *parameter.secondary_opts))] = " ".join(record[1].split())
    return found


def arguments(command: click.Command) -> str:
    return " ".join(p.human_readable_name for p in command.params if isinstance(p, click.Argument))


def values(command: click.Command) -> dict[str, str]:
    """Names of an option -> what it takes, as click shows it; empty for a switch."""
    context = click.Context(command, info_name="x")
    found = {}
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            names = ", ".join((*parameter.opts, *parameter.secondary_opts))
            found[names] = record[0].removeprefix(names).strip()
    return found


def reference() -> str:
    lines = [MARK]
    for name, command in commands():
        lines += ["", f"## {name}", ""]
        lines.append(" ".join((command.help or "").split()))
        if isinstance(command, click.Group):
            context = click.Context(command)
            lines += ["", "Commands: " + ", ".join(f"`{sub}`" for sub in command.list_commands(context)) + "."]
        if taken := arguments(command):
            lines += ["", f"Arguments: `{taken}`"]
        takes = values(command)
        if shown := options(command):
            lines += ["", "| option | takes | meaning |", "|---|---|---|"]
            for names, help_text in shown.items():
                cells = [f"`{names}`", f"`{takes[names]}`" if takes[names] else "", help_text]
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    head = DOCUMENT.read_text(encoding="utf-8").split(MARK)[0]
    DOCUMENT.write_text(head + reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
