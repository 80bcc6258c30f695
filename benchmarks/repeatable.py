"""A seeded search on emulated boards, twice: are the two candidates.json byte for byte the same?

Nothing is left out of the comparison: candidates.json holds no times of day.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

PLAN = Path(__file__).resolve().parents[1] / "examples" / "fashion_mnist" / "plan.yaml"


def digest_of_a_run(folder: Path, arguments: argparse.Namespace) -> str:
    command = [
        sys.executable, "-m", "harness", "search", "--plan", str(PLAN), "--run-dir", str(folder),
        "--boards", "rpi5-emulated,ryzen-ai-emulated", "--preset", arguments.preset, "--trials", str(arguments.trials),
        "--seed", str(arguments.seed), "--json",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=900)
    return hashlib.sha256((folder / "candidates.json").read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="standard")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        digests = [digest_of_a_run(Path(folder) / str(turn), arguments) for turn in (1, 2)]
    for turn, digest in enumerate(digests, 1):
        print(f"run {turn}: candidates.json has sha256 {digest}")
    print("byte-identical" if len(set(digests)) == 1 else "DIFFERENT")
    return len(set(digests)) - 1


if __name__ == "__main__":
    sys.exit(main())
