"""Searches with the real quantizer and made-up boards, without Ray and without processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import local_ray
import made_up
import pytest

from harness.boards.schema import Board
from harness.controller.board_session import BoardSession
from harness.controller.crew import Staff
from harness.controller.search import SearchResult, search
from harness.plan import Plan
from harness.quantize.contract import Artifact, QuantizeJob, Refusal
from harness.quantize.worker_child import run_job


class InProcess:
    """The real quantizer, in this process."""

    def quantize(self, job: QuantizeJob) -> Artifact | Refusal:
        return run_job(job, {}, lambda message: None)

    def close(self) -> None:
        """Nothing is open."""


@contextlib.contextmanager
def world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Works in ``folder``, which gets the boards alpha and beta without limits."""
    monkeypatch.chdir(folder)
    for name in ("CONFIG_HOME", "RUNTIME_DIR", "CACHE_HOME"):
        monkeypatch.setenv(f"BOARDTUNE_{name}", str(folder / name.lower()))
    (folder / "boards").mkdir()
    for name in ("alpha", "beta"):
        (folder / "boards" / f"{name}.yaml").write_text(
            f"apiVersion: boardtune/v1\nkind: Board\nmetadata: {{name: {name}}}\n"
            "transport: {kind: ssh, host: 192.0.2.1}\nrecovery: {cool_down_s: 0}\n"
        )
    with local_ray.installed(), mock.patch("harness.report.build.write_report", lambda run: run.path):
        yield


def run(
    plan: Plan, folder: str = "run", *, resume: bool = False, levels: Callable[[str], float] | None = None
) -> SearchResult:
    """``levels``: digest of what was sent -> latency in nanoseconds."""

    def open_session(board: Board) -> BoardSession:
        device = made_up.MadeUpDevice(board.metadata.name)
        if levels is not None:
            device.levels = levels
        return made_up.session_on(device, board)

    return search(plan, Path(folder), resume=resume, staff=Staff(InProcess, open_session))
