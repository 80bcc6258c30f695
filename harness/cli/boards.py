"""``boardtune boards``: list, show, check, init, trust, schema, clean, flash, console.

Imports happen inside the commands, so that ``boardtune --help`` does not wait for them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.common import json_option, print_json
from harness.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from harness.boards.init import SshAddress


@click.group(name="boards")
def command() -> None:
    """List, check and set up the boards that models are measured on."""


@command.command(name="list", short_help="Lists all boards.")
@json_option
def list_boards(as_json: bool) -> None:
    """Lists all boards, where they come from, and files that are broken."""
    from harness.boards.registry import load_registry
    from harness.cli import boards_text as text

    registry = load_registry()
    if as_json:
        print_json(text.list_json(registry))
        return
    for line in text.list_lines(registry):
        click.echo(line)
    for notice in registry.notices:
        click.echo(f"note: {notice}", err=True)


@command.command(short_help="Shows a board with all defaults filled in.")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Shows a board as boardtune understands it: defaults and families filled in, secrets only as references."""
    import yaml

    from harness.boards.registry import load_registry

    registry = load_registry()
    board = registry.get(name)
    content = board.model_dump(mode="json", exclude_none=True)
    entry = registry.entry(name)
    if as_json:
        print_json({**content, "file": str(entry.path), "from": entry.origin})
    else:
        click.echo(f"# {entry.path} ({entry.origin})")
        click.echo(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None), nl=False)


@command.command(short_help="Connects to boards and says what is wrong with them.")
@click.argument("names", nargs=-1)
@click.option(
    "--seconds", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Length of the self-test."
)
@json_option
def check(names: tuple[str, ...], seconds: float, as_json: bool) -> None:
    """Connects to the boards named (or to all) and says what is wrong with them."""
    from harness.boards.check import check_board
    from harness.boards.registry import load_registry
    from harness.cli import boards_text as text

    registry = load_registry()
    boards = [registry.get(name) for name in dict.fromkeys(names or registry.names())]
    for entry in registry.entries:
        if not names and entry.error is not None:
            click.echo(f"note: not checked: {entry.error}", err=True)
    if not boards:
        raise ConfigError("there are no boards", hint="boardtune boards init NAME --ssh user@host")
    reports = []
    for board in boards:
        if not as_json:
            click.echo(text.heading(board))
        report = check_board(board, seconds=seconds)
        reports.append(report)
        if not as_json:
            for line in text.report_lines(report):
                click.echo(line)
    if as_json:
        print_json({"boards": [report.to_json() for report in reports]})
    click.get_current_context().exit(int(max(report.exit_code for report in reports)))


