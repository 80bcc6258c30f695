"""Is every node accounted for on the vendors' own stacks? Networks in float and in int8, without a search.

    python benchmarks/placement.py --qnn PYTHON --openvino PYTHON [--only NAME …] [--json FILE]

PYTHON are interpreters of environments with onnxruntime-qnn (its simulator of the Hexagon processor) and with
onnxruntime-openvino or the plugin. A model counts if each node that the onnx package reads from the artifact is in the
receipt exactly once, under a provider, fused or folded; if ONNX Runtime's list of assignments and its profile agree;
and if every node left to the CPU has a reason. Exit code 1 unless all do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx

from benchmarks.support.espdl_networks import NETWORKS, TINY
from device_agents.contract import AgentError
from device_agents.runner.fallbacks import UNEXPLAINED
from harness.boards.schema import Board
from harness.controller.deployable import deployable
from harness.controller.placing import Placed, place_on
from harness.errors import ModelError
from harness.quantize.contract import Artifact, QuantizeJob, QuantizeLimits
from harness.quantize.prepare import prepare_model
from harness.quantize.worker import QuantizeWorker
from harness.recipes.recipe import Recipe

FASHION = Path(__file__).resolve().parents[1] / "examples" / "fashion_mnist" / "model.onnx"
RECIPES = {
    "u8": Recipe(activation="uint8", granularity="per_channel"),
    "u16": Recipe(activation="uint16", granularity="per_tensor"),
}
PROVIDERS: Mapping[str, dict[str, Any]] = {
    "qnn": {"name": "QNNExecutionProvider", "options": {"backend_type": "htp"}},
    "openvino": {"name": "OpenVINOExecutionProvider", "options": {"device_type": "CPU"}},
}
SAMPLES = 4


def stack(name: str, python: str, folder: Path) -> Board:
    return Board.model_validate(
        {
            "apiVersion": "boardtune/v1",
            "kind": "Board",
            "metadata": {"name": name},
            "transport": {"kind": "local", "python": python, "workdir": str(folder / name)},
            "runtime": {"providers": [PROVIDERS[name], "CPUExecutionProvider"]},
            "noise": "shared",
        }
    )


def artifacts(folder: Path, only: list[str]) -> Iterator[tuple[str, Path]]:
    """Float models, and what recipes make of them where it is accepted."""
    networks = {name: build().SerializeToString() for name, build in {**NETWORKS, **TINY}.items()}
    networks["fashion_mnist"] = FASHION.read_bytes()
    with QuantizeWorker() as worker:
        for name, content in networks.items():
            if only and name not in only:
                continue
            given, prepared = folder / f"{name}.onnx", folder / f"{name}.prepared.onnx"
            given.write_bytes(content)
            yield f"{name} float", given
            if name in TINY:
                yield f"{name} unnamed", nameless(given, folder / f"{name}.unnamed.onnx")
            prepare_model(given, prepared, timeout_s=120.0)
            random = np.random.default_rng(0)
            feeds = {
                tensor.name: random.standard_normal(
                    [SAMPLES, *[d.dim_value for d in tensor.type.tensor_type.shape.dim][1:]]
                ).astype(np.float32)
                for tensor in onnx.load(prepared).graph.input
            }
            np.savez(folder / "samples.npz", **feeds)
            for label, recipe in RECIPES.items():
                out = folder / f"{name}.{label}.onnx"
                limits = QuantizeLimits(timeout_s=120.0, min_snr_db=0.0)
                result = worker.quantize(QuantizeJob(prepared, folder / "samples.npz", recipe, out, limits))
                if isinstance(result, Artifact):
                    yield f"{name} {label}", out
                    if name in TINY and label == "u8":
                        yield f"{name} {label} unnamed", nameless(out, folder / f"{name}.{label}.unnamed.onnx")
                else:
                    print(f"{name} {label}: not made: {result.message[:120]}", file=sys.stderr)


def nameless(source: Path, target: Path) -> Path:
    """The same without names of nodes, as some exporters leave them out."""
    model = onnx.load(source)
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, target)
    return target


def problems(path: Path, placed: Placed) -> list[str]:
    placement = placed.placement
    told = Counter(name for names in placement.nodes.values() for name in names)
    told.update(placement.fused)
    told.update(placement.folded)
    found = []
    nodes = onnx.load(path).graph.node
    if sum(told.values()) != len(nodes) or max(told.values()) > 1:
        found.append(f"{len(nodes)} nodes, {sum(told.values())} told of")
    missing = [node.name for node in nodes if node.name and node.name not in told]
    if missing:
        found.append(f"missing: {missing[:5]}")
    busy = [provider for provider, share in placement.time_share.items() if share > 0]
    if any(provider not in placement.nodes for provider in busy):
        found.append(f"ran kernels without nodes: {busy}")
    if placement.agrees is not True:
        found.append(f"agrees: {placement.agrees} by {placement.evidence}")
    on_cpu = placement.nodes.get("CPUExecutionProvider", ())
    silent = [name for name in on_cpu if placement.fallback_reasons.get(name, UNEXPLAINED) == UNEXPLAINED]
    if silent:
        found.append(f"{len(silent)} fallbacks without a reason: {placed.counts(silent)} {silent[:3]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--qnn", help="interpreter with onnxruntime-qnn")
    parser.add_argument("--openvino", help="interpreter with onnxruntime-openvino or the plugin")
    parser.add_argument("--only", nargs="*", default=[], help="names of networks")
    parser.add_argument("--json", type=Path, help="where to write the receipts")
    arguments = parser.parse_args()
    pythons = {name: python for name in PROVIDERS if (python := getattr(arguments, name))}
    if not pythons:
        parser.error("give --qnn or --openvino")
    whole: Counter[str] = Counter()
    loaded: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    receipts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="boardtune-") as name:
        folder = Path(name)
        boards = {name: stack(name, python, folder) for name, python in pythons.items()}
        for label, path in artifacts(folder, arguments.only):
            try:
                ready = deployable(path, folder, {}, 1)
            except ModelError as error:
                print(f"{label}: {error}", file=sys.stderr)
                continue
            for board in boards.values():
                try:
                    placed = place_on(board, ready)
                except AgentError as error:
                    # There is nothing to account for where the stack itself does not take the model.
                    refused[board.name] += 1
                    print(f"{board.name:9} {label:24} {type(error).__name__}: {error.message[:200]}", flush=True)
                    continue
                loaded[board.name] += 1
                found = problems(ready.path, placed)
                whole[board.name] += not found
                receipts[f"{board.name} {label}"] = {**placed.to_json(), "problems": found}
                line = line_of(placed)
                print(f"{board.name:9} {label:24} {line} {'; '.join(found) or 'ok'}", flush=True)
    for board_name, count in loaded.items():
        print(
            f"{board_name}: {whole[board_name]} of {count} models with every node accounted for and explained; "
            f"{refused[board_name]} more refused by the stack"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(receipts, indent=1))
    return int(any(whole[name] < count for name, count in loaded.items()))


def line_of(placed: Placed) -> str:
    placement = placed.placement
    on_cpu = len(placement.nodes.get("CPUExecutionProvider", ()))
    away = sum(len(names) for names in placement.nodes.values()) - on_cpu
    return (
        f"{len(placed.op_types):4} nodes: {away:4} accelerator, {on_cpu:3} CPU, {len(placement.fused):3} fused, "
        f"{len(placement.folded):3} folded;"
    )


if __name__ == "__main__":
    sys.exit(main())
