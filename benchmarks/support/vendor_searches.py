"""The peers' own searches for quantized models, each run under its own interpreter: AMD Quark's Auto-Search and
ESP-PPQ's AutoQuant.

Both are given what they look at (calibration set, labelled samples to search on) and a time; the best model they have
found by then counts. Nothing here imports the harness.
"""

from __future__ import annotations

import copy
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.quantizing import calibration_reader

BATCH = 50
"""Samples that ESP-PPQ's executor takes at once; it gives each what it gives it alone."""
CHECKED = 100
"""Samples on which a copy of a graph must say what the graph says."""


class TimeUp(BaseException):
    """Not an ``Exception``: a search that survives failing trials must not survive this."""


class Best:
    """The best model so far by the share of right answers, and when the time is up. ``out/result.json`` tells of it,
    should the trial under way have to be killed."""

    def __init__(self, seconds: float, out: Path) -> None:
        self.out = out
        self.started = time.monotonic()
        self.seconds = seconds
        self.score = -1.0
        self.trials = 0
        self.kept: Any = None

    def tell(self, score: float, keep: Callable[[], Any]) -> None:
        """Counts a trial; ``keep`` is called if it is the best. Raises :class:`TimeUp`."""
        self.trials += 1
        if score > self.score:
            self.score, self.kept = score, keep()
        self.record("killed in the trial under way")
        if time.monotonic() - self.started > self.seconds:
            raise TimeUp

    def record(self, ended: str) -> dict[str, Any]:
        found = {
            "searched": self.score,
            "trials": self.trials,
            "seconds": round(time.monotonic() - self.started, 1),
            "ended": ended,
        }
        (self.out / "result.json").write_text(json.dumps(found))
        return found


def quark(model: Path, folder: Path, out: Path, seconds: float) -> None:
    """``A8W8_SEARCH`` as it comes, on processors instead of a graphics card; writes ``best.onnx`` into ``out``."""
    import logging

    from quark.onnx import AutoSearchPro, get_auto_search_config

    logging.disable(logging.CRITICAL)
    calibration = dict(np.load(folder / "calib.npz"))
    inputs, labels = labelled(folder / "search.npz")
    best = Best(seconds, out)

    def evaluate(path: str) -> float:
        score = share_right(predictions_of(Path(path), inputs), labels)
        if Path(path) != model:
            best.tell(score, lambda: shutil.copyfile(path, out / "best.onnx"))
        return score

    config = copy.deepcopy(get_auto_search_config("A8W8_SEARCH"))
    for name in ("adaround_params", "adaquant_params"):
        config["search_space"][name].update(optim_device=["cpu"], infer_device=["cpu"])
    config.update(
        model_input=str(model),
        calib_data_reader=calibration_reader(calibration, len(next(iter(calibration.values())))),
        # It minimises float's result minus the candidate's.
        search_evaluator=evaluate,
        output_dir=str(out / "trials"),
        temp_dir=str(out / "temporary"),
    )
    best.record(_ended(lambda: AutoSearchPro(config).run()))


def esp_ppq(model: Path, folder: Path, out: Path, seconds: float, target: str) -> None:
    """``fast`` mode as it comes, for ``target``; writes what the best says of the held-out samples, by the executor
    that simulates the target, as ``predictions.npy`` into ``out``."""
    import torch
    from esp_ppq.api import AutoQuantSearchSetting, espdl_auto_quantize_onnx
    from esp_ppq.executor import TorchExecutor

    (array,) = dict(np.load(folder / "calib.npz")).values()
    rows = [torch.from_numpy(array[index : index + 1]) for index in range(len(array))]
    inputs, labels = labelled(folder / "search.npz")
    best = Best(seconds, out)

    def said(graph: Any, samples: Any) -> Any:
        executor = TorchExecutor(graph=graph, device="cpu")
        batches = (torch.from_numpy(samples[at : at + BATCH]) for at in range(0, len(samples), BATCH))
        return np.concatenate([executor(batch)[0].argmax(dim=-1).numpy() for batch in batches])

    def copied(graph: Any, answers: Any) -> Any:
        """What is exported after a trial is the trial's graph, changed."""
        copy_of_it = graph.copy(copy_value=True)
        if not np.array_equal(said(copy_of_it, inputs[:CHECKED]), answers[:CHECKED]):
            raise RuntimeError("a copy of ESP-PPQ's graph says something else than the graph")
        return copy_of_it

    def evaluate(graph: Any) -> tuple[float, dict[str, float]]:
        answers = said(graph, inputs)
        score = share_right(answers, labels)
        best.tell(score, lambda: copied(graph, answers))
        return score, {}

    # It overwrites the model it is given.
    given = out / "given.onnx"
    shutil.copyfile(model, given)
    setting = AutoQuantSearchSetting(search_mode="fast", run_dir=str(out / "trials"))
    # The same strategies, those without training first: it begins with all methods at once, which takes minutes, and in
    # a bounded time would see few others.
    for switches in setting.strategy_space.values():
        switches.sort()
    best.record(
        _ended(
            lambda: espdl_auto_quantize_onnx(
                str(given), str(out / "model.espdl"), rows, len(rows), list(array.shape[1:]),
                evaluate_fn=evaluate, target=target, setting=setting, device="cpu",
            )
        )
    )  # fmt: skip
    if best.kept is not None:
        np.save(out / "predictions.npy", said(best.kept, labelled(folder / "final.npz")[0]))


def labelled(path: Path) -> tuple[Any, Any]:
    """The only input, [samples, ...], and labels, [samples]."""
    arrays = dict(np.load(path))
    labels = arrays.pop("labels")
    (inputs,) = arrays.values()
    return inputs, labels


def predictions_of(model: Path, inputs: Any) -> Any:
    """Class of the highest score, int64 [samples], by ONNX Runtime on all processors."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.array([int(session.run(None, {name: row[None]})[0].argmax()) for row in inputs])


def share_right(predictions: Any, labels: Any) -> float:
    return float(np.mean(predictions == labels))


def _ended(search: Callable[[], object]) -> str:
    """How it ended; a search that fails has found what it has found."""
    try:
        search()
    except TimeUp:
        return "time was up"
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"
    return "finished"
