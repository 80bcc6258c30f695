"""Environments of their own for what only an example's build needs: neither boardtune's nor the repository grows.

Needs the standard library only.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds; its ``torch`` is a tenth of the size of PyPI's for Linux."""

INSTALL_TIMEOUT_S = 3600

log = logging.getLogger("build")


class ToolchainProblem(Exception):
    """The environment cannot be made, or what runs in it fails; the message says what to do."""


def cache_folder(example: str) -> Path:
    """``$XDG_CACHE_HOME/boardtune/examples/EXAMPLE``, or the same under ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME")
    root = Path(cache) if cache else Path.home() / ".cache"
    return root / "boardtune" / "examples" / example


def ensure_environment(
    folder: Path, requirements: Sequence[str], *, what: str, index: str = "", dependencies: bool = True
) -> Path:
    """The Python of an environment with ``requirements`` in ``folder``; installed on first use.

    A stamp beside the environment holds what was installed: when the requirements change, so does the environment.
    ``what`` is for messages; ``index`` is an additional package index; ``dependencies`` says whether what the
    requirements need comes too. Raises :class:`ToolchainProblem`.
    """
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    stamp = folder / "installed.txt"
    wanted = "\n".join(requirements) + "\n"
    if python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    log.info("installing %s into %s", what, folder / "venv")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        venv.create(folder / "venv", with_pip=True, clear=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolchainProblem(f"{folder}: cannot make an environment: {error}\n  name another --cache") from None
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    if index:
        install += ["--extra-index-url", index]
    if not dependencies:
        install.append("--no-deps")
    run([*install, *requirements], INSTALL_TIMEOUT_S, f"installing {what}")
    stamp.write_text(wanted, encoding="utf-8")
    return python


def export_name(stem: str, requirements: Sequence[str], program: Path) -> str:
    """Name of what ``program`` exports in such an environment; another name when either changes."""
    source = "\n".join(requirements).encode() + program.read_bytes()
    return f"{stem}-{hashlib.sha256(source).hexdigest()[:12]}.onnx"


def packages_of(python: Path) -> Path:
    """The folder that holds the pure-Python packages of an environment. Raises :class:`ToolchainProblem`."""
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(run([str(python), "-c", asked], 60, "asking for the packages' folder").strip())


def run(command: Sequence[str], timeout_s: float, what: str) -> str:
    """The standard output of a command. Raises :class:`ToolchainProblem` with the end of what a failed one said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise ToolchainProblem(f"{what} has not ended after {timeout_s:g} s") from None
    except OSError as error:
        raise ToolchainProblem(f"{what} failed: {command[0]}: {error.strerror or error}") from None
    if done.returncode != 0:
        tail = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise ToolchainProblem(f"{what} failed (exit code {done.returncode}, {sys.version.split()[0]}):\n  {tail}")
    return done.stdout
