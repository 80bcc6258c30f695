"""The examples are scripts, not packages: their folders go onto the path as when they are run."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
for folder in (EXAMPLES / "efficientnet_lite0", EXAMPLES / "fashion_mnist", EXAMPLES):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
# Each has a build.py, which tests load by its path (see built.py); the modules beside it have names of their own.
for folder in (EXAMPLES / "ppocr_rec", EXAMPLES / "minilm_spam"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
