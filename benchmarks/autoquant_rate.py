"""Distinct artifacts per hour, and the best of them, beside ESP-PPQ's own AutoQuant driver.

The same space (AutoQuant's default without what trains: TQT and block-wise reconstruction), the same prepared
Fashion-MNIST network, the same 64 calibration samples, the same target, each side for the same time, in turn, round
after round. Each side goes through it as it does: AutoQuant in its ``fast`` mode, boardtune with its random sampler.
Imports count on neither side. Artifacts are counted by what they compute (identity: nodes, exponents, constants). Ours
includes acceptance by the interpreter, AutoQuant's its own score. AutoQuant gets both processors (torch's default
threads), its documented default score, no error report. Accuracy of the best artifact of each: top-1 on the same
evaluation samples, by the interpreter.

ESP-PPQ lives in an environment of its own::

    boardtune backends install esp_ppq
    python benchmarks/autoquant_rate.py

Figures: at least twice as many distinct artifacts per hour, the best of them at least as accurate.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SAMPLES = 64
TRAINED = ("tqt", "blockwise_reconstruction")
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "fashion_mnist"


def experiments() -> Iterator[dict[str, Any]]:
    """Options of the space, drawn without replacement as the random sampler does (seed 0)."""
    from harness.recipes.esp_ppq import PARAMETERS, SWITCHES, belongs

    switches = {name: (False,) if name in TRAINED else values for name, values in SWITCHES.items()}
    found = []
    for chosen in itertools.product(*switches.values()):
        strategy = dict(zip(switches, chosen, strict=True))
        names = [name for name in PARAMETERS if belongs(name, strategy)]
        for values in itertools.product(*(PARAMETERS[name] for name in names)):
            found.append({**strategy, **dict(zip(names, values, strict=True))})
    random.Random(0).shuffle(found)
    yield from found


def ours(python: Path, folder: Path, seconds: float, target: str) -> list[Path]:
    from harness.quantize.contract import Artifact, QuantizeJob, QuantizeLimits
    from harness.quantize.worker import QuantizeWorker
    from harness.recipes.esp_presets import esp_recipe
    from harness.recipes.recipe import Recipe

    os.environ["BOARDTUNE_BACKEND_ESP_PPQ"] = str(python)
    cache = folder / "cache"
    limits = QuantizeLimits(min_snr_db=-200.0)
    made: list[Path] = []
    todo = enumerate(experiments())
    taking = threading.Lock()

    def job(index: int, recipe: Recipe) -> QuantizeJob:
        out = folder / f"{index:05d}.espdl"
        return QuantizeJob(folder / "model.onnx", folder / "calib.npz", recipe, out, limits, {"cache": str(cache)})

    with QuantizeWorker() as first, QuantizeWorker() as second:
        warm = esp_recipe(target=target, calib_algorithm="minmax")
        for worker in (first, second):
            worker.quantize(job(99999, warm))
        for path in cache.rglob("*-ranking.json"):
            path.unlink()
        until = time.monotonic() + seconds

        def work(worker: QuantizeWorker) -> None:
            while time.monotonic() < until:
                with taking:
                    index, options = next(todo)
                result = worker.quantize(job(index, esp_recipe(target=target, **options)))
                if isinstance(result, Artifact) and time.monotonic() < until:
                    made.append(result.path)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return made


AUTOQUANT = """
import sys, time, json, numpy, torch
from esp_ppq.api import espdl_auto_quantize_onnx, AutoQuantSearchSetting
folder, target = sys.argv[1:3]
arrays = numpy.load(folder + "/calib.npz")
name = arrays.files[0]
samples = [torch.from_numpy(arrays[name][i : i + 1]) for i in range(len(arrays[name]))]
setting = AutoQuantSearchSetting(search_mode="fast", run_dir=folder + "/run")
for trained in ("tqt", "blockwise_reconstruction"):
    setting.strategy_space[trained] = [False]
