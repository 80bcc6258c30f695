"""A thousand uploads over a line that spoils one byte in two thousand, to a board that resets at random.

    python benchmarks/serial_faults.py [--uploads 1000] [--json FILE]

The firmware's portable core, built for this computer; the line below it changes and loses bytes, a signal makes the
firmware panic at random moments. Each upload is of another of the golden ``.espdl`` models, to an emptied board; what
was uploaded is loaded and run, and its outputs are compared with those of a quiet line. An upload counts as *correct*
(right outputs), *failed* (a typed error, the board recovered) or *wrong*; one that does not end by its deadline
hangs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from device_agents.contract import AgentError, RuntimeOptions
from device_agents.emulated.chip.line import SerialLine
from device_agents.emulated.chip.spec import Line
from device_agents.firmware.build import build
from device_agents.serial.agent import SerialAgent
from device_agents.serial.codes import Type
from device_agents.serial.port import SerialTarget
from device_agents.transport import Deadline

GOLDEN = Path(__file__).parents[1] / "tests" / "espdl" / "golden"
DEADLINE_S = 60.0
Outputs = dict[str, np.ndarray]


@contextmanager
def board(folder: Path, spec: Line, seed: int) -> Iterator[tuple[SerialAgent, int]]:
    """(agent, process id of the firmware)."""
    binary = build("bt_host", folder / "firmware")
    process = subprocess.Popen([str(binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    inner = os.open(process.stdout.readline().decode().strip(), os.O_RDWR | os.O_NOCTTY)
    line = SerialLine(spec, inner, seed=seed, baud_to=inner)
    agent = SerialAgent("faults", SerialTarget(folder / "locks", port=line.port, max_baud=115200))
    try:
        yield agent, process.pid
    finally:
        agent.close()
        process.kill()
        process.communicate()
        line.unplug()


def try_once(agent: SerialAgent, path: Path) -> Outputs:
    """Deploys to an empty board, loads, runs."""
    agent._link.ask(Type.ERASE, b"\xff", Deadline(DEADLINE_S))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    agent.deploy(path, sha256, DEADLINE_S)
    report = agent.load(sha256, RuntimeOptions(), deadline_s=DEADLINE_S)
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((1, *shape[1:])).astype(np.float32) for name, _, shape in report.inputs}
    outputs = dict(agent.infer(report.session, inputs, deadline_s=DEADLINE_S).outputs)
    agent.unload(report.session)
    return outputs


def same(one: Outputs, two: Outputs) -> bool:
    return set(one) == set(two) and all(np.array_equal(one[name], two[name]) for name in one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uploads", type=int, default=1000)
    parser.add_argument("--per-byte", type=float, default=1 / 2000, help="probability that a byte is changed or lost")
    parser.add_argument("--resets", type=float, default=0.1, help="probability of a reset in an upload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    models = sorted(GOLDEN.glob("*-esp32s3-w8a8.espdl"))
    rng = random.Random(arguments.seed)
    counts: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    longest = 0.0
    with tempfile.TemporaryDirectory(prefix="serial-faults-") as name:
        folder = Path(name)
        with board(folder, Line(), 0) as (agent, _):
            agent.connect()
            expected = {path: try_once(agent, path) for path in models}
        half = arguments.per_byte / 2
        faults = [{"kind": kind, "per_byte": half} for kind in ("corrupt", "drop")]
        with board(folder, Line.model_validate({"faults": faults}), arguments.seed) as (agent, pid):
            agent.connect()
            for index in range(arguments.uploads):
                path = models[rng.randrange(len(models))]
                began = time.monotonic()
                timer = threading.Timer(rng.random() * 0.5, os.kill, (pid, signal.SIGSEGV))
                if rng.random() < arguments.resets:
                    timer.start()
                try:
                    counts["correct" if same(try_once(agent, path), expected[path]) else "wrong"] += 1
                except AgentError as error:
                    counts["failed"] += 1
                    errors[type(error).__name__] += 1
                    agent.recover(DEADLINE_S)
                finally:
                    timer.cancel()
                spent = time.monotonic() - began
                longest = max(longest, spent)
                counts["hung"] += spent > 4 * DEADLINE_S
                if (index + 1) % 50 == 0:
                    print(f"{index + 1}: {dict(counts)}, errors {dict(errors)}, longest {longest:.1f} s", flush=True)
            resent = agent._link.resent
    result = {"uploads": arguments.uploads, **counts, "errors": dict(errors), "longest_s": round(longest, 1)}
    print(json.dumps({**result, "sent_again": resent}))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
