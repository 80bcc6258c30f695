"""Every test here has folders of its own and a small world in them: model, data, boards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import run
from tests.controller import made_up

Outcome = tuple[int, str, str]


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOARDTUNE_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("BOARDTUNE_RUNTIME_DIR", str(tmp_path / "runtime"))
    made_up.write_boards(tmp_path / "boards")
    made_up.write_model(tmp_path / "model.onnx")
    made_up.write_data(tmp_path / "calib.npz", 120, seed=1)
    made_up.write_data(tmp_path / "eval.npz", 60, seed=2)


@pytest.fixture
def boardtune(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs a command line; gives exit code, stdout and stderr."""

    def _run(*words: Any) -> Outcome:
        capsys.readouterr()
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert "internal error" not in captured.err
        return code, captured.out, captured.err

    return _run
