"""`make demo` in a fresh clone with an empty package cache: under 6 minutes on 2 cores, the search itself under 2.

Clones the committed state of this repository, so commit first. The search is timed by its ledger, first line to last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def seconds_of_search(ledger: Path) -> float:
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    first, last = (datetime.fromisoformat(line["time"].replace("Z", "+00:00")) for line in (lines[0], lines[-1]))
    return (last - first).total_seconds()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep-cache", action="store_true", help="use the package cache there is")
    arguments = parser.parse_args()
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    if not arguments.keep_cache:
        environment["PIP_NO_CACHE_DIR"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "boardtune"
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
        started = time.monotonic()
        made = subprocess.run(["make", "demo"], check=False, cwd=clone, env=environment, timeout=1200)
        seconds = time.monotonic() - started
        ledgers = sorted(clone.glob("runs/*/ledger.jsonl"))
        search = f"{seconds_of_search(ledgers[-1]):.0f} s" if ledgers else "none"
    print(f"make demo: {seconds:.0f} s in all, search {search}, exit code {made.returncode}")
    return made.returncode


if __name__ == "__main__":
    sys.exit(main())
