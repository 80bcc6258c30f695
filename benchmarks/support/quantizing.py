"""What the benchmarks of quantizers share: our side, memory, the models."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fashion_mnist"


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def calibration_reader(arrays: Mapping[str, Any], samples: int) -> Any:
    """The first ``samples`` rows one by one, as ONNX Runtime's quantizer and those built on it take them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = iter(range(samples))

        def get_next(self) -> dict[str, Any] | None:
            row = next(self.rows, None)
            return None if row is None else {name: array[row : row + 1] for name, array in arrays.items()}

    return Reader()


def quantize_all(
    model: Path, data: Path, out: Path, recipes: Sequence[Mapping[str, Any]], workers: int
) -> dict[str, Any]:
    """Ours, from an empty cache, with acceptance. In a process of its own: its descendants are the quantizers."""
    from harness.quantize.contract import Artifact, QuantizeJob, QuantizeLimits
    from harness.quantize.worker import QuantizeWorker
    from harness.recipes.recipe import FLOAT32, Recipe

    limits = QuantizeLimits(min_snr_db=-200.0)

    def job(recipe: Recipe, cache: str) -> QuantizeJob:
        return QuantizeJob(model, data, recipe, out / f"{recipe.digest[:12]}.onnx", limits, {"cache": cache})

    pool = [QuantizeWorker() for _ in range(workers)]
    made = [Recipe.from_dict(dict(value)) for value in recipes]
    for worker in pool:
        # The warm-up: imports are paid once per search.
        worker.quantize(job(FLOAT32, ""))
    held = max(resident_bytes(worker.pid or 0) for worker in pool)
    started = time.monotonic()

    def share(index: int) -> list[Any]:
        return [pool[index].quantize(job(recipe, str(out / "cache"))) for recipe in made[index::workers]]

    with ThreadPoolExecutor(workers) as threads:
        results = [result for part in threads.map(share, range(workers)) for result in part]
    seconds = time.monotonic() - started
    for worker in pool:
        worker.close()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {
        "seconds": seconds,
        "peak_bytes": workers * max(peak - held, 0),
        "held_bytes": held,
        "refused": [str(result) for result in results if not isinstance(result, Artifact)],
    }


def models(names: Sequence[str], folder: Path, samples: int) -> dict[str, tuple[Path, Path]]:
    """Name (``fashion_mnist``, ``depthwiseSIZE``) -> prepared model and calibration file."""
    import onnx

    from benchmarks.depthwise_model import depthwise_model
    from harness.controller.preparation import read_preprocess
    from harness.data.source import open_dataset
    from harness.plan import load_plan
    from harness.quantize.prepare import prepare_model

    made = {}
    for name in names:
        data = folder / f"{name}.npz"
        if name == "fashion_mnist":
            plan = load_plan(EXAMPLE / "plan.yaml", {})
            prepared = prepare_model(plan.model, folder / f"{name}.onnx", {})
            dataset = open_dataset(plan.calib, prepared.inputs, read_preprocess(plan.preprocess))
            dataset.rows(np.arange(samples)).save_npz(data, labels=False)
        else:
            size = int(name.removeprefix("depthwise"))
            source = folder / f"{name}.source.onnx"
            onnx.save(depthwise_model(size), source)
            prepared = prepare_model(source, folder / f"{name}.onnx", {})
            random = np.random.default_rng(1)
            np.savez(data, x=random.standard_normal((samples, 3, size, size)).astype(np.float32))
        made[name] = (prepared.path, data)
    return made