@command.command()
@click.argument("name")
@click.option("--ssh", "ssh", metavar="USER@HOST[:PORT]", help="The board is reached over SSH there.")
@click.option("--serial", metavar="PORT", help="The board is a microcontroller at this serial port.")
@click.option("--target", metavar="CHIP", help="With --serial: the chip: esp32s3, esp32p4, …")
@click.option("--local", is_flag=True, help="The board is this machine.")
@click.option("--template", metavar="NAME", help="Start from a template for a kind of board: raspberry-pi, jetson, …")
@click.option("--key", metavar="FILE", help="Private key file for SSH.")
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="Folder to write to.  [default: ./boards]"
)
@click.option("--user", "in_user_folder", is_flag=True, help="Write to your configuration folder instead of ./boards.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@json_option
def init(
    name: str,
    ssh: str | None,
    serial: str | None,
    target: str | None,
    local: bool,
    template: str | None,
    key: str | None,
    folder: Path | None,
    in_user_folder: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Writes a commented file for a new board."""
    from harness.boards.folders import config_folder
    from harness.boards.init import new_board

    if serial is not None and (ssh is not None or local):
        raise ConfigError("--serial excludes --ssh and --local", hint="give one of them")
    address = _address(ssh, local, ask=not as_json and _somebody_is_here()) if serial is None else None
    where = folder or (config_folder() / "boards" if in_user_folder else Path("boards"))
    path = new_board(
        name, folder=where, ssh=address, template=template, key=key, serial=serial, target=target, overwrite=force
    )
    steps = [f"boardtune boards trust {name}"] if address is not None else []
    steps.append(f"boardtune boards check {name}")
    if as_json:
        print_json({"board": name, "file": str(path), "next": steps})
        return
    click.echo(f"wrote {path}")
    for number, step in enumerate(steps):
        click.echo(f"{'next:' if number == 0 else 'then:'} {step}")


def _somebody_is_here() -> bool:
    return sys.stdin.isatty()


def _address(ssh: str | None, local: bool, *, ask: bool) -> SshAddress | None:
    from harness.boards.init import parse_address

    if ssh is not None and local:
        raise ConfigError("--ssh and --local exclude each other", hint="give one of them")
    if ssh is None and not local:
        if not ask:
            raise ConfigError(
                "where is the board?", hint="add --ssh user@host, --serial PORT, or --local for this machine"
            )
        ssh = click.prompt("Where is the board? (user@host, or 'local' for this machine)")
        local = ssh == "local"
    return None if local or ssh is None else parse_address(ssh)


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--fingerprint", metavar="SHA256:…", help="Trust the key only if it has this fingerprint; do not ask.")
@click.option("--replace", is_flag=True, help="Let a changed key replace the one enrolled.")
@json_option
def trust(name: str, yes: bool, fingerprint: str | None, replace: bool, as_json: bool) -> None:
    """Enrols the host key of a board, after showing its fingerprint."""
    from device_agents.contract import AgentError
    from harness.boards.clean import unavailable
    from harness.boards.registry import load_registry
    from harness.boards.trust import accept, ask_board
    from harness.cli import boards_text as text

    board = load_registry().get(name)
    try:
        question = ask_board(board)
    except AgentError as error:
        raise unavailable(error, board) from error
    if not as_json:
        for line in text.trust_lines(question):
            click.echo(line)
    asked = question.state == "new" or (question.state == "changed" and replace)
    if asked and fingerprint is None and not yes:
        if as_json or not _somebody_is_here():
            raise ConfigError(
                f"board {name!r} presents {question.key.algorithm} {question.key.fingerprint}, "
                "and nobody is here to confirm it",
                hint="add --fingerprint SHA256:… as the board shows it, or --yes",
            )
        if not click.confirm("Is this the fingerprint the board itself shows?", default=False):
            click.echo("nothing was enrolled")
            click.get_current_context().exit(int(ExitCode.USAGE))
    path = accept(question, fingerprint=fingerprint, replace=replace)
    if as_json:
        print_json(text.trust_json(question, path))
    elif path is not None:
        click.echo(f"enrolled in {path}")


@command.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
@json_option
def schema(out: Path | None, as_json: bool) -> None:
    """Prints the JSON Schema of board files, for editors."""
    from harness.boards.json_schema import board_file_schema
    from harness.cli import boards_text as text

    content = text.json_text(board_file_schema())
    if out is None:
        click.echo(content)
        return
    try:
        out.write_text(content + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror or error}", where=out, hint="choose another --out"
        ) from None
    if as_json:
        print_json({"file": str(out)})
    else:
        click.echo(f"wrote {out}; put this on the first line of a board file:")
        click.echo(f"# yaml-language-server: $schema={out.resolve().as_uri()}")


@command.command()
@click.argument("name")
@json_option
def clean(name: str, as_json: bool) -> None:
    """Removes all that boardtune left on a board."""
    from harness.boards.clean import clean_board
    from harness.boards.registry import load_registry

    removed = clean_board(load_registry().get(name))
    if as_json:
        print_json({"board": name, "removed": list(removed)})
        return
    for item in removed:
        click.echo(f"removed {item}")
    click.echo(f"{name} is clean" if removed else f"{name} was clean already")


@command.command()
@click.argument("name")
@click.option("--build", is_flag=True, help="Build the firmware first, with ESP-IDF's idf.py.")
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of an ESP-IDF build of the firmware, made elsewhere.",
)
@json_option
def flash(name: str, build: bool, images: Path | None, as_json: bool) -> None:
    """Puts boardtune's firmware on a microcontroller, with esptool."""
    from device_agents.contract import AgentError
    from harness.boards.clean import unavailable
    from harness.boards.flash import flash_board
    from harness.boards.registry import load_registry

    board = load_registry().get(name)
    try:
        flashed = flash_board(board, build=build, images=images)
    except AgentError as error:
        raise unavailable(error, board) from error
    if as_json:
        files = [{"offset": offset, "file": str(image)} for offset, image in flashed.files]
        print_json({"board": name, "port": flashed.port, "files": files, "commands": flashed.commands})
        return
    click.echo(f"flashed {len(flashed.files)} images at {flashed.port}")
    click.echo(f"next: boardtune boards check {name}")


@command.command()
@click.argument("name")
@click.option("--seconds", type=click.FloatRange(min=0.1), help="Stop after this long.  [default: until Ctrl-C]")
@click.option("--reset", is_flag=True, help="Reset the board first, to see it start.")
@click.option("--frames", is_flag=True, help="Also a line for each frame of the wire protocol.")
@json_option
def console(name: str, seconds: float | None, reset: bool, frames: bool, as_json: bool) -> None:
    """Shows what a microcontroller says on its line: boot log, panics. Sends nothing."""
    from device_agents.contract import AgentError
    from device_agents.serial.console import watch
    from harness.boards.agents import serial_target
    from harness.boards.clean import unavailable
    from harness.boards.registry import load_registry

    board = load_registry().get(name)
    target = serial_target(board)
    lines = []
    try:
        for line in watch(target, seconds, reset=reset, frames=frames):
            lines.append(line)
            if not as_json:
                click.echo(line)
                lines.clear()
    except AgentError as error:
        raise unavailable(error, board) from error
    if as_json:
        print_json({"board": name, "lines": lines})
