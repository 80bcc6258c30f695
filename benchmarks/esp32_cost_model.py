"""Fits the latency model of the emulated ESP32 boards to Espressif's published timings, and says how far off it is.

    python benchmarks/esp32_cost_model.py [--json FILE]

Latency is taken as ``a * MMAC + b * millions of activations``, both not negative, fitted to the relative error
(scipy's NNLS). The error that is stated is the leave-one-out error: each published figure predicted from all others.
Figures: ``models/*/README.md`` of https://github.com/espressif/esp-dl, release 3.3.9 (single core), with the
multiply-accumulates and activations of the ``.espdl`` files there. The ESP32-S3's YOLO11n figures are left out: on 8 MB
of PSRAM their parameters stay in flash (README of ``coco_detect``), another regime: ``flash_factor`` is what they
take longer than the fit says, as a median.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls


@dataclass(frozen=True)
class Published:
    """One published model; milliseconds, 10^6 multiply-accumulates, 10^6 activation values."""

    name: str
    s3_ms: float | None
    p4_ms: float | None
    mmac: float
    mactivations: float


PUBLISHED = (
    Published("mobilenetv2 224", 1309.5, 326.6, 300.8, 7.0),
    Published("mobilenetv2-0.5 gesture 128", 115.4, 26.5, 31.3, 1.2),
    Published("yolo11n 640", 26014.2, 2535.3, 3270.7, 50.6),
    Published("yolo11n 320", 6161.8, 550.1, 811.9, 12.0),
    Published("yolo11n-pose 640", 27829.8, 2729.8, 3733.0, 50.2),
    Published("yolo11n-seg 640", 27636.7, 3054.5, 5214.7, 59.9),
    Published("espdet_pico cat 224", 123.9, 47.5, 78.2, 2.6),
    Published("espdet_pico cat 416", 434.5, 182.7, 269.7, 9.0),
    Published("espdet_pico face 224", 131.6, 49.6, 86.0, 2.8),
    Published("pedestrian pico 224", 118.3, 55.6, 67.7, 2.2),
    Published("face msr 120x160", 33.1, 13.1, 8.1, 0.46),
    Published("face mnp 48", 5.8, 2.4, 2.4, 0.12),
    Published("face feat mfn 112", 248.8, 93.0, 221.2, 6.5),
    Published("face feat mbf 112", 1072.4, 188.2, 436.8, 8.0),
    Published("person reid osn 192x96", 110.0, 40.2, 42.7, 2.0),
    Published("pp_ocr_v6 rec 48x320", None, 168.9, 184.5, 3.7),
    Published("pp_ocr_v6 det 736", None, 2334.0, 1881.8, 90.2),
)
IN_FLASH = "yolo11n"


def fit(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """(ms per MMAC, ms per million activations) from (ms, MMAC, activations)."""
    table = np.array(rows)
    latency = table[:, 0]
    weights, _ = nnls(table[:, 1:] / latency[:, None], np.ones(len(rows)))
    return float(weights[0]), float(weights[1])


def predicted(weights: tuple[float, float], row: tuple[float, float, float]) -> float:
    return weights[0] * row[1] + weights[1] * row[2]


def mean_error(weights: tuple[float, float], rows: Sequence[tuple[float, float, float]]) -> float:
    return float(np.mean([abs(predicted(weights, row) / row[0] - 1) for row in rows]))


def leave_one_out(rows: Sequence[tuple[float, float, float]]) -> float:
    """Mean relative error of each row predicted from the others."""
    errors = []
    for index, row in enumerate(rows):
        weights = fit([other for k, other in enumerate(rows) if k != index])
        errors.append(abs(predicted(weights, row) / row[0] - 1))
    return float(np.mean(errors))


def rows_of(target: str) -> dict[str, tuple[float, float, float]]:
    """The rows that the target's model is fitted to, by name."""
    found = {}
    for row in PUBLISHED:
        latency = row.s3_ms if target == "esp32s3" else row.p4_ms
        if latency is not None and not (target == "esp32s3" and row.name.startswith(IN_FLASH)):
            found[row.name] = (latency, row.mmac, row.mactivations)
    return found


def flash_factor(weights: tuple[float, float]) -> float:
    """How much longer the ESP32-S3's models with parameters in flash take than the fit says."""
    rows = [(r.s3_ms, r.mmac, r.mactivations) for r in PUBLISHED if r.name.startswith(IN_FLASH) and r.s3_ms]
    return float(np.median([row[0] / predicted(weights, row) for row in rows]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    results = {}
    for target in ("esp32s3", "esp32p4"):
        rows = rows_of(target)
        weights = fit(list(rows.values()))
        results[target] = {
            "figures": len(rows),
            "ms_per_mmac": round(weights[0], 3),
            "ms_per_mactivation": round(weights[1], 2),
            "mean_error": round(mean_error(weights, list(rows.values())), 3),
            "leave_one_out_error": round(leave_one_out(list(rows.values())), 3),
        }
        if target == "esp32s3":
            results[target]["flash_factor"] = round(flash_factor(weights), 2)
        print(f"{target}: {results[target]}")
        for name, row in rows.items():
            print(f"  {name:30s} published {row[0]:9.1f} ms, model {predicted(weights, row):9.1f} ms")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
