"""Published latencies against what the cost models of the emulated boards say: ``python benchmarks/cost_model_fit.py``.

Exit status 1 if an error is larger than its board file allows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from device_agents.emulated.cost_model import figures
from device_agents.emulated.spec import EmulatedSpec

BOARDS = Path(__file__).resolve().parents[1] / "boards"


def main() -> int:
    """Prints one line per figure."""
    good = True
    for path in sorted(BOARDS.glob("*-emulated.yaml")):
        spec = EmulatedSpec.model_validate(yaml.safe_load(path.read_text())["emulated"])
        print(f"{path.stem}: cost model {spec.cost_model.name}")
        for check in figures.check(spec.cost_model):
            figure = check.figure
            good = good and check.within
            print(
                f"  {figure.network:<14} {figure.precision:<8} {figure.providers[0]:<25} {figure.threads:>2} threads"
                f"  published {figure.latency_ms:>8.2f} ms  model {check.model_ms:>8.2f} ms"
                f"  error {check.error:+7.1%} (allowed {figure.max_error:.0%})"
                f"  {figure.runtime}{'' if figure.fitted else ', not fitted to'}"
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
