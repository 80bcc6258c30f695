"""Trials per hour of our quantizer beside AMD Quark's ``ModelQuantizer`` and ESP-PPQ, calibration-only recipes.

Same prepared model, same 64 calibration samples, the same eight recipes as far as each side has them: int8 weights
and activations, symmetric, per tensor and per channel, four calibration methods (min-max, percentile, KL divergence,
mean squared error); beside ESP-PPQ all scales are powers of two, as its targets demand (esp32s3 per tensor, esp32p4 per
channel). In turn, round after round, each side in a fresh process; imports are not counted on any side, nor is writing
the calibration set. Ours starts each round with an empty cache, and its time includes acceptance.

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
from pathlib import Path
from typing import Any

SAMPLES = 64
METHODS = ("minmax", "percentile", "entropy", "mse")
GRANULARITIES = ("per_tensor", "per_channel")


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


def ours(model: Path, data: Path, out: Path, power_of_two: bool) -> dict[str, Any]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.support.quantizing import quantize_all

    return quantize_all(model, data, out, recipes(power_of_two), workers=2)


def quark(model: Path, data: Path, out: Path) -> dict[str, Any]:
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

    failed = []
    started = time.monotonic()
    for index, recipe in enumerate(recipes(power_of_two=False)):
        config = QConfig(
            global_config=QLayerConfig(
                input_tensors=Int8Spec(
                    symmetric=True, calibration_method=CalibMethod[methods[recipe["calibration"]["method"]]]
                ),
                weight=Int8Spec(symmetric=True, quant_granularity=granularities[recipe["granularity"]]),
            ),
            CalibWorkerNum=os.cpu_count() or 1,
        )
        try:
            ModelQuantizer(config).quantize_model(
                str(model), str(out / f"quark{index}.onnx"), calibration_data_reader=calibration_reader(arrays, SAMPLES)
            )
        except Exception as error:
            failed.append(f"{recipe}: {type(error).__name__}: {error}")
    return {"seconds": time.monotonic() - started, "refused": failed}


def esp_ppq(model: Path, data: Path, out: Path) -> dict[str, Any]:
    """Runs under ESP-PPQ's interpreter."""
    import shutil

    import numpy as np
    import torch
    from esp_ppq.api import QuantizationSettingFactory, espdl_quantize_onnx

    (array,) = dict(np.load(data)).values()
    rows = [torch.from_numpy(array[index : index + 1]) for index in range(len(array))]
    methods = {"minmax": "minmax", "percentile": "percentile", "entropy": "kl", "mse": "mse"}
    targets = {"per_tensor": "esp32s3", "per_channel": "esp32p4"}
    failed = []
    started = time.monotonic()
    for index, recipe in enumerate(recipes(power_of_two=True)):
        setting = QuantizationSettingFactory.espdl_setting(num_of_bits=8)
        setting.quantize_activation_setting.calib_algorithm = methods[recipe["calibration"]["method"]]
        # It overwrites the model it is given.
        copy = out / f"ppq{index}.onnx"
        shutil.copyfile(model, copy)
        try:
            espdl_quantize_onnx(
                str(copy), str(out / f"ppq{index}.espdl"), rows, calib_steps=len(rows), input_shape=list(rows[0].shape),
                target=targets[recipe["granularity"]], num_of_bits=8, setting=setting, device="cpu",
                error_report=False, export_test_values=False, verbose=0,
            )  # fmt: skip
        except Exception as error:
            failed.append(f"{recipe}: {type(error).__name__}: {error}")
    return {"seconds": time.monotonic() - started, "refused": failed}


SIDES = {
    "ours": lambda *files: ours(*files, power_of_two=False),
    "ours-pow2": lambda *files: ours(*files, power_of_two=True),
    "quark": quark,
    "esp-ppq": esp_ppq,
}


def measured(side: str, python: str, model: Path, data: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [
            str(Path(python).absolute()),
            str(Path(__file__).resolve()),
            "--side",
            side,
            str(model),
            str(data),
            folder,
            str(result),
        ]
        # Quark leaves a table in the working folder.
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
        if not result.exists():
            raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
        return dict(json.loads(result.read_text()))


def in_turn(name: str, model: Path, data: Path, rounds: int, peers: dict[str, str]) -> None:
    for peer, python in peers.items():
        own = "ours-pow2" if peer == "esp-ppq" else "ours"
        ratios, seconds = [], {own: [], peer: []}  # type: ignore[var-annotated]
        for index in range(rounds):
            results: dict[str, dict[str, Any]] = {}
            for side in (own, peer) if index % 2 == 0 else (peer, own):
                results[side] = measured(side, sys.executable if side == own else python, model, data)
                seconds[side].append(results[side]["seconds"])
            ratios.append(results[peer]["seconds"] / results[own]["seconds"])
        count = len(recipes(power_of_two=False))
        hourly = {side: round(3600 * count / statistics.median(values)) for side, values in seconds.items()}
        refused = {side: found["refused"] for side, found in results.items() if found["refused"]}
        print(
            f"{name}: {hourly[own]} trials per hour, {peer} {hourly[peer]}: {statistics.median(ratios):.1f} x "
            f"({', '.join(f'{ratio:.1f}' for ratio in ratios)})" + (f"; refused: {refused}" if refused else ""),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quark", help="interpreter that has amd-quark")
    parser.add_argument("--esp-ppq", help="interpreter that has esp-ppq")
    parser.add_argument("--models", nargs="+", default=["depthwise224"], help="depthwiseSIZE or fashion_mnist")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=tuple(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        model, data, out, result = arguments.files
        result.write_text(json.dumps(SIDES[arguments.side](model, data, out)))
        return
    peers = {name: path for name, path in (("quark", arguments.quark), ("esp-ppq", arguments.esp_ppq)) if path}
    if not peers:
        print("skipped: no peer's interpreter was named; see --help for how to make one")
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.support.quantizing import models

    with tempfile.TemporaryDirectory() as folder:
        for name, (model, data) in models(arguments.models, Path(folder), SAMPLES).items():
            in_turn(name, model, data, arguments.rounds, peers)


if __name__ == "__main__":
    main()
