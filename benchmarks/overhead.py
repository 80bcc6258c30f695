"""Wall time a search adds per trial: ours with a null quantizer and a null board, beside bare Ray Tune.

Both run 200 trials in one process, alternating; peer: a class Trainable that returns at once, reused actors, no
callbacks (the fastest documented settings). Figure: ours <= 0.05 s per trial with the random sampler, TPE + 0.02 s.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "fashion_mnist"


def bare_tune(trials: int) -> float:
    """Seconds per trial."""
    for name in ("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "TUNE_DISABLE_AUTO_CALLBACK_SYNCER"):
        os.environ[name] = "1"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    import ray
    from ray import tune

    class Trivial(tune.Trainable):
        def step(self) -> dict[str, object]:
            return {"x": 1.0, "done": True}

        def reset_config(self, new_config: object) -> bool:
            return True

        def save_checkpoint(self, folder: str) -> None: ...

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, configure_logging=False,
             logging_level=logging.ERROR, _node_ip_address="127.0.0.1")  # fmt: skip
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # else a line per trial, as nothing was logged
    with tempfile.TemporaryDirectory() as storage:
        started = time.monotonic()
        tune.run(Trivial, num_samples=trials, config={"n": tune.uniform(0, 1)}, max_concurrent_trials=3,
                 reuse_actors=True, verbose=0, callbacks=[], storage_path=storage, log_to_file=False)  # fmt: skip
        seconds = time.monotonic() - started
    ray.shutdown()
    return seconds / trials


def ours(trials: int, sampler: str) -> tuple[float, float, float]:
    """Seconds per trial over all, over the first fifty and over the last fifty, by the ledger's times of ending."""
    from benchmarks.support.null_staff import NullQuantizers, NullSessions
    from harness.controller.crew import Staff
    from harness.controller.search import search
    from harness.plan import load_plan

    plan = load_plan(
        EXAMPLE / "plan.yaml",
        {"boards": "local", "preset": "full", "trials": trials, "sampler": sampler, "budget": None, "seed": 1},
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        search(plan, run, staff=Staff(NullQuantizers(), NullSessions()))
        ends = []
        for line in (run / "ledger.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] in ("done", "failed", "pruned", "duplicate") and event.get("board") is None:
                ends.append(datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp())
    if len(ends) < trials:
        print(f"  only {len(ends)} of {trials} trials ended")
    return _pace(ends), _pace(ends[:50]), _pace(ends[-50:])


def _pace(ends: list[float]) -> float:
    return (ends[-1] - ends[0]) / max(1, len(ends) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    results: dict[str, list[float]] = {"bare": [], "random": [], "tpe": []}
    for _ in range(arguments.rounds):
        results["bare"].append(bare_tune(arguments.trials))
        for sampler in ("random", "tpe"):
            whole, first, last = ours(arguments.trials, sampler)
            results[sampler].append(whole)
            print(f"  {sampler}: {whole:.3f} s per trial, first fifty {first:.3f}, last fifty {last:.3f}")
        print(f"  bare Ray Tune: {results['bare'][-1]:.3f} s per trial")
    medians = {name: statistics.median(values) for name, values in results.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.3f} s per trial, {median / medians['bare']:.2f} x bare Ray Tune")


if __name__ == "__main__":
    main()
