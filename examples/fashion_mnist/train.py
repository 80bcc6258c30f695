"""How model.onnx, calib.npz and eval.npz came to be.

    pip install torch==2.13.0 onnx numpy          # torch is no dependency of boardtune
    python examples/fashion_mnist/train.py --out trained

Trains the network of network.py on Fashion-MNIST (3 epochs, about two minutes on two cores), exports it, and draws
the calibration and evaluation sets. The data sets come out exactly as shipped. The network does not: floating-point
sums differ between machines and versions, and how much naive int8 loses on it depends on the seed (see README.md).
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fashion_mnist_data import DEBIAN_FOLDER, DataProblem, Split, draw_subsets, load_split, write_npz

log = logging.getLogger("train")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train the demo's Fashion-MNIST network and export it to ONNX.",
        epilog="Writes model.onnx, calib.npz and eval.npz into --out. Needs PyTorch.",
    )
    parser.add_argument("--data", type=Path, default=DEBIAN_FOLDER, help="folder of the idx files [%(default)s]")
    parser.add_argument("--out", type=Path, default=Path("trained"), help="folder to write to [%(default)s]")
    parser.add_argument("--epochs", type=_positive, default=3, help="passes over the training images [%(default)s]")
    parser.add_argument("--limit", type=_positive, help="train on the first N images only [all 60,000]")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order [%(default)s]")
    parser.add_argument("--threads", type=_positive, help="of PyTorch [all cores]")
    parser.add_argument("--data-only", action="store_true", help="write calib.npz and eval.npz only; needs no PyTorch")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        train_set, test_set = load_split(options.data, "train"), load_split(options.data, "t10k")
        options.out.mkdir(parents=True, exist_ok=True)
        _write_subsets(train_set, test_set, options.out)
        if not options.data_only:
            _train_and_export(_first(train_set, options.limit), test_set, options)
    except (DataProblem, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _write_subsets(train_set: Split, test_set: Split, out: Path) -> None:
    calibration, evaluation = draw_subsets(train_set, test_set)
    for name, subset in (("calib.npz", calibration), ("eval.npz", evaluation)):
        write_npz(out / name, subset)
        log.info("%s: %d images", out / name, len(subset.labels))


def _train_and_export(train_set: Split, test_set: Split, options: argparse.Namespace) -> None:
    try:
        import torch
    except ImportError:
        raise DataProblem(
            "training needs PyTorch, which boardtune does not depend on\n"
            "  pip install torch==2.13.0 onnx numpy (an environment of its own is best), or --data-only"
        ) from None
    import network as model

    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    network = model.build()
    model.train(network, train_set, model.Hyperparameters(epochs=options.epochs))
    log.info("top-1 on %d test images: %.2f %%", len(test_set.labels), 100 * model.top1(network, test_set))
    model.export(network, options.out / "model.onnx")
    log.info("%s: %d bytes", options.out / "model.onnx", (options.out / "model.onnx").stat().st_size)


def _first(split: Split, count: int | None) -> Split:
    return Split(split.images[:count], split.labels[:count])


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


if __name__ == "__main__":
    sys.exit(main())
