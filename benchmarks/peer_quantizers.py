"""Trials per hour of our quantizer beside AMD Quark's ``ModelQuantizer`` and ESP-PPQ, calibration-only recipes.

Same prepared model, same 64 calibration samples, the same eight recipes as far as each side has them: int8 weights
and activations, symmetric, per tensor and per channel, four calibration methods (min-max, percentile, KL divergence,
mean squared error); beside ESP-PPQ all scales are powers of two, as its targets demand (esp32s3 per tensor, esp32p4 per
channel). In turn, round after round, each side in a fresh process; imports are not counted on any side, nor is writing
the calibration set. Ours starts each round with an empty cache, and its time includes acceptance.

A peer calibrates anew for each recipe, so what it needs for one does not depend on how many there are: beside large
models it is given the first few (``--peer-recipes``: four are all methods), and begins none after ``--peer-seconds``.
Rates are compared, of what was finished; one under way at twice that time is killed, and if it was the first, the ratio
is a lower bound.

Peers get both processors and their fastest documented settings: Quark ``CalibWorkerNum`` = processors (its page on
extra options) and ONNX Runtime's default threads; ESP-PPQ torch's default threads, no error report, no test values.
Both live in environments of their own, whose interpreters are named::

    python -m venv quark && quark/bin/pip install torch==2.13.0 amd-quark onnxruntime
    python3.12 -m venv ppq && ppq/bin/pip install torch==2.13.0 esp-ppq onnxruntime
    python benchmarks/peer_quantizers.py --quark quark/bin/python --esp-ppq ppq/bin/python

Figure: at least 10 times as many trials per hour as each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SAMPLES = 64
METHODS = ("minmax", "percentile", "entropy", "mse")
GRANULARITIES = ("per_tensor", "per_channel")
PROGRESS = "progress.json"
IMPORTS_S = 60


def recipes(power_of_two: bool) -> list[dict[str, Any]]:
    scale = {"scale": "power_of_two"} if power_of_two else {}
    return [
        {
            "scheme": "static", "activation": "int8", "weight": "int8", "activation_symmetric": True,
            "granularity": granularity, "calibration": {"method": method}, **scale,
        }
        for granularity in GRANULARITIES
        for method in METHODS
    ]  # fmt: skip


class Share:
    """The recipes a peer is given, and what it has done of them, kept in a file as it goes."""

    def __init__(self, out: Path, most: int, seconds: float) -> None:
        self.out, self.most, self.seconds = out, most, seconds

    def run(self, power_of_two: bool, quantize: Callable[[int, dict[str, Any]], None]) -> dict[str, Any]:
        failed: list[str] = []
        started, found = time.monotonic(), {}
        for index, recipe in enumerate(recipes(power_of_two)[: self.most]):
            if time.monotonic() - started > self.seconds:
                break
            try:
                quantize(index, recipe)
            except Exception as error:
                failed.append(f"{recipe}: {type(error).__name__}: {error}")
            found = {"seconds": time.monotonic() - started, "recipes": index + 1, "refused": failed}
            (self.out / PROGRESS).write_text(json.dumps(found))
        return found


def ours(model: Path, data: Path, out: Path, power_of_two: bool) -> dict[str, Any]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.support.quantizing import quantize_all

    made = recipes(power_of_two)
    return {**quantize_all(model, data, out, made, workers=2), "recipes": len(made)}


def quark(model: Path, data: Path, share: Share) -> dict[str, Any]:
    """Runs under Quark's interpreter."""
    import logging

    import numpy as np
    from quark.onnx import CalibMethod, Int8Spec, ModelQuantizer, QConfig, QLayerConfig, QuantGranularity

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.support.quantizing import calibration_reader

    logging.disable(logging.CRITICAL)
    arrays = dict(np.load(data))
    methods = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy", "mse": "MinMSE"}
    granularities = {"per_tensor": QuantGranularity.Tensor, "per_channel": QuantGranularity.Channel}

    def quantize(index: int, recipe: dict[str, Any]) -> None:
        config = QConfig(
            global_config=QLayerConfig(
                input_tensors=Int8Spec(
                    symmetric=True, calibration_method=CalibMethod[methods[recipe["calibration"]["method"]]]
                ),
                weight=Int8Spec(symmetric=True, quant_granularity=granularities[recipe["granularity"]]),
            ),
            CalibWorkerNum=os.cpu_count() or 1,
        )
        ModelQuantizer(config).quantize_model(
            str(model),
            str(share.out / f"quark{index}.onnx"),
            calibration_data_reader=calibration_reader(arrays, SAMPLES),
        )

    return share.run(False, quantize)


