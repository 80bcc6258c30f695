"""Configurations per hour beside Quark's own AutoSearchPro, and what a failing one costs.

The same space (stage 1 of one of Quark's predefined spaces, which is all its configurations that train nothing) in the
same order, the same prepared Fashion-MNIST network, the same calibration samples, each side in turn with both
processors to itself, until it is through or its time is up, round after round. Imports count on neither side. A
configuration of ours counts when its recipe is accepted or refused with a reason; one that comes to the same recipe as
an earlier one is answered by that. AutoSearchPro scores on the calibration samples (its default), ours accepts on them.

Then the same with a configuration that cannot be made in the middle: how many have a result afterwards.

Quark lives in an environment of its own::

    boardtune backends install quark
    python benchmarks/autosearch_rate.py --quark ~/.local/share/boardtune/backends/quark/venv/bin/python

Figures: at least three times as many configurations per hour; a failing one loses nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "fashion_mnist"
BAD = "^/nowhere/.*"
"""Quark raises on a pattern that fits no node."""

AUTO_SEARCH_PRO = """
import copy, json, os, sys, time, numpy
from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import AutoSearchPro, get_auto_search_config
name, bad = sys.argv[1:3]
class Reader(CalibrationDataReader):
    def __init__(self):
        self.feeds = [{"image": row[None]} for row in numpy.load("calib.npz")["image"]]
        self.reset_iter()
    def reset_iter(self):
        self.rest = iter(self.feeds)
    def __len__(self):
        return len(self.feeds)
    def get_next(self):
        return next(self.rest, None)
config = copy.deepcopy(get_auto_search_config(name))
for key in ("algorithms", "adaround_params", "adaquant_params"):
    del config["search_space"][key]
if bad:
    config["search_space"]["exclude"] = [None, bad]
config.update(model_input="model.onnx", calib_data_reader=Reader(), eval_data_reader=Reader(), search_metric="L2",
    two_stage_search=False, search_algo="Grid", n_trials=100_000, output_dir="out", temp_dir="tmp")
search = AutoSearchPro(config)
score = search._cal_diff
done = open("done", "w")
def counted(path):
    value = score(path)
    done.write(f"{time.time()}\\n")
    done.flush()
    return value
search._cal_diff = counted
open("began", "w").write(str(time.time()))
search.run()
"""


def prepared(folder: Path, samples: int) -> None:
    import numpy as np

    from harness.quantize.prepare import prepare_model

    prepare_model(EXAMPLE / "model.onnx", folder / "model.onnx", {"batch": 1})
    with np.load(EXAMPLE / "calib.npz") as arrays:
        np.savez(folder / "calib.npz", image=(arrays["image"][:samples].astype(np.float32) / 255)[:, np.newaxis])


def theirs(python: Path, folder: Path, name: str, seconds: float, bad: str = "") -> tuple[int, float, int]:
    """Configurations with a score, seconds for them, and the exit code (0 where time was up)."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([python, "-c", AUTO_SEARCH_PRO, name, bad], stdout=log, stderr=log, cwd=folder)
        try:
            while not (folder / "began").exists():
                if process.poll() is not None:
                    sys.exit(f"AutoSearchPro does not start:\n{(folder / 'log').read_text()[-2000:]}")
                time.sleep(0.05)
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = 0
        finally:
            process.kill()
            process.wait()
    began = float((folder / "began").read_text())
    done = [float(line) for line in (folder / "done").read_text().split()]
    return len(done), (done[-1] - began if done else seconds), code


