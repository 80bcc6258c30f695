"""How busy a search keeps a board elsewhere while quantizing takes as long as measuring: at least 85 % of the search.

The board sleeps while it "measures" and the quantizer while it "quantizes", so neither uses this machine; what is
left is what the search itself adds. Busy time is counted from the first measurement's start to the last one's end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.null_staff import NullQuantizers, NullSessions
from harness.controller.crew import Staff
from harness.controller.search import search
from harness.plan import load_plan

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "fashion_mnist"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one quantization, and of one measurement")
    arguments = parser.parse_args()
    plan = load_plan(
        EXAMPLE / "plan.yaml",
        {"boards": "local", "preset": "full", "trials": arguments.trials, "sampler": "random", "budget": None},
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "busy.log"
        staff = Staff(NullQuantizers(arguments.seconds), NullSessions(arguments.seconds, log))
        search(plan, Path(folder) / "run", staff=staff)
        spans = [tuple(map(float, line.split())) for line in log.read_text().splitlines()][: arguments.trials]
    busy = sum(end - start for start, end in spans)
    whole = spans[-1][1] - spans[0][0]
    print(f"board busy {busy:.1f} s of {whole:.1f} s over {len(spans)} trials: {busy / whole:.1%}")


if __name__ == "__main__":
    main()