def esp_ppq(model: Path, data: Path, share: Share) -> dict[str, Any]:
    """Runs under ESP-PPQ's interpreter."""
    import shutil

    import numpy as np
    import torch
    from esp_ppq.api import QuantizationSettingFactory, espdl_quantize_onnx

    (array,) = dict(np.load(data)).values()
    rows = [torch.from_numpy(array[index : index + 1]) for index in range(len(array))]
    methods = {"minmax": "minmax", "percentile": "percentile", "entropy": "kl", "mse": "mse"}
    targets = {"per_tensor": "esp32s3", "per_channel": "esp32p4"}

    def quantize(index: int, recipe: dict[str, Any]) -> None:
        setting = QuantizationSettingFactory.espdl_setting(num_of_bits=8)
        setting.quantize_activation_setting.calib_algorithm = methods[recipe["calibration"]["method"]]
        # It overwrites the model it is given.
        copy = share.out / f"ppq{index}.onnx"
        shutil.copyfile(model, copy)
        espdl_quantize_onnx(
            str(copy), str(share.out / f"ppq{index}.espdl"), rows, calib_steps=len(rows),
            input_shape=list(rows[0].shape), target=targets[recipe["granularity"]], num_of_bits=8,
            setting=setting, device="cpu", error_report=False, export_test_values=False, verbose=0,
        )  # fmt: skip

    return share.run(True, quantize)


PEERS: Mapping[str, Callable[[Path, Path, Share], dict[str, Any]]] = {"quark": quark, "esp-ppq": esp_ppq}
OURS = {"ours": False, "ours-pow2": True}


def measured(side: str, python: str, model: Path, data: Path, most: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result, progress = Path(folder) / "result.json", Path(folder) / PROGRESS
        command = [str(Path(python).absolute()), str(Path(__file__).resolve()), "--side", side]
        command += ["--peer-recipes", str(most), "--peer-seconds", str(seconds)]
        started = time.monotonic()
        try:
            # Quark leaves a table in the working folder.
            done = subprocess.run(
                [*command, str(model), str(data), folder, str(result)],
                check=False,
                capture_output=True,
                text=True,
                cwd=folder,
                timeout=None if side in OURS else 2 * seconds + IMPORTS_S,
            )
        except subprocess.TimeoutExpired:
            if progress.exists():
                return dict(json.loads(progress.read_text()))
            return {"seconds": time.monotonic() - started, "recipes": 1, "refused": [], "killed": True}
        if not result.exists():
            raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
        return dict(json.loads(result.read_text()))


def in_turn(name: str, model: Path, data: Path, peers: dict[str, str], options: argparse.Namespace) -> None:
    for peer, python in peers.items():
        own = "ours-pow2" if peer == "esp-ppq" else "ours"
        rates: dict[str, list[float]] = {own: [], peer: []}
        for index in range(options.rounds):
            results: dict[str, dict[str, Any]] = {}
            for side in (own, peer) if index % 2 == 0 else (peer, own):
                interpreter = sys.executable if side == own else python
                found = measured(side, interpreter, model, data, options.peer_recipes, options.peer_seconds)
                results[side] = found
                rates[side].append(3600 * found["recipes"] / found["seconds"])
        ratios = [ours / theirs for ours, theirs in zip(rates[own], rates[peer], strict=True)]
        refused = {side: found["refused"] for side, found in results.items() if found["refused"]}
        bound = "at least " if any(found.get("killed") for found in results.values()) else ""
        print(
            f"{name}: {statistics.median(rates[own]):.0f} trials per hour, {peer} {statistics.median(rates[peer]):.0f} "
            f"(of {results[peer]['recipes']}): {bound}{statistics.median(ratios):.1f} x "
            f"({', '.join(f'{ratio:.1f}' for ratio in ratios)})" + (f"; refused: {refused}" if refused else ""),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quark", help="interpreter that has amd-quark")
    parser.add_argument("--esp-ppq", help="interpreter that has esp-ppq")
    parser.add_argument("--models", nargs="+", default=["depthwise224"], help="depthwiseSIZE or fashion_mnist")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-recipes", type=int, default=8, help="for each peer, of the eight [%(default)s]")
    parser.add_argument("--peer-seconds", type=float, default=600.0, help="after which it begins none [%(default)s]")
    parser.add_argument("--side", choices=(*OURS, *PEERS), help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        model, data, out, result = arguments.files
        if arguments.side in OURS:
            found = ours(model, data, out, OURS[arguments.side])
        else:
            share = Share(out, arguments.peer_recipes, arguments.peer_seconds)
            found = PEERS[arguments.side](model, data, share)
        result.write_text(json.dumps(found))
        return
    peers = {name: path for name, path in (("quark", arguments.quark), ("esp-ppq", arguments.esp_ppq)) if path}
    if not peers:
        print("skipped: no peer's interpreter was named; see --help for how to make one")
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.support.quantizing import models

    with tempfile.TemporaryDirectory() as folder:
        for name, (model, data) in models(arguments.models, Path(folder), SAMPLES).items():
            in_turn(name, model, data, peers, arguments)


if __name__ == "__main__":
    main()
