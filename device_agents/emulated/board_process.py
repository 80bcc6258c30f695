"""Starts the uploaded runner on the emulated board: ``board_process.py MACHINE_FOLDER PYZ LIFE serve|child``.

A script, not a module: it must put the *uploaded* zipapp on the path and make ``device_agents.runner`` mean it before
anything of the platform is imported.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """The server's spawner thread lives as long as the server, so its end is the server's."""
    if sys.platform.startswith("linux"):
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def main(argv: list[str]) -> int:
    machine, pyz, life, command = argv
    _die_with_parent()
    sys.path.insert(0, pyz)
    runner = importlib.import_module("runner")
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    importlib.import_module("device_agents")
    sys.modules["device_agents.runner"] = runner
    for name in ("errors", "platform", "ort"):
        sys.modules[f"device_agents.runner.{name}"] = importlib.import_module(f"runner.{name}")
    platform = importlib.import_module("device_agents.emulated.platform")
    here = [sys.executable, "-P", str(Path(__file__).resolve()), machine, pyz, life, "child"]
    status: int = runner.main([command], platform=platform.EmulatedPlatform(Path(machine), life, here))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
