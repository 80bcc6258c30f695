"""Code and YAML in the documentation is valid; the README's program really runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import ROOT, Block, blocks

import device_agents.contract
import harness
import harness.errors
from harness.boards.registry import load_registry
from harness.data.preprocess import Preprocess
from harness.plan import load_plan, make_plan
from harness.recipes.files import read_recipe


def identify(block: Block) -> Any:
    return block.place


@pytest.mark.parametrize("block", blocks("python"), ids=identify)
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.place, "exec")


def kind_of(content: Any) -> str:
    """A board file, plan, recipe, preprocessing declaration, or a fragment of a board file."""
    if not isinstance(content, dict):
        return "comment"
    if "apiVersion" in content:
        return "board"
    if "model" in content and "calib" in content:
        return "plan"
    if "scheme" in content:
        return "recipe"
    return "fragment" if set(content) <= {"emulated"} else "preprocess"


@pytest.mark.parametrize("block", blocks("yaml"), ids=identify)
def test_yaml_is_what_it_says(block: Block, tmp_path: Path) -> None:
    content = yaml.safe_load(block.text)
    path = tmp_path / "example.yaml"
    path.write_text(block.text, encoding="utf-8")
    match kind_of(content):
        case "plan":
            plan = load_plan(path, {})
            assert str(plan.model) == str(tmp_path / content["model"])
        case "recipe":
            read_recipe(path)
        case "preprocess":
            Preprocess.load(path)
        case "fragment":
            base = yaml.safe_load((ROOT / "boards" / "rpi5-emulated.yaml").read_text(encoding="utf-8"))
            base["emulated"] |= content["emulated"]
            path.write_text(yaml.safe_dump(base), encoding="utf-8")
            assert load_registry([tmp_path]).entries[0].error is None
        case "board":
            pass  # tests/boards/test_board_docs.py: they extend each other


def test_plans_of_the_examples_are_valid() -> None:
    plans = sorted((ROOT / "examples").glob("*/plan*.yaml"))
    assert plans
    for path in plans:
        load_plan(path, {})


def test_the_plan_of_getting_started_finds_its_files() -> None:
    block = next(b for b in blocks("yaml") if b.document.name == "getting-started.md" and "calib:" in b.text)
    plan = make_plan(yaml.safe_load(block.text))
    for path in (plan.model, Path(plan.calib), Path(str(plan.eval))):
        assert (ROOT / path).is_file()
    assert set(plan.boards) <= set(load_registry([ROOT / "boards"]).names())


def test_pages_name_everything_they_are_about() -> None:
    api = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    missing = [name for name in harness.__all__ if name not in api]
    assert missing == []
    trouble = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    kinds = [*device_agents.contract.ERRORS, "ConfigError", "ModelError", "DataError", "BoardUnavailable"]
    assert [kind for kind in kinds if f"`{kind}`" not in trouble] == []


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, harness\n"
        "assert not {'ray', 'onnx', 'onnxruntime', 'numpy', 'pydantic', 'harness.api'} & set(sys.modules)\n"
        "assert set(harness.__all__) <= set(dir(harness))\n"
        "for name in harness.__all__: getattr(harness, name)\n"
        "assert 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'serach'; it has .*run_search"):
        harness.serach  # noqa: B018


@pytest.mark.slow
def test_the_programs_of_the_readme_run(tmp_path: Path) -> None:
    program = next(b for b in blocks("python") if b.document.name == "README.md").text
    assert len([line for line in program.splitlines() if line.strip()]) <= 10
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    picks, exported = lines[:-1], lines[-1]
    assert 1 <= len(picks) <= 2
    assert all(" µs, top-1 0." in line for line in picks)
    model, stamp = exported.split()
    assert stamp == "(emulated)"
    assert (tmp_path / model).is_file()


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}
