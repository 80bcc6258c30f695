"""Does boardtune see the latency that is there? Ours against a bare ONNX Runtime loop, in alternating fresh processes.

Each pair measures the same model, inputs and thread count twice, in random order: a Python process of its own with
nothing but a ``session.run`` loop, and boardtune (``local``, or over a real OpenSSH server on loopback). The figure is
the median over pairs of (lowest block median boardtune saw / lowest block median of the bare loop): 0.97 to 1.03.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from device_agents.contract import Agent
from device_agents.ssh import ssh_agent
from harness.boards.agents import open_agent
from harness.boards.canary import canary_path
from harness.boards.registry import load_registry
from harness.boards.schema import Board
from harness.controller.measuring import MeasureJob, measure
from tests.ssh.openssh import missing_openssh, running_sshd

MODELS = {
    "fmnist_dscnn": Path(__file__).resolve().parents[1] / "examples" / "fashion_mnist" / "model.onnx",
    "canary conv-8m": canary_path(load_registry().get("local")),
}

BARE = """
import statistics, sys, time
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
tensor = session.get_inputs()[0]
shape = [size if isinstance(size, int) else 1 for size in tensor.shape]
feeds = [{tensor.name: x} for x in numpy.random.default_rng(0).standard_normal([8, *shape]).astype("float32")]
def block(seconds):
    samples, end, i = [], time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        feed = feeds[i % 8]
        start = time.perf_counter_ns()
        session.run(None, feed)
        samples.append(time.perf_counter_ns() - start)
        i += 1
    return statistics.median(samples)
block(1.0)
print(min(block(0.4) for _ in range(int(sys.argv[2]))))
"""


def bare(model: Path, blocks: int) -> float:
    """Lowest block median in nanoseconds."""
    command = [sys.executable, "-c", BARE, str(model), str(blocks)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)


def ours(model: Path, factory: Callable[[Board], Agent]) -> float:
    """Lowest block median in nanoseconds."""
    job = MeasureJob(model=model, boards=["local"], effort="quick", set_dim={})
    latency = measure(job, agent_factory=factory).results["local"].latency_ns
    if latency is None or latency.minimum_block_median is None:
        raise SystemExit("boardtune's measurement is invalid")
    return latency.minimum_block_median


@contextlib.contextmanager
def over_ssh() -> Iterator[Callable[[Board], Agent]]:
    with tempfile.TemporaryDirectory() as folder, running_sshd(Path(folder) / "sshd") as server:
        target = server.target(Path(folder) / "board")
        yield lambda board: ssh_agent(board.name, target, cache_bytes=board.cache_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=6, help="of the bare loop, 0.4 s each, as ours")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    order = random.Random(arguments.seed)
    with contextlib.ExitStack() as stack:
        ways: dict[str, Callable[[Board], Agent]] = {"local": open_agent}
        reason = missing_openssh()
        if reason is None:
            ways["loopback SSH"] = stack.enter_context(over_ssh())
        else:
            print(f"loopback SSH skipped: {reason}")
        for name, model in MODELS.items():
            for way, factory in ways.items():
                ratios = []
                for _ in range(arguments.pairs):
                    runs: dict[str, Callable[[], float]] = {
                        "ours": lambda m=model, f=factory: ours(m, f),
                        "bare": lambda m=model: bare(m, arguments.blocks),
                    }
                    found = {who: runs[who]() for who in order.sample(sorted(runs), 2)}
                    ratios.append(found["ours"] / found["bare"])
                low, high = min(ratios), max(ratios)
                middle = statistics.median(ratios)
                print(f"{name} on {way}: median ratio {middle:.3f} over {len(ratios)} pairs ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
