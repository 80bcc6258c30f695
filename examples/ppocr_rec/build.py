"""Builds this example's model and data: PP-OCRv4's text recognition, and lines of text to read.

    python examples/ppocr_rec/build.py
    boardtune search --plan examples/ppocr_rec/plan.yaml

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
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ctc import characters, encode
from environment import ToolchainProblem
from ppocr_package import RECOGNITION, copy_model, default_folder
from text_lines import LONGEST, draw_line, draw_text, words

HERE = Path(__file__).resolve().parent
SIZE = (48, 320)
"""Pixels; the network takes any width, and was trained at this one."""
INPUT = "x"
SPLITS = (("calib.npz", 1, 64), ("eval.npz", 2, 2000))
"""File, seed, lines."""

log = logging.getLogger("build")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Get PP-OCRv4's text recognition, and draw lines of text to read.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to [%(default)s]")
    parser.add_argument("--cache", type=Path, default=default_folder(), help="for the package [%(default)s]")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        copy_model(RECOGNITION, options.cache, options.out / "model.onnx")
        alphabet = alphabet_of(options.out / "model.onnx")
        for name, seed, lines in SPLITS:
            draw_split(options.out / name, alphabet, seed, lines)
    except (ToolchainProblem, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    log.info("wrote model.onnx, calib.npz and eval.npz into %s", options.out)
    return 0


def alphabet_of(model: Path) -> list[str]:
    """Character of every class of the network. Raises :class:`ToolchainProblem`."""
    for entry in onnx.load(model).metadata_props:
        if entry.key == "character":
            return characters(entry.value)
    raise ToolchainProblem(f"{model}: its metadata has no entry 'character'")


def draw_split(path: Path, alphabet: Sequence[str], seed: int, lines: int) -> None:
    """``x`` uint8 [lines, height, width], grey, and ``labels`` int64 [lines, characters], compressed."""
    generator = np.random.default_rng(seed)
    texts = [draw_text(generator, words()) for _ in range(lines)]
    images = np.stack([draw_line(generator, text, SIZE) for text in texts])
    labels = np.stack([encode(text, alphabet, LONGEST) for text in texts])
    np.savez_compressed(path, allow_pickle=False, **{INPUT: images, "labels": labels})


if __name__ == "__main__":
    sys.exit(main())
