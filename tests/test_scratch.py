"""Folders of dead processes are removed, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.scratch import scratch_folder, scratch_prefix, sweep

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is swept there")

_KILLED = """
import os, signal
from harness.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "model.onnx").write_text("large")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def killed() -> Path:
    """The folder of a process that was killed."""
    done = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, check=False)
    return Path(done.stdout.strip())


def test_a_killed_process_leaves_one_and_the_next_removes_it(tmp_path: Path) -> None:
    left = killed()
    assert left.parent == tmp_path
    assert (left / "model.onnx").exists()
    with scratch_folder() as folder:
        assert not left.exists()
        assert folder.is_dir()
        assert sweep() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", ["boardtune-work-x-1-abc", "boardtune-1000", "boardtune-emulated-abc"])
def test_what_is_not_ours_stays(tmp_path: Path, other: str) -> None:
    (tmp_path / other).mkdir()
    assert sweep() == []
    assert (tmp_path / other).is_dir()


def test_of_a_living_process_and_of_another_pid_namespace(tmp_path: Path) -> None:
    left = killed()
    alive = tmp_path / f"{scratch_prefix()}abcdefgh"
    alive.mkdir()
    space, pid = left.name.split("-")[2:4]
    elsewhere = tmp_path / f"boardtune-work-{int(space) + 1}-{pid}-abcdefgh"
    elsewhere.mkdir()
    assert sweep() == [left]
    assert alive.is_dir()
    assert elsewhere.is_dir()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    left = killed()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    name = left.name
    left.rename(tmp_path / "aside")
    (tmp_path / name).symlink_to(precious)
    sweep()
    assert (precious / "file").exists()


def test_no_folder_at_all(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none") == []
    assert os.path.isdir(tmp_path)
