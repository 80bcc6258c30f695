"""Quantizes random small graphs and counts what must not happen: hangs, crashes, silent failures, needless refusals.

    python benchmarks/generated_graphs.py [--graphs 1000] [--seed 0] [--show]

Each graph goes through preparation and the killable worker, as a user's model does. What is accepted is checked again
here, against the model as it was given. A graph counts towards the share if ONNX Runtime runs it in float.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "quantize" / "graphs"))
from strategy import Generated, SeededChooser, generate

from harness.errors import ModelError
from harness.quantize.contract import Artifact, Cause, QuantizeJob, QuantizeLimits
from harness.quantize.prepare import prepare_model
from harness.quantize.worker import QuantizeWorker
from harness.recipes.facts import ModelFacts
from harness.recipes.recipe import Recipe

FLOOR_DB = 15.0
TIMEOUT_S = 60.0
_BASE = Recipe(activation="uint8", granularity="per_channel")
ALWAYS = (_BASE, _BASE.with_changes(activation="int8"), _BASE.with_changes(format="QOperator"))
"""Tried on every graph, to find what breaks; the rest until one is accepted."""


def further(facts: ModelFacts) -> Iterator[Recipe]:
    wide = _BASE.with_changes(activation="uint16")
    yield wide
    if facts.weighted:
        yield _BASE.with_changes(op_types=facts.weighted)
        yield wide.with_changes(op_types=facts.weighted)
    yield wide.with_changes(activation="int16", weight="int16")
    yield Recipe(scheme="dynamic", granularity="per_channel")
    # The only one for layers inside control flow.
    yield Recipe(scheme="weight_only", weight="int8")


@dataclass
class Tally:
    graphs: int = 0
    not_in_float: int = 0
    accepted: int = 0
    hangs: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)
    """Of refusals of single recipes."""


def session(model: bytes | str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(opened: ort.InferenceSession, graph: Generated) -> list[list[np.ndarray]]:
    """Outputs, per sample."""
    count = len(next(iter(graph.data.values())))
    feeds = ({name: np.asarray(array[row]) for name, array in graph.data.items()} for row in range(count))
    return [opened.run(None, feed) for feed in feeds]


def worst_ratio_db(reference: list[list[np.ndarray]], made: list[list[np.ndarray]]) -> float:
    """10·log10(signal ÷ noise) of the worst output; not a number if anything is not finite that was."""
    worst = 200.0
    for index in range(len(reference[0])):
        want = np.concatenate([sample[index].astype(np.float64).ravel() for sample in reference])
        got = np.concatenate([sample[index].astype(np.float64).ravel() for sample in made])
        if want.shape != got.shape:
            return float("nan")
        finite = np.isfinite(want)
        noise = np.sum(np.square(want[finite] - got[finite]))
        if noise:
            worst = min(worst, float(10 * np.log10(np.sum(np.square(want[finite])) / noise)))
    return worst


def tell(found: list[str], line: str) -> None:
    """At once: a long run may be broken off."""
    found.append(line)
    print(line, file=sys.stderr, flush=True)


def judge(seed: int, graph: Generated, folder: Path, worker: QuantizeWorker, tally: Tally) -> None:
    content = graph.model.SerializeToString()
    tally.graphs += 1
    try:
        reference = run(session(content), graph)
    except Exception:
        tally.not_in_float += 1
        return
    (folder / "m.onnx").write_bytes(content)
    np.savez(folder / "c.npz", **graph.data)
    try:
        facts = prepare_model(folder / "m.onnx", folder / "p.onnx", timeout_s=TIMEOUT_S).facts
    except ModelError as error:
        text = str(error)
        kind = tally.hangs if "no end" in text else tally.crashes if "died" in text else tally.refused
        tell(kind, f"{seed}: preparation: {text[:300]}")
        return
    reasons, accepted = [], False
    for recipe in (*ALWAYS, *further(facts)):
        if accepted and recipe not in ALWAYS:
            break
        out = folder / "q.onnx"
        limits = QuantizeLimits(timeout_s=TIMEOUT_S, min_snr_db=FLOOR_DB)
        result = worker.quantize(QuantizeJob(folder / "p.onnx", folder / "c.npz", recipe, out, limits))
        if isinstance(result, Artifact):
            accepted = True
            ratio = worst_ratio_db(reference, run(session(str(out)), graph))
            # The prepared model rounds otherwise than the given one: a decibel.
            if not ratio >= FLOOR_DB - 1.0:
                tell(tally.silent, f"{seed}: {recipe.label}: {ratio:.1f} dB, accepted with {result.snr_db:.1f} dB")
            continue
        tally.causes[f"{recipe.format} {recipe.label}: {result.cause}"] += 1
        reasons.append(f"    {recipe.label}: {result.cause}: {result.message[:260]}")
        if result.cause == Cause.TIMEOUT:
            tell(tally.hangs, f"{seed}: {recipe.label}: {result.message[:200]}")
        elif result.cause in (Cause.CRASHED, Cause.OUT_OF_MEMORY):
            tell(tally.crashes, f"{seed}: {recipe.label}: {result.message[:200]}")
        elif result.cause not in (Cause.LOW_SNR, Cause.NOTHING_QUANTIZED):
            # A refusal with a cause, but of a recipe that should be possible.
            tell(tally.odd, f"{seed}: {recipe.label}: {result.cause}: {result.message[:300]}")
    if accepted:
        tally.accepted += 1
    else:
        tell(tally.refused, f"{seed}:\n" + "\n".join(reasons))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--show", action="store_true", help="print every refused graph with its reasons")
    arguments = parser.parse_args()
    tally, started = Tally(), time.monotonic()
    with QuantizeWorker() as worker, tempfile.TemporaryDirectory(prefix="boardtune-") as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.graphs):
            judge(seed, generate(SeededChooser(seed)), Path(folder), worker, tally)
    runnable = tally.graphs - tally.not_in_float
    print(f"{tally.graphs} graphs from seed {arguments.seed} in {time.monotonic() - started:.0f} s")
    print(f"not run by ONNX Runtime in float: {tally.not_in_float}")
    print(f"accepted by some recipe with {FLOOR_DB:g} dB: {tally.accepted} of {runnable} "
          f"({100.0 * tally.accepted / max(runnable, 1):.1f} %)")  # fmt: skip
    for name in ("hangs", "crashes", "silent", "odd"):
        found = getattr(tally, name)
        print(f"{name}: {len(found)}")
        print("".join(f"  {line}\n" for line in found), end="")
    print("refusals of single recipes:")
    for cause, count in tally.causes.most_common():
        print(f"  {count:5d}  {cause}")
    if arguments.show:
        print("graphs refused by every recipe:\n" + "\n".join(tally.refused))
    return int(bool(tally.hangs or tally.crashes or tally.silent))


if __name__ == "__main__":
    sys.exit(main())
