"""Runs made-up searches, each in a process of its own that may be killed; importing everything once makes them quick.

Reads one job per line (JSON: ``folder``, ``failpoint``, ``resume``, ``changes``) and answers with the signal that
ended it, or its exit code.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import local_ray
import made_up
import optuna  # noqa: F401 -- imported lazily by the search

import harness.controller.crew
import harness.controller.search
import harness.ledger.samples
import harness.ledger.table
import harness.report.build
from harness.controller.crew import Staff


def search(job: dict[str, Any]) -> int:
    folder = Path(job["folder"])
    os.chdir(folder)
    if job.get("failpoint"):
        os.environ["BOARDTUNE_FAILPOINT"] = job["failpoint"]
    plan = made_up.tiny_plan(folder / "data", trials=9, **job.get("changes", {}))
    staff = Staff(made_up.MadeUpQuantizer, made_up.MadeUpSessions())
    # The report is no part of what is compared, and takes longer than all the rest.
    with local_ray.installed(), mock.patch("harness.report.build.write_report", lambda run: run.path):
        result = harness.controller.search.search(plan, folder / "run", resume=bool(job.get("resume")), staff=staff)
    return int(result.exit_code)


def child(job: dict[str, Any]) -> None:
    code = 99
    try:
        log = os.open(Path(job["folder"]) / "child.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = search(job)
    except BaseException:
        logging.exception("the search raised")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        _, status = os.waitpid(pid, 0)
        signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        print(json.dumps({"signal": signal, "code": None if signal else os.WEXITSTATUS(status)}), flush=True)


if __name__ == "__main__":
    main()
