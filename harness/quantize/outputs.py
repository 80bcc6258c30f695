"""Files of a model on disk: its own, its data beside it, and what is being written."""

from __future__ import annotations

import glob
import os
from pathlib import Path


def temporary_of(path: Path) -> Path:
    """Where this process writes before the file appears under its name."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def data_of(path: Path) -> Path:
    """Where the tensors of a model over 2 GB are."""
    return path.with_name(f"{path.name}.data")


def deployed_of(path: Path) -> Path:
    """Where a vendor's model for the chip's compiler is, made together with the one that runs here."""
    return path.with_name(f"{path.stem}.deploy{path.suffix}")


def remove_model(path: Path) -> None:
    """Removes all of a model's files, also what a killed process left half written."""
    for file in (path, data_of(path), deployed_of(path), *path.parent.glob(f".{glob.escape(path.name)}.*.tmp")):
        file.unlink(missing_ok=True)
