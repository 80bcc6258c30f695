"""Places where a test may end the process as ``kill -9`` would, to show that nothing is lost.

``BOARDTUNE_FAILPOINT=NAME[@N]`` kills the process (and the one whose pid is in ``BOARDTUNE_FAILPOINT_PID``) the
N-th time that place is passed. Without the variable, passing a place costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "BOARDTUNE_FAILPOINT"
_counts: dict[str, int] = {}


def passing(name: str) -> None:
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    place, _, occurrence = wanted.partition("@")
    if place != name:
        return
    _counts[name] = _counts.get(name, 0) + 1
    if _counts[name] == int(occurrence or 1):
        controller = os.environ.get("BOARDTUNE_FAILPOINT_PID")
        if controller:
            os.kill(int(controller), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
