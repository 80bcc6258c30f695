"""The ``boardtune`` command: collects the commands and turns errors into messages and exit codes."""

from __future__ import annotations

import importlib
import importlib.metadata
import keyword
import logging
import os
import sys
from collections.abc import Sequence

import click

from harness.errors import BoardtuneError, ExitCode
from harness.suggest import near_hint

COMMANDS = (
    "search", "audit", "lint", "diagnose", "measure", "placement", "quantize", "sensitivity", "boards", "backends",
    "report", "export", "import", "show", "reproduce", "demo",
)  # fmt: skip


class LazyCommands(click.Group):
    """Loads a command's module when it is asked for, so that ``boardtune --help`` starts at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command: click.Command = importlib.import_module(f"harness.cli.{module}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = near_hint(args[0], COMMANDS)
            if near:
                raise click.UsageError(f"{error.message.rstrip('.')}; {near}", ctx) from None
            raise


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("boardtune"), prog_name="boardtune")
@click.option("-v", "--verbose", count=True, help="Log to the terminal; twice for details.")
def cli(verbose: int) -> None:
    """Finds the quantized ONNX model to ship to a board, by trying recipes on the board itself."""
    if verbose:
        logging.basicConfig(level=logging.DEBUG if verbose > 1 else logging.INFO, stream=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; always ends the process."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code."""
    from device_agents.contract import AgentError
    from harness.cli.exit_codes import exit_code_of

    try:
        result = cli.main(args=list(arguments), prog_name="boardtune", standalone_mode=False)
        return int(result) if isinstance(result, int) else ExitCode.OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except BoardtuneError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except AgentError as error:
        click.echo(f"error: {error}", err=True)
        return exit_code_of(error)
    except BrokenPipeError:
        # Whoever reads our output has gone (`boardtune … | head`); do not complain while exiting.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        if logging.getLogger().isEnabledFor(logging.INFO):
            logging.exception("internal error")
        click.echo(f"internal error: {type(error).__name__}: {error}", err=True)
        click.echo("  this is a defect of boardtune; `boardtune -v …` shows where", err=True)
        return ExitCode.INTERNAL
