"""The zipapp: the same every time, and readable by every Python it promises."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import device_agents.runner
from device_agents.runner import frames
from device_agents.runner_package import build_runner

SOURCES = sorted(Path(device_agents.runner.__file__).parent.glob("*.py"))
PYTHON_38 = sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python"))
ALLOWED = set(sys.stdlib_module_names) | {"numpy", "onnxruntime", "runner"}


def test_the_same_sources_give_the_same_bytes() -> None:
    data, sha256 = build_runner()
    assert build_runner.__wrapped__() == (data, sha256)
    assert hashlib.sha256(data).hexdigest() == sha256
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.testzip() is None
        assert len(archive.namelist()) == len(SOURCES)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_sources_are_python_38_and_import_only_what_boards_have(source: Path) -> None:
    tree = ast.parse(source.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [str(node.module)]
        assert {name.partition(".")[0] for name in names} <= ALLOWED


def test_serve_needs_neither_numpy_nor_a_runtime() -> None:
    code = (
        "import sys; sys.modules['numpy'] = sys.modules['onnxruntime'] = None\n"
        "import device_agents.runner.server, device_agents.runner.machine"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])


@pytest.mark.skipif(not PYTHON_38, reason="no Python 3.8 under pyenv")
def test_it_starts_under_python_38(tmp_path: Path) -> None:
    pyz = tmp_path / "runner.pyz"
    pyz.write_bytes(build_runner()[0])
    done = subprocess.run(
        [PYTHON_38[0], "runner.pyz", "serve"], input=b"", capture_output=True, cwd=tmp_path, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == frames.MARKER


OLD = sorted(Path.home().glob(".pyenv/versions/*/bin/python"))
OLD = [p for p in OLD if p.parts[-3].startswith(("2.7", "3.6", "3.7"))]


@pytest.mark.parametrize("python", OLD, ids=lambda path: path.parts[-3])
def test_older_pythons_are_told_what_is_needed(tmp_path: Path, python: Path) -> None:
    pyz = tmp_path / "runner.pyz"
    pyz.write_bytes(build_runner()[0])
    done = subprocess.run([python, pyz, "serve"], input=b"", capture_output=True, timeout=60, check=False)
    assert done.returncode == 3
    assert b"boardtune-runner: needs Python 3.8 or newer, this is " in done.stderr


def test_an_unknown_command_ends_with_usage(tmp_path: Path) -> None:
    pyz = tmp_path / "runner.pyz"
    pyz.write_bytes(build_runner()[0])
    done = subprocess.run([sys.executable, pyz, "dance"], capture_output=True, timeout=60, check=False, env=os.environ)
    assert done.returncode == 2
    assert b"'dance'" in done.stderr
