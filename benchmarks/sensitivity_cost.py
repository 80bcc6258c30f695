"""What the sensitivity of a quantizer group costs, both directions together, in evaluations of the float model.

A MobileNetV2-class model (``depthwise_model.py``), 256 samples; every group quantized alone and left in float alone, by
the real quantizer. One evaluation of the float model is all samples through a session with the same options (ONNX
Runtime, CPU, one thread, all optimisations), in the same process; it is taken before, in the middle and after. A
group's cost is everything that it takes: rewriting, finding what differs, loading, running, scoring. What is paid
once (preparation, calibration, one run of the float and of the quantized model) is printed apart.

Figure: median cost of a group at most one evaluation.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent))


def measure(size: int, count: int, cached_mib: int) -> dict[str, Any]:
    from depthwise_model import depthwise_model

    from harness.quantize.cache import Cache
    from harness.quantize.calibrate import Subject
    from harness.quantize.calibration_data import CalibrationSet
    from harness.quantize.prepare import prepare_model
    from harness.quantize.sessions import open_session
    from harness.sensitivity.activations import Samples
    from harness.sensitivity.analysis import Analysis
    from harness.sensitivity.once import DEFAULT_RECIPE
    from harness.sensitivity.scoring import worst_snr_db

    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(depthwise_model(size), folder / "source.onnx")
        prepared = prepare_model(folder / "source.onnx", folder / "float.onnx")
        np.savez(folder / "calibration.npz", x=random.standard_normal((32, 3, size, size)).astype(np.float32))
        samples = Samples(
            CalibrationSet({"x": random.standard_normal((count, 3, size, size)).astype(np.float32)}, prepared.inputs),
            None,
        )
        session = open_session(prepared.path)

        def evaluation() -> float:
            started = time.perf_counter()
            for feed in samples:
                session.run(None, feed)
            return time.perf_counter() - started

        evaluations = [evaluation(), evaluation()]
        started = time.perf_counter()
        subject = Subject.read(prepared.path, folder / "calibration.npz", Cache(None))
        analysis = Analysis(subject, DEFAULT_RECIPE, samples, cached_bytes=cached_mib << 20)
        once = time.perf_counter() - started
        costs = []
        for number, group in enumerate(analysis.groups):
            if number == len(analysis.groups) // 2:
                evaluations.append(evaluation())
            started = time.perf_counter()
            for outputs in (analysis.alone(group), analysis.without([group])):
                if outputs is not None:
                    worst_snr_db(outputs, analysis.float_outputs)
            costs.append(time.perf_counter() - started)
        evaluations += [evaluation(), evaluation()]
    one = statistics.median(evaluations)
    return {
        "model": f"depthwise{size}",
        "samples": count,
        "groups": len(costs),
        "evaluation_s": round(one, 3),
        "evaluations_s": [round(value, 3) for value in evaluations],
        "median_cost": round(statistics.median(costs) / one, 3),
        "mean_cost": round(statistics.mean(costs) / one, 3),
        "largest_cost": round(max(costs) / one, 3),
        "paid_once": round(once / one, 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[224], help="of the input image")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--cached-mib", type=int, default=1024)
    arguments = parser.parse_args()
    for size in arguments.sizes:
        print(json.dumps(measure(size, arguments.samples, arguments.cached_mib)), flush=True)


if __name__ == "__main__":
    main()
