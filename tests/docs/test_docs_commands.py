"""Commands in the documentation are ones that the command line takes, and its reference is complete."""

from __future__ import annotations

import re
from pathlib import Path

import cli_reference
import click
import pytest
from documents import DOCUMENTS, ROOT, blocks, inline_commands, table_cells, typed_commands

from harness.cli.main import COMMANDS, cli
from harness.errors import ExitCode
from harness.plan import Plan


def parse(words: tuple[str, ...]) -> None:
    """Raises click's UsageError where a command, option or value is not one. Arguments may be missing where ``…``
    stands for them."""
    left_out = "…" in words
    arguments = [word for word in words[1:] if word != "…"]
    try:
        context = cli.make_context("boardtune", arguments)
        while isinstance(context.command, click.Group):
            rest = [*context._protected_args, *context.args]
            if not rest:
                return
            name, command, rest = context.command.resolve_command(context, rest)
            assert command is not None
            context = command.make_context(name, rest, parent=context)
    except (click.exceptions.NoArgsIsHelpError, click.exceptions.Exit):
        return  # --help, --version
    except click.MissingParameter:
        if not left_out:
            raise


def typed() -> list[tuple[str, tuple[str, ...]]]:
    found = [(block.place, words) for block in blocks("console", "bash", "sh") for words in typed_commands(block)]
    return [(place, words) for place, words in found if words and words[0] == "boardtune"]


def test_there_are_commands_in_the_documentation() -> None:
    assert len(typed()) > 20


@pytest.mark.parametrize(("place", "words"), typed(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_command_is_taken(place: str, words: tuple[str, ...]) -> None:
    parse(words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_the_text_are_taken(document: Path) -> None:
    for words in inline_commands(document):
        parse((*words, "…"))


def test_an_option_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(click.NoSuchOption):
        parse(("boardtune", "search", "--modle", "m.onnx"))
    with pytest.raises(click.UsageError, match="No such command"):
        parse(("boardtune", "boards", "frobnicate", "…"))
    with pytest.raises(click.MissingParameter):
        parse(("boardtune", "quantize", "--model", "m.onnx"))


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named: set[str] = set()
    for block in blocks("console"):
        for words in typed_commands(block):
            if words and words[0] == "make":
                named.update(word for word in words[1:] if "=" not in word)
    assert named
    assert named <= targets


# ---- docs/cli.md ---------------------------------------------------------------------------------------------------


def section(name: str) -> str:
    text = cli_reference.DOCUMENT.read_text(encoding="utf-8")
    match = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    assert match is not None, f"docs/cli.md has no section {name!r}: run python tests/docs/cli_reference.py"
    return match[1]


@pytest.mark.parametrize(
    ("name", "command"), list(cli_reference.commands()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_reference_has_every_option_as_it_is(name: str, command: click.Command) -> None:
    text = section(name)
    assert " ".join((command.help or "").split()) in text
    rows = [cell.strip("`") for cell in table_cells(text)][1:]
    meanings = table_cells(text, 2)[1:]
    assert dict(zip(rows, meanings, strict=True)) == cli_reference.options(command), (
        "docs/cli.md is out of date: run python tests/docs/cli_reference.py"
    )


def test_reference_has_no_command_that_is_not_there() -> None:
    text = cli_reference.DOCUMENT.read_text(encoding="utf-8")
    named = set(re.findall(r"^## (boardtune.*)$", text, flags=re.MULTILINE))
    assert named == {name for name, _ in cli_reference.commands()}


def test_reference_has_every_key_of_a_plan() -> None:
    text = cli_reference.DOCUMENT.read_text(encoding="utf-8").split("## Plan files")[1].split(cli_reference.MARK)[0]
    keys = {key for cell in table_cells(text)[1:] for key in re.findall(r"`(\w+)`", cell)}
    assert keys == set(Plan.model_fields)


# ---- README --------------------------------------------------------------------------------------------------------


def test_readme_has_every_command_and_exit_code() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    overview = text.split("## Commands")[1].split("\n## ")[0]
    assert table_cells(overview)[1:] == [f"`boardtune {name}`" for name in COMMANDS]
    for document in (ROOT / "README.md", ROOT / "docs" / "cli.md"):
        codes = document.read_text(encoding="utf-8").split("## Exit codes")[1].split("\n## ")[0]
        assert table_cells(codes)[1:] == [str(int(code)) for code in ExitCode], document.name
