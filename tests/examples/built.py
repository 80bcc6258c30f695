"""The build script of an example as a module: all are called build.py, as users see them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_build(example: str) -> Any:
    name = f"{example}_build"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / example / "build.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
