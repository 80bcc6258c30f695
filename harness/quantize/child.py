"""Work in a child process that may crash: JSON request on its stdin, phases and the reply as lines on its stdout."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger(__name__)


def ask_child(module: str, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Runs ``module`` with the request as JSON on stdin, and kills it after ``timeout_s``.

    Its last line is the reply, the lines before name the phases. A child that dies gives ``died``, how, and ``phase``,
    what it was doing.
    """
    command = [sys.executable, "-m", module]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    try:
        output, errors = process.communicate(json.dumps(request), timeout=timeout_s)
        died = _how_it_died(process.returncode)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        died = f"no end after {timeout_s:g} s"
    messages = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if messages and "phase" not in messages[-1]:
        return dict(messages[-1])
    logger.debug("%s on %s: %s", module, request.get("model"), errors)
    return {"died": died, "phase": messages[-1]["phase"] if messages else "that prepares the model"}


def _how_it_died(returncode: int) -> str:
    if returncode < 0:
        return signal.Signals(-returncode).name
    return f"exit code {returncode}"


def take_request() -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], None]]:
    """The child's side: what :func:`ask_child` asked, and what sends it a line: ``{"phase": name}``, or the reply."""
    request = json.load(sys.stdin)
    # Libraries print; the replies go to the real stdout, everything else to stderr.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.WARNING)

    def send(message: Mapping[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    return request, send
