"""What a search on the host alone sees: the accuracy and size of every recipe of a plan, and no time.

    python examples/host_accuracy.py --plan examples/fashion_mnist/plan.yaml

Every recipe is quantized and accepted as in a search, then run on this machine's CPU: on the plan's evaluation set or,
with ``--test-set /usr/share/datasets/fashion-mnist``, on all 10,000 test images.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
from fashion_mnist_data import DataProblem, load_split, write_npz

from harness.controller.floor import LABELS_DECIDE_DB
from harness.controller.preparation import read_preprocess
from harness.data.dataset import Dataset
from harness.data.source import open_dataset
from harness.errors import BoardtuneError, ConfigError
from harness.plan import Plan, load_plan
from harness.quantize.contract import Artifact, QuantizeJob, QuantizeLimits
from harness.quantize.prepare import prepare_model
from harness.quantize.worker import QuantizeWorker
from harness.recipes.presets import preset
from harness.recipes.recipe import Recipe


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Accuracy and size of every recipe of a plan, on this machine's CPU.")
    parser.add_argument("--plan", type=Path, required=True, help="plan file of an example")
    parser.add_argument("--test-set", type=Path, help="folder of Fashion-MNIST's idx files: use all its test images")
    parser.add_argument("--only", action="append", default=[], help="text in the recipe's label; may be repeated")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        plan = load_plan(options.plan, {})
        with tempfile.TemporaryDirectory(prefix="host-accuracy-") as folder:
            for line in report(plan, options.test_set, options.only, Path(folder)):
                print(line, flush=True)
    except (BoardtuneError, DataProblem, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def report(plan: Plan, test_set: Path | None, only: Sequence[str], folder: Path) -> Iterator[str]:
    """One line per recipe. Raises :class:`BoardtuneError` and :class:`DataProblem`."""
    model = prepare_model(plan.model, folder / "float.onnx", dict(plan.set_dim), batch=plan.batch)
    preprocess = read_preprocess(plan.preprocess)
    calibration = open_dataset(plan.calib, model.inputs, preprocess)
    calibration.save_npz(folder / "calibration.npz", labels=False)
    source = plan.eval or plan.calib
    if test_set is not None:
        source = str(folder / "test.npz")
        write_npz(Path(source), load_split(test_set, "t10k"))
    evaluation = open_dataset(source, model.inputs, preprocess)
    space = preset(plan.preset, model.facts)
    yield f"top-1 of {len(evaluation)} images"
    limits = QuantizeLimits(min_snr_db=LABELS_DECIDE_DB if plan.min_snr is None else plan.min_snr)
    with QuantizeWorker() as worker:
        for number, recipe in enumerate(space.enumerated or space.seeds):
            if only and not any(text in recipe.label for text in only):
                continue
            out = folder / f"{number}.onnx"
            result = worker.quantize(QuantizeJob(model.path, folder / "calibration.npz", recipe, out, limits))
            if isinstance(result, Artifact):
                yield _line(recipe, f"{100 * top1(result.path, evaluation):6.2f} %  {result.size_bytes / 1e3:8.1f} kB")
            else:
                yield _line(recipe, f"refused: {result.cause}")


def top1(model: Path, evaluation: Dataset) -> float:
    """Share of samples whose label has the highest score in the model's first output."""
    if evaluation.labels is None:
        raise ConfigError("the evaluation set has no labels", where=evaluation.origin)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    said: list[npt.NDArray[np.int64]] = []
    for row in range(len(evaluation)):
        sample = {name: array[row : row + 1] for name, array in evaluation.inputs.items()}
        said.append(session.run(None, sample)[0].argmax(axis=-1))
    return float(np.mean(np.concatenate(said) == evaluation.labels))


def _line(recipe: Recipe, text: str) -> str:
    return f"{text:24s}  {recipe.label}"


if __name__ == "__main__":
    sys.exit(main())
