"""Accuracy of the best recipe of our search beside AMD Quark's Auto-Search and ESP-PPQ's AutoQuant, 8-bit weights and
activations.

Every side gets the same prepared float model, calibration samples and labelled samples to search on, and the same time;
the best model that each has found by then is judged once, on samples that no side has seen, by one program. Against a
peer stand those of our recipes that hold numbers as it does:

- Quark's ``A8W8_SEARCH``: one scale per tensor (its space has no other). Two stages: a grid of calibrations, then
  AdaRound and AdaQuant, on processors instead of the graphics card it names;
- ESP-PPQ's ``fast`` mode, its quickest strategies first: power-of-two scales, one per tensor (esp32s3) or one per
  channel of weights (esp32p4), judged by the executor that simulates the target. 16-bit layers are off, as it comes;
- ours without restriction: 8 bits, scales as the recipe likes.

Ours is preset ``standard`` and its sampler, with the choices taken away that other bit widths would need; nothing stays
in float. All sides one after the other, with both processors. The figure: right answers of ours at least those of each
peer, by the paired difference and its 95 % interval.

    python -m venv quark && quark/bin/pip install torch==2.13.0 amd-quark onnxruntime optuna
    python3.12 -m venv ppq && ppq/bin/pip install torch==2.13.0 esp-ppq onnxruntime
    python benchmarks/peer_searches.py --quark quark/bin/python --esp-ppq ppq/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support import vendor_searches
from benchmarks.support.vendor_searches import labelled, predictions_of, share_right

if TYPE_CHECKING:
    from harness.recipes.recipe import Recipe
    from harness.recipes.space import Space

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CALIBRATED_ON = 128
SEARCHED_ON = 1000
GRACE_S = 300
"""For the trial that is under way when the time is up, and for judging."""


@dataclass(frozen=True)
class Side:
    ours: str
    """Name of our search under the same restriction."""
    vendor: str
    """``quark``, or ESP-PPQ's target."""


SIDES: Mapping[str, Side] = {
    "quark A8W8_SEARCH": Side("ours, per tensor", "quark"),
    "esp-ppq esp32s3": Side("ours, per tensor, power of two", "esp32s3"),
    "esp-ppq esp32p4": Side("ours, per channel, power of two", "esp32p4"),
}
OURS: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "ours, per tensor": (("per_tensor",), False),
    "ours, per tensor, power of two": (("per_tensor",), True),
    "ours, per channel, power of two": (("per_channel",), True),
    "ours": (("per_channel", "per_tensor"), False),
}
"""Granularities of weights, and whether scales are powers of two."""


# -- ours ---------------------------------------------------------------------------------------------------------


class Restricted:
    """Answers as another source does, from fewer choices."""

    def __init__(self, source: Any, allowed: Mapping[str, Sequence[str]]) -> None:
        self._source, self._allowed = source, allowed
        self.integer, self.floating = source.integer, source.floating

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        kept = [choice for choice in choices if choice in self._allowed.get(name, choices)]
        return str(self._source.categorical(name, kept))


def eight_bit_space(facts: Any, granularities: Sequence[str], power_of_two: bool) -> Space:
    from harness.recipes.presets import preset
    from harness.recipes.recipe import FLOAT32, Recipe
    from harness.recipes.space import Space

    allowed = {
        "scheme": ["static"],
        "types": ["s8s8"] if power_of_two else ["u8s8", "s8s8"],
        "format": ["QDQ"],
        "operators": ["all"],
        "granularity": list(granularities),
        "activation_symmetric": ["yes"] if power_of_two else ["no", "yes"],
    }
    standard = preset("standard", facts)
    scales: dict[str, Any] = {"scale": "power_of_two"} if power_of_two else {}

    def build(source: Any) -> Recipe:
        return standard.suggest(Restricted(source, allowed)).with_changes(**scales)

    first = Recipe.from_dict(
        {
            "scheme": "static", "activation": "int8", "weight": "int8", "activation_symmetric": True,
            "granularity": granularities[0], "calibration": {"method": "mse"}, **scales,
        }
    )  # fmt: skip
    return Space("a8w8", None, build, seeds=(FLOAT32, first))