def ours(
    python: Path, folder: Path, configurations: Sequence[Mapping[str, Any]], seconds: float
) -> tuple[int, float, int]:
    """Configurations answered, seconds for them, and how many recipes were accepted."""
    from harness.quantize.contract import Artifact, QuantizeJob, QuantizeLimits
    from harness.quantize.worker import QuantizeWorker
    from harness.recipes.quark_presets import quark_recipe
    from harness.recipes.recipe import Recipe

    os.environ["BOARDTUNE_BACKEND_QUARK"] = str(python)
    limits = QuantizeLimits(min_snr_db=-200.0)
    wanted = [quark_recipe(**configuration) for configuration in configurations]
    todo = list(dict.fromkeys(wanted))
    ended: dict[Recipe, float] = {}
    accepted: list[Recipe] = []
    taking = threading.Lock()

    def job(name: str, recipe: Recipe, cache: str) -> QuantizeJob:
        extra = {"cache": cache}
        return QuantizeJob(folder / "model.onnx", folder / "calib.npz", recipe, folder / f"{name}.onnx", limits, extra)

    with QuantizeWorker() as first, QuantizeWorker() as second:
        for worker in (first, second):
            worker.quantize(job("warm", quark_recipe(activation__calibration_method="MinMax"), ""))
        began = time.monotonic()

        def work(worker: QuantizeWorker) -> None:
            while time.monotonic() - began < seconds:
                with taking:
                    if not todo:
                        return
                    recipe = todo.pop(0)
                result = worker.quantize(job(recipe.digest[:12], recipe, str(folder / "cache")))
                with taking:
                    ended[recipe] = time.monotonic() - began
                    if isinstance(result, Artifact):
                        accepted.append(recipe)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(recipe in ended for recipe in wanted), max(ended.values()), len(accepted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quark", type=Path, required=True, help="interpreter of Quark's environment")
    parser.add_argument("--space", default="A8W8_SEARCH", help="one of Quark's predefined spaces")
    parser.add_argument("--samples", type=int, default=64, help="calibration samples")
    parser.add_argument("--seconds", type=float, default=300.0, help="at most, for each side, each round")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from harness.recipes.quark_presets import AUTO_SEARCH

    configurations = list(AUTO_SEARCH[arguments.space].first_stage())
    ratios = []
    for number in range(arguments.rounds):
        rates = {}
        with tempfile.TemporaryDirectory() as name:
            prepared(Path(name), arguments.samples)
            done, took, _ = theirs(arguments.quark, Path(name), arguments.space, arguments.seconds)
            rates["AutoSearchPro"] = done * 3600 / took
            print(
                f"round {number + 1}: AutoSearchPro: {done} of {len(configurations)} configurations in {took:.1f} s "
                f"({rates['AutoSearchPro']:.0f} per hour)",
                flush=True,
            )
        with tempfile.TemporaryDirectory() as name:
            prepared(Path(name), arguments.samples)
            answered, took, made = ours(arguments.quark, Path(name), configurations, arguments.seconds)
            rates["boardtune"] = answered * 3600 / took
            print(
                f"round {number + 1}: boardtune: {answered} of {len(configurations)} configurations by {made} "
                f"artifacts in {took:.1f} s ({rates['boardtune']:.0f} per hour)",
                flush=True,
            )
        ratios.append(rates["boardtune"] / rates["AutoSearchPro"])
    print(f"configurations per hour, boardtune / AutoSearchPro: median {statistics.median(ratios):.2f} ({ratios})")
    failing(arguments)
    return 0


def failing(arguments: argparse.Namespace) -> None:
    """The smallest space twice, the second half with a pattern that Quark raises on; then once more without."""
    from harness.recipes.quark_presets import AUTO_SEARCH

    stage = list(AUTO_SEARCH["XINT8_SEARCH"].first_stage())
    # As Quark nests it: the axis “exclude” inside the axis “cle_algo”.
    equalized, plain = stage[:2], stage[2:]
    halves = [(equalized, {}), (equalized, {"exclude": (BAD,)}), (plain, {}), (plain, {"exclude": (BAD,)})]
    mixed = [{**options, **bad} for half, bad in halves for options in half]
    with tempfile.TemporaryDirectory() as name:
        prepared(Path(name), 8)
        done, _, code = theirs(arguments.quark, Path(name), "XINT8_SEARCH", arguments.seconds, BAD)
        named = (Path(name) / "out" / "best_params.json").exists()
        print(f"with failing ones: AutoSearchPro: {done} of 3 scored, exit code {code}, a best one named: {named}")
    with tempfile.TemporaryDirectory() as name:
        prepared(Path(name), 8)
        answered, _, made = ours(arguments.quark, Path(name), mixed, arguments.seconds)
        print(f"with failing ones: boardtune: {answered} of {len(mixed)} answered, {made} of 3 accepted")


if __name__ == "__main__":
    sys.exit(main())
