"""Trials per hour and peak memory of our quantizer beside ``onnxruntime.quantization.quantize_static``.

Both make the same twelve static recipes (min-max, two percentiles, entropy; three ways of holding numbers) of the same
prepared model with the same 64 calibration samples, in turn, round after round. Ours starts each round with an empty
cache, and its time includes acceptance: loading what was made, running it and comparing it with float, which the peer
does not do. The peer gets all processors (ONNX Runtime's default), the prepared model, symbolic shape inference
skipped; ours one thread in each of ``--workers`` workers (two, as in a search). Memory is the highest resident size of
the process that quantizes, above what it held after its imports; ours times the number of workers.

The peer calibrates anew for each recipe, so what it needs for one does not depend on how many there are: beside large
models it may be given the first few (``--peer-recipes 4`` are all methods, with one way of holding numbers), and rates
are compared.

Figures: trials per hour at least 5 times the peer's, peak memory at most a quarter.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.quantizing import calibration_reader, models, quantize_all, resident_bytes

SAMPLES = 64
METHODS: tuple[dict[str, Any], ...] = (
    {"method": "minmax"},
    {"method": "percentile", "percentile": 99.9},
    {"method": "percentile", "percentile": 99.99},
    {"method": "entropy"},
)
NUMBERS: tuple[tuple[str, str, str], ...] = (
    ("uint8", "int8", "per_channel"),
    ("int8", "int8", "per_channel"),
    ("int8", "int8", "per_tensor"),
)


def recipe_dicts() -> list[dict[str, Any]]:
    return [
        {"scheme": "static", "activation": a, "weight": w, "granularity": g, "calibration": method}
        for a, w, g in NUMBERS
        for method in METHODS
    ]


def peer(model: Path, data: Path, out: Path, most: int) -> dict[str, Any]:
    import contextlib
    import io
    import logging

    from onnxruntime.quantization import (
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    logging.disable(logging.WARNING)
    arrays = dict(np.load(data))
    types = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8}
    methods = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}

    held, failed = resident_bytes(), []
    started = time.monotonic()
    for index, recipe in enumerate(recipe_dicts()[:most]):
        calibration = recipe["calibration"]
        options = {"CalibPercentile": calibration["percentile"]} if "percentile" in calibration else {}
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                quantize_static(
                    model,
                    out / f"peer{index}.onnx",
                    calibration_reader(arrays, SAMPLES),
                    quant_format=QuantFormat.QDQ,
                    activation_type=types[recipe["activation"]],
                    weight_type=types[recipe["weight"]],
                    per_channel=recipe["granularity"] == "per_channel",
                    calibrate_method=CalibrationMethod[methods[calibration["method"]]],
                    extra_options=options,
                )
        except Exception as error:
            failed.append(f"{recipe}: {error}")
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "peak_bytes": peak - held, "held_bytes": held, "refused": failed}


def in_turn(name: str, model: Path, data: Path, rounds: int, workers: int, most: int) -> dict[str, Any]:
    """Both sides ``rounds`` times, each in a fresh process, the first to go changing every round."""
    results: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    for index in range(rounds):
        for side in ("ours", "peer") if index % 2 == 0 else ("peer", "ours"):
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, "--side", side, "--workers", str(workers)]
                command += ["--peer-recipes", str(most)]
                command += [str(model), str(data), folder]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            results[side].append(json.loads(done.stdout.splitlines()[-1]))
    count = {"ours": len(recipe_dicts()), "peer": min(most, len(recipe_dicts()))}
    hourly = {
        side: statistics.median(3600 * count[side] / r["seconds"] for r in runs) for side, runs in results.items()
    }
    peak = {side: max(r["peak_bytes"] for r in runs) for side, runs in results.items()}
    return {
        "model": name,
        "recipes": count,
        "trials_per_hour": {side: round(value) for side, value in hourly.items()},
        "speed_ratio": round(hourly["ours"] / hourly["peer"], 2),
        "speed_ratios": [
            round(p["seconds"] / count["peer"] / (o["seconds"] / count["ours"]), 2)
            for o, p in zip(results["ours"], results["peer"], strict=True)
        ],
        "peak_mib": {side: round(value / 2**20, 1) for side, value in peak.items()},
        "memory_ratio": round(peak["ours"] / peak["peer"], 3),
        "refused": {side: runs[0]["refused"] for side, runs in results.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["depthwise96", "fashion_mnist"],
                        help="depthwiseSIZE or fashion_mnist")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="as many as a search starts")
    parser.add_argument("--peer-recipes", type=int, default=12, help="for the peer, of the twelve [%(default)s]")
    parser.add_argument("--side", choices=("ours", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        model, data, out = arguments.files
        if arguments.side == "ours":
            result = quantize_all(model, data, out, recipe_dicts(), arguments.workers)
        else:
            result = peer(model, data, out, arguments.peer_recipes)
        print(json.dumps(result))
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, data) in models(arguments.models, Path(folder), SAMPLES).items():
            print(
                json.dumps(in_turn(name, model, data, arguments.rounds, arguments.workers, arguments.peer_recipes)),
                flush=True,
            )


if __name__ == "__main__":
    main()
