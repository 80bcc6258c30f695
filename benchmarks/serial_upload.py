"""How much of a serial line's rate uploads reach, and what the dictionary of the resident model saves.

    python benchmarks/serial_upload.py [--baud 921600] [--size 1000000] [--json FILE]

The firmware's portable core, built for this computer, behind an emulated line that keeps the rate and adds a latency
each way. The time is that of the whole ``deploy``: asking for it, announcing it, all chunks, the board's own SHA-256.
Raw bytes are random, so nothing packs. The next candidate is the same model with other exponents and biases: with the
exporter at hand, real pairs are to be preferred (`--pair A B`, repeated).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from device_agents.emulated.chip.line import SerialLine
from device_agents.emulated.chip.spec import Line
from device_agents.firmware.build import build
from device_agents.serial.agent import SerialAgent
from device_agents.serial.port import SerialTarget

BITS_PER_BYTE = 10
LATENCIES_MS = (2.0, 16.0)
"""One way: a UART bridge with its latency timer lowered, and FTDI's default."""


@contextmanager
def board(folder: Path, spec: Line, *, pack: bool) -> Iterator[SerialAgent]:
    """The firmware on a pty, behind the line."""
    binary = build("bt_host", folder / "firmware")
    process = subprocess.Popen([str(binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    inner = os.open(process.stdout.readline().decode().strip(), os.O_RDWR | os.O_NOCTTY)
    line = SerialLine(spec, inner, baud_to=inner)
    agent = SerialAgent("upload", SerialTarget(folder / "locks", port=line.port), pack=pack)
    try:
        agent.connect()
        yield agent
    finally:
        agent.close()
        process.kill()
        process.communicate()
        line.unplug()


def upload(agent: SerialAgent, path: Path) -> tuple[float, int]:
    """(seconds, bytes sent)."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    began = time.monotonic()
    report = agent.deploy(path, sha256)
    return time.monotonic() - began, report.sent_bytes


def made_pairs(folder: Path, size: int, count: int) -> list[tuple[Path, Path]]:
    """Candidates of one model whose weights are the same: one byte in 500, in groups, is another."""
    pairs = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        weights = np.clip(rng.laplace(0, 12, size), -128, 127).astype(np.int8)
        other = weights.copy()
        for at in rng.integers(0, size - 16, size // 8000):
            other[at : at + 16] = rng.integers(-128, 127, 16)
        paths = folder / f"{seed}-a", folder / f"{seed}-b"
        for path, values in zip(paths, (weights, other), strict=True):
            path.write_bytes(values.tobytes())
        pairs.append(paths)
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baud", type=int, default=921_600)
    parser.add_argument("--size", type=int, default=1_000_000, help="bytes of the raw upload")
    parser.add_argument("--pairs", type=int, default=3, help="made-up pairs of candidates")
    parser.add_argument("--pair", nargs=2, type=Path, action="append", default=[], metavar=("A", "B"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, object] = {"baud": arguments.baud, "size_bytes": arguments.size}
    with tempfile.TemporaryDirectory(prefix="serial-upload-") as name:
        folder = Path(name)
        raw = folder / "raw"
        raw.write_bytes(np.random.default_rng(0).bytes(arguments.size))
        for latency in LATENCIES_MS:
            with board(folder, Line(paced=True, latency_ms=latency), pack=False) as agent:
                seconds, _ = upload(agent, raw)
            share = arguments.size * BITS_PER_BYTE / arguments.baud / seconds
            results[f"raw share of the line rate, {latency:g} ms"] = round(share, 4)
            print(f"latency {latency:4g} ms: {arguments.size} bytes in {seconds:.2f} s, {share:.1%} of the line rate")
        ratios = []
        pairs = arguments.pair or made_pairs(folder, arguments.size // 4, arguments.pairs)
        for first, second in pairs:
            with board(folder, Line(paced=True, latency_ms=LATENCIES_MS[0]), pack=True) as agent:
                upload(agent, first)
                seconds, sent = upload(agent, second)
            alone = second.stat().st_size * BITS_PER_BYTE / arguments.baud
            ratios.append(seconds / alone)
            print(f"{second.name}: {sent} of {second.stat().st_size} bytes, {ratios[-1]:.1%} of the raw time")
        results["dictionary, share of the raw time, median"] = round(statistics.median(ratios), 4)
        print(f"dictionary, median: {statistics.median(ratios):.1%} of the raw time")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