open(folder + "/began", "w").write("x")
espdl_auto_quantize_onnx(folder + "/model.onnx", folder + "/out.espdl", samples, min(len(samples), 32),
    list(samples[0].shape[1:]), target=target, collate_fn=lambda batch: batch, setting=setting)
"""


def autoquant(python: Path, folder: Path, seconds: float, target: str) -> list[Path]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([python, "-c", AUTOQUANT, str(folder), target], stdout=log, stderr=log, cwd=folder)
        while not (folder / "began").exists():
            if process.poll() is not None:
                sys.exit(f"AutoQuant does not start:\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        time.sleep(seconds)
        process.kill()
        process.wait()
    # What it recorded is done; a folder beyond may be half written.
    done = json.loads((folder / "run" / "summary.json").read_text())
    return [Path(record["folder"]) / "out.espdl" for record in done]


def distinct(paths: list[Path]) -> dict[str, Path]:
    from device_agents.emulated.espdl.reader import read_model
    from harness.quantize.made_espdl import espdl_identity

    return {espdl_identity(read_model(path)): path for path in paths}


def accuracy(path: Path, target: str, images: Any, labels: Any) -> float:
    from device_agents.emulated.espdl.axes import Axes
    from device_agents.emulated.espdl.interpreter import Interpreter
    from device_agents.emulated.espdl.reader import read_model

    model = read_model(path)
    interpreter = Interpreter(model, target)
    # AutoQuant's files do not say their axes: an image with four axes is NHWC.
    axes, name = Axes.of(model), model.inputs[0].name
    outputs = interpreter.run({name: interpreter.quantize(name, axes.stored(name, images))})
    logits = next(iter(outputs.values())).reshape(len(images), -1)
    return float((logits.argmax(axis=1) == labels).mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--esp-ppq", type=Path, help="interpreter of ESP-PPQ's environment, if not the installed one")
    parser.add_argument("--target", default="esp32s3")
    parser.add_argument("--seconds", type=float, default=120.0, help="for each side, each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--evaluated", type=int, default=2000, help="evaluation samples")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    import numpy as np

    from harness.errors import ConfigError
    from harness.quantize.prepare import prepare_model
    from harness.quantize.vendors.environments import find_environment

    try:
        python = arguments.esp_ppq or find_environment("esp_ppq").python
    except ConfigError as error:
        print(f"skipped: {error}")
        return 0
    ratios = []
    with np.load(EXAMPLE / "eval.npz") as arrays:
        images = (arrays["image"][: arguments.evaluated].astype(np.float32) / 255)[:, np.newaxis]
        labels = arrays["labels"][: arguments.evaluated]
    for number in range(arguments.rounds):
        counted: dict[str, int] = {}
        for side, run in (("AutoQuant", autoquant), ("boardtune", ours)):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                prepare_model(EXAMPLE / "model.onnx", folder / "model.onnx", {"batch": 1})
                with np.load(EXAMPLE / "calib.npz") as arrays:
                    calib = (arrays["image"][:SAMPLES].astype(np.float32) / 255)[:, np.newaxis]
                np.savez(folder / "calib.npz", image=calib)
                paths = run(python, folder, arguments.seconds, arguments.target)
                different = distinct(paths)
                counted[side] = len(different)
                rate = len(different) * 3600 / arguments.seconds
                scores = [accuracy(path, arguments.target, images, labels) for path in different.values()]
                best = f"{max(scores):.4f} of {len(images)}" if scores else "none"
                print(
                    f"round {number + 1}: {side}: {len(paths)} made, {len(different)} distinct in "
                    f"{arguments.seconds:g} s ({rate:.0f} per hour), best top-1 {best}",
                    flush=True,
                )
        ratios.append(counted["boardtune"] / max(counted["AutoQuant"], 1))
    print(f"distinct artifacts, boardtune / AutoQuant: median {statistics.median(ratios):.2f} ({ratios})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