def ours(model: Any, folder: Path, out: Path, seconds: float, name: str) -> dict[str, Any]:
    """Our proposer and quantizer, as a search has them, judged on the host as the peers are."""
    from harness.quantize.contract import Artifact, QuantizeJob, QuantizeLimits
    from harness.quantize.worker import QuantizeWorker
    from harness.search.make import make_proposer
    from harness.search.proposer import Outcome

    inputs, labels = labelled(folder / "search.npz")
    proposer = make_proposer(eight_bit_space(model.facts, *OURS[name]), seed=0)
    best = vendor_searches.Best(seconds, out)
    ended, number, label = "finished", 0, ""
    limits = QuantizeLimits(min_snr_db=-200.0)
    with QuantizeWorker() as worker:
        while (proposal := proposer.ask(number)) is not None:
            number += 1
            if proposal.recipe.is_float32:
                proposer.tell(proposal.number, Outcome("done", (-1.0,)))
                continue
            made = out / f"{proposal.number}.onnx"
            extra = {"cache": str(out / "cache")}
            result = worker.quantize(
                QuantizeJob(model.path, folder / "calib.npz", proposal.recipe, made, limits, extra)
            )
            score = share_right(predictions_of(made, inputs), labels) if isinstance(result, Artifact) else 0.0
            before = best.score
            try:
                best.tell(score, lambda made=made: made)  # type: ignore[misc]
            except vendor_searches.TimeUp:
                ended = "time was up"
            label = proposal.recipe.label if best.score > before else label
            if ended != "finished":
                break
            proposer.tell(proposal.number, Outcome("done", (-score,)))
    if best.kept is not None:
        np.save(out / "predictions.npy", predictions_of(best.kept, labelled(folder / "final.npz")[0]))
    return {**best.record(ended), "recipe": label}


# -- all sides ----------------------------------------------------------------------------------------------------


def prepared(example: str, folder: Path, test_set: Path | None) -> Any:
    """Writes calib.npz, search.npz and final.npz, model-ready, into ``folder``; the prepared model."""
    from harness.controller.preparation import read_preprocess
    from harness.data.source import open_dataset
    from harness.data.split import split_rows
    from harness.plan import load_plan
    from harness.quantize.prepare import prepare_model

    plan = load_plan(EXAMPLES / example / "plan.yaml", {})
    model = prepare_model(plan.model, folder / "float.onnx", dict(plan.set_dim))
    preprocess = read_preprocess(plan.preprocess)
    calibration = open_dataset(plan.calib, model.inputs, preprocess)
    if len(calibration) > CALIBRATED_ON:
        some, _ = split_rows(calibration.labels, len(calibration), 0, CALIBRATED_ON / len(calibration))
        calibration = calibration.rows(some)
    calibration.save_npz(folder / "calib.npz", labels=False)
    evaluation = open_dataset(str(test_set) if test_set else str(plan.eval), model.inputs, preprocess)
    parts = split_rows(evaluation.labels, len(evaluation), 0, min(0.5, SEARCHED_ON / len(evaluation)))
    for name, rows in zip(("search", "final"), parts, strict=True):
        part = evaluation.rows(rows)
        np.savez(folder / f"{name}.npz", labels=np.asarray(part.labels), **dict(part.inputs))
    return model


def vendor(side: Side, python: str, model: Path, folder: Path, out: Path, seconds: float) -> dict[str, Any]:
    command = [str(Path(python).absolute()), str(Path(__file__).resolve()), "--side", side.vendor]
    command += ["--seconds", str(seconds), str(model), str(folder), str(out)]
    said = ""
    try:
        # Quark leaves tables in the working folder.
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=out, timeout=seconds + GRACE_S)
        said = done.stderr
    except subprocess.TimeoutExpired:
        said = f"no trial has ended in {seconds + GRACE_S:.0f} s"
    if not (out / "result.json").exists():
        return {"ended": f"failed: {said[-1000:]}", "trials": 0, "seconds": 0.0, "searched": 0.0}
    found = dict(json.loads((out / "result.json").read_text()))
    if (out / "best.onnx").exists():
        np.save(out / "predictions.npy", predictions_of(out / "best.onnx", labelled(folder / "final.npz")[0]))
    return found


