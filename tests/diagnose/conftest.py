"""Diagnoses keep their statistics and locks in folders of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_run import prepared_once

from harness.boards.folders import CACHE_VARIABLE


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("BOARDTUNE_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("BOARDTUNE_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("harness.controller.preparation.prepare_model", prepared_once)
    monkeypatch.chdir(tmp_path)
