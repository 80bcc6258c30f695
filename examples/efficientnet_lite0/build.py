"""Builds this example's model and data: a pretrained EfficientNet-Lite0 that classifies Fashion-MNIST.

    python examples/efficientnet_lite0/build.py
    boardtune search --plan examples/efficientnet_lite0/plan.yaml

Run it in boardtune's environment. PyTorch, which only exports the pretrained backbone, goes into an environment of
its own under the cache folder. The backbone stays frozen; a linear head is fitted to its features of 8,000 training
images, seen through the very preprocessing that plan.yaml declares. Writes model.onnx, calib.npz and eval.npz here.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import export_name
from fashion_mnist_data import (
    CLASSES,
    DEBIAN_FOLDER,
    DataProblem,
    Split,
    draw_subsets,
    load_split,
    stratified_rows,
    write_npz,
)
from linear_head import attach_head, fit_head
from toolchain import CPU_WHEELS, REQUIREMENTS, ToolchainProblem, default_folder, ensure_environment, export_backbone

from harness.data.preprocess import Preprocess
from harness.errors import BoardtuneError
from harness.tensors import TensorSpec

HERE = Path(__file__).resolve().parent
SIZE = 96
BATCH = 64
EVALUATION_PER_CLASS = 500
"""5,000 of the 10,000 test images: where four answers in a hundred change, the 4,000 that decide tell half a point."""
HEAD_SEED = 1
"""Of the training images the head is fitted to; the calibration images are drawn with another."""

log = logging.getLogger("build")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Build a pretrained EfficientNet-Lite0 with a Fashion-MNIST head, and its data.",
        epilog="Needs about 2 GB of disk in --cache for PyTorch, and three minutes on two cores after that.",
    )
    parser.add_argument("--data", type=Path, default=DEBIAN_FOLDER, help="folder of the idx files [%(default)s]")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to [%(default)s]")
    parser.add_argument("--cache", type=Path, default=default_folder(), help="for PyTorch [%(default)s]")
    parser.add_argument("--images", type=_per_ten, default=8000, help="training images for the head [%(default)s]")
    parser.add_argument("--torch-index", default=CPU_WHEELS, help="additional package index [%(default)s]")
    parser.add_argument("--python", type=Path, help="use the PyTorch of this interpreter instead of --cache")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        # The data first: it is quickly told when it is missing.
        train_set, test_set = load_split(options.data, "train"), load_split(options.data, "t10k")
        options.out.mkdir(parents=True, exist_ok=True)
        options.cache.mkdir(parents=True, exist_ok=True)
        backbone = options.cache / export_name(f"backbone-{SIZE}", REQUIREMENTS, HERE / "export_backbone.py")
        if not backbone.is_file():
            python = options.python or ensure_environment(options.cache, index=options.torch_index)
            log.info("exporting the pretrained backbone at %d x %d", SIZE, SIZE)
            export_backbone(python, backbone, SIZE)
        _build(backbone, train_set, test_set, options)
    except (DataProblem, ToolchainProblem, BoardtuneError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _build(backbone: Path, train_set: Split, test_set: Split, options: argparse.Namespace) -> None:
    preprocess = read_preprocess(HERE / "plan.yaml")
    calibration, evaluation = draw_subsets(train_set, test_set, evaluation_per_class=EVALUATION_PER_CLASS)
    rows = stratified_rows(train_set.labels, options.images // CLASSES, np.random.default_rng(HEAD_SEED))
    log.info("features of %d training and %d test images", len(rows), len(evaluation.labels))
    session = onnxruntime.InferenceSession(str(backbone), providers=["CPUExecutionProvider"])
    seen = features_of(session, train_set.images[rows], preprocess)
    fitted = fit_head(seen, train_set.labels[rows])
    unseen = features_of(session, evaluation.images, preprocess)
    accuracy = np.mean((unseen @ fitted.weight.T + fitted.bias).argmax(axis=1) == evaluation.labels)
    log.info("float top-1 on %d test images: %.2f %%", len(evaluation.labels), 100 * accuracy)
    model = attach_head(onnx.load(backbone), fitted)
    temporary = options.out / f".model.onnx.{os.getpid()}"
    onnx.save(model, temporary)
    temporary.replace(options.out / "model.onnx")
    for name, subset in (("calib.npz", calibration), ("eval.npz", evaluation)):
        write_npz(options.out / name, subset)
    log.info("wrote model.onnx, calib.npz and eval.npz into %s", options.out)


def read_preprocess(plan: Path) -> Preprocess:
    """The ``preprocess`` section of a plan file."""
    return Preprocess.parse(yaml.safe_load(plan.read_text(encoding="utf-8"))["preprocess"])


def features_of(session: Any, images: npt.NDArray[np.uint8], preprocess: Preprocess) -> npt.NDArray[np.float32]:
    """uint8 [samples, 28, 28] to float32 [samples, features], a batch at a time."""
    spec = session.get_inputs()[0]
    inputs = (TensorSpec(spec.name, "float32", ("batch", 3, SIZE, SIZE)),)
    parts = []
    for start in range(0, len(images), BATCH):
        _, ready = preprocess.apply({spec.name: images[start : start + BATCH]}, inputs)
        parts.append(session.run(None, dict(ready))[0])
    return np.concatenate(parts)


def _per_ten(text: str) -> int:
    value = int(text)
    if value < 10 * CLASSES or value % CLASSES:
        raise argparse.ArgumentTypeError(f"{value} is not a multiple of {CLASSES} from {10 * CLASSES} on")
    return value


if __name__ == "__main__":
    sys.exit(main())
