"""Every test here has folders of its own: nothing of the user's configuration is read or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HEADER = "apiVersion: boardtune/v1\nkind: Board\n"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("BOARDTUNE_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("BOARDTUNE_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes ``boards/FILE`` in the working folder; ``text`` may leave out the header of a board."""

    def _write(file: str, text: str, *, header: bool = True, folder: Path | None = None) -> Path:
        path = (folder or tmp_path / "work" / "boards") / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((HEADER if header else "") + text, encoding="utf-8")
        return path

    return _write