def compared(right: Any, other: Any) -> str:
    """Difference of two shares of right answers on the same samples, in points."""
    from harness.measure.paired import paired_proportion_interval

    low, high = paired_proportion_interval(int(np.sum(right & ~other)), int(np.sum(~right & other)), len(right))
    return f"{100 * (right.mean() - other.mean()):+.2f} points ({100 * low:+.2f} to {100 * high:+.2f})"


def run(example: str, peers: Mapping[str, str], seconds: float, test_set: Path | None) -> None:
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        model = prepared(example, folder, test_set)
        inputs, labels = labelled(folder / "final.npz")
        right = {"float": predictions_of(model.path, inputs) == labels}
        print(f"{example}: float {100 * right['float'].mean():.2f} % of {len(labels)} held-out samples", flush=True)

        def report(name: str, search: Callable[[Path], dict[str, Any]]) -> None:
            out = folder / name.replace(" ", "_").replace(",", "")
            out.mkdir()
            started = time.monotonic()
            found = search(out)
            line = f"{example}: {name}: {found['trials']} trials in {found['seconds']:.0f} s, {found['ended']}"
            if not (out / "predictions.npy").exists():
                print(f"{line}; nothing was found", flush=True)
                return
            right[name] = np.load(out / "predictions.npy") == labels
            line += f"; best {100 * found['searched']:.2f} % searched on, {100 * right[name].mean():.2f} % held out"
            line += f", against float {compared(right[name], right['float'])}"
            line += f"; {found['recipe']}" if found.get("recipe") else ""
            print(f"{line} [{time.monotonic() - started:.0f} s with judging]", flush=True)

        wanted = {SIDES[name].ours for name in peers} | {"ours"}
        for name, python in peers.items():
            report(name, lambda out, n=name, p=python: vendor(SIDES[n], p, model.path, folder, out, seconds))  # type: ignore[misc]
        for name in sorted(wanted):
            report(name, lambda out, n=name: ours(model, folder, out, seconds, n))  # type: ignore[misc]
        for peer in peers:
            for own in (SIDES[peer].ours, "ours"):
                if peer in right and own in right:
                    print(f"{example}: {own} minus {peer}: {compared(right[own], right[peer])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quark", help="interpreter that has amd-quark and optuna")
    parser.add_argument("--esp-ppq", help="interpreter that has esp-ppq")
    parser.add_argument("--examples", nargs="+", default=["fashion_mnist"], help="with labels of classes, and built")
    parser.add_argument("--test-set", type=Path, help=".npz of labelled samples, instead of the example's eval.npz")
    parser.add_argument(
        "--peers", nargs="+", choices=SIDES, default=list(SIDES), help="[all whose interpreter is named]"
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="for each search [%(default)s]")
    parser.add_argument("--side", choices=[side.vendor for side in SIDES.values()], help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        model, folder, out = arguments.files
        search = vendor_searches.quark if arguments.side == "quark" else vendor_searches.esp_ppq
        targets = () if arguments.side == "quark" else (arguments.side,)
        search(model, folder, out, arguments.seconds, *targets)
        return
    interpreters = {"quark": arguments.quark, "esp-ppq": arguments.esp_ppq}
    peers = {name: path for name in arguments.peers if (path := interpreters[name.split()[0]])}
    if not peers:
        print("skipped: no peer's interpreter was named; see --help for how to make one")
        return
    for example in arguments.examples:
        run(example, peers, arguments.seconds, arguments.test_set)


if __name__ == "__main__":
    main()
