"""Real searches in processes of their own, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLAN = Path(__file__).parents[2] / "examples" / "fashion_mnist" / "plan.yaml"
TINY = ("--boards", "rpi5-emulated", "--trials", "4", "--top-k", "2", "--effort", "quick")
WAIT_S = 900.0
"""Only so that a test ends: on a busy machine everything takes long."""
_MARK = "BOARDTUNE_TEST_MARK"
_RAY_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


class Search:
    """``boardtune search`` on the example. All its processes carry a mark in their environment."""

    def __init__(self, run_dir: Path, *options: str, failpoint: str = "", command: str = "") -> None:
        self.run_dir = run_dir
        self.mark = uuid.uuid4().hex
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, _MARK: self.mark, "BOARDTUNE_RUNTIME_DIR": str(run_dir.parent / "runtime")}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        if failpoint:
            environment["BOARDTUNE_FAILPOINT"] = failpoint
        arguments = " ".join(["search", "--plan", str(PLAN), "--run-dir", str(run_dir), *(options or TINY)])
        line = command or f"boardtune {arguments}"
        self.process = subprocess.Popen(
            # The shell makes way for the search, whose process id is told beforehand.
            ["sh", "-c", f"BOARDTUNE_FAILPOINT_PID=$$ exec {line}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=run_dir.parent,
            start_new_session=True,
        )

    def end(self) -> tuple[int, str, str]:
        """Exit code (negative: signal), stdout, stderr."""
        try:
            out, err = self.process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
            raise
        return self.process.returncode, out, err

    def until(self, kind: str, count: int = 1) -> None:
        """Waits for that many events of a kind in the ledger."""
        wait_for(lambda: sum(e["event"] == kind for e in events_in(self.run_dir)) >= count or not self.alive)
        if not self.alive:
            raise RuntimeError(f"the search ended before {count} {kind!r}: {self.end()}")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def processes(self) -> dict[int, str]:
        """Those of the search that live: process id -> command line."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{_MARK}={self.mark}".encode() not in (folder / "environ").read_bytes():
                    continue
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z":
                found[int(folder.name)] = line
        return found

    def kill(self, name: str, signal_number: int = signal.SIGKILL) -> int:
        """Kills the processes whose command line has ``name``; says how many there were."""
        wait_for(lambda: any(name in line for line in self.processes().values()))
        pids = [pid for pid, line in self.processes().items() if name in line]
        for pid in pids:
            os.kill(pid, signal_number)
        return len(pids)

    def gone(self) -> dict[int, str]:
        """What is left of it after a while. Ray's own helpers look about once a second whether their parent lives.

        Two of them then try for a minute to tell the server that died with it; they hold nothing of the search.
        """
        end = time.monotonic() + WAIT_S
        while (left := self._ours()) and time.monotonic() < end:
            time.sleep(0.2)
        return left

    def _ours(self) -> dict[int, str]:
        return {pid: line for pid, line in self.processes().items() if line not in _RAY_AGENTS}


def events_in(run_dir: Path) -> list[dict[str, Any]]:
    """Of the ledger so far; its last line may be in the writing."""
    try:
        lines = (run_dir / "ledger.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("it did not come")
        time.sleep(0.05)
