"""Builds this example's model and data: PP-OCR's text direction classifier, and lines of text, half upside down.

    python examples/ppocr_cls/build.py
    boardtune search --plan examples/ppocr_cls/plan.yaml

Run it in boardtune's environment. The network comes from PyPI, into an environment of its own under the cache folder.
Writes model.onnx, calib.npz and eval.npz here.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import ToolchainProblem
from ppocr_package import DIRECTION, copy_model, default_folder
from text_lines import draw_line, draw_text, words

HERE = Path(__file__).resolve().parent
SIZE = (48, 192)
"""Pixels; what the network was trained at."""
INPUT = "x"
SPLITS = (("calib.npz", 1, 128), ("eval.npz", 2, 2000))
"""File, seed, lines."""

log = logging.getLogger("build")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Get PP-OCR's direction classifier, and draw lines of text.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to [%(default)s]")
    parser.add_argument("--cache", type=Path, default=default_folder(), help="for the package [%(default)s]")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        copy_model(DIRECTION, options.cache, options.out / "model.onnx")
        for name, seed, lines in SPLITS:
            draw_split(options.out / name, seed, lines)
    except (ToolchainProblem, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    log.info("wrote model.onnx, calib.npz and eval.npz into %s", options.out)
    return 0


def draw_split(path: Path, seed: int, lines: int) -> None:
    """``x`` uint8 [lines, height, width], grey, and ``labels`` int64 [lines], 1 for every second one: upside down."""
    generator = np.random.default_rng(seed)
    labels = np.arange(lines, dtype=np.int64) % 2
    images = [draw_line(generator, draw_text(generator, words()), SIZE, upside_down=bool(label)) for label in labels]
    np.savez_compressed(path, allow_pickle=False, **{INPUT: np.stack(images), "labels": labels})


if __name__ == "__main__":
    sys.exit(main())
