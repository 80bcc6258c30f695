"""The networks of PP-OCR as PyPI's ``rapidocr-onnxruntime`` 1.4.4 holds them (Apache-2.0)."""

from __future__ import annotations

import shutil
from pathlib import Path

from environment import ToolchainProblem, cache_folder, ensure_environment, packages_of

PACKAGE = "rapidocr-onnxruntime==1.4.4"
RECOGNITION = "ch_PP-OCRv4_rec_infer.onnx"
DIRECTION = "ch_ppocr_mobile_v2.0_cls_infer.onnx"


def default_folder() -> Path:
    """Shared by the examples that use the package."""
    return cache_folder("ppocr")


def copy_model(name: str, cache: Path, out: Path) -> None:
    """Installs the package into ``cache`` if it is not there, without what it needs to run, and copies a network of it.

    ``out`` appears whole or not at all. Raises :class:`ToolchainProblem`.
    """
    python = ensure_environment(cache, (PACKAGE,), what="PP-OCR's networks (15 MB)", dependencies=False)
    model = packages_of(python) / "rapidocr_onnxruntime" / "models" / name
    if not model.is_file():
        raise ToolchainProblem(f"{model} is missing: delete {cache} and try again")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.new")
    shutil.copyfile(model, temporary)
    temporary.replace(out)
