"""Our interpreter of ``.espdl`` models, and the portable C engine, against ESP-PPQ's own executor.

Eight networks in the shapes of Espressif's published ones (:mod:`benchmarks.support.espdl_networks`) are quantized
and exported by ESP-PPQ for three targets and three types; ESP-PPQ's ``TorchExecutor`` runs them on samples, and what
it computed for every tensor is compared with the integers of the interpreter (``reference`` semantics). With 8 bits
from input to output. With 16 bits node by node, on ESP-PPQ's own inputs of each node: its executor adds in float32,
which does not hold sums of 16-bit products, and one unit in one layer is more in the next. Float tensors (Softmax)
are compared to 1e-6.

The C engine, compiled with the system's compiler, must give the bytes of the interpreter in both semantics.

Exports are kept in ``--cache`` and made when missing, by the interpreter that has ESP-PPQ::

    python benchmarks/espdl_parity.py --esp-ppq ppq/bin/python --cache exports

Figure: 0 differing int8 values; no int16 value off by more than one; 0 differing bytes of the engine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from device_agents.emulated.espdl.arithmetic import quantized
from device_agents.emulated.espdl.interpreter import Interpreter
from device_agents.emulated.espdl.model import DTYPES, Model
from device_agents.emulated.espdl.reader import read_model
from device_agents.emulated.espdl.target import Semantics, target_named

NETWORKS = ("plain_cnn", "mobilenet_v2", "yolo", "transformer", "audio", "mobilenet_v3", "ocr", "assorted")
TARGETS = {"esp32s3": "s3", "esp32p4": "p4", "esp32": "c"}
TYPES = ("w8a8", "w16a16", "w8a16")
ENGINE = Path(__file__).resolve().parents[1] / "device_agents" / "firmware" / "engine"
FLOAT_TOLERANCE = 1e-6


@dataclass
class Counted:
    network: str
    target: str
    type: str
    nodes: int = 0
    tensors: int = 0
    values: int = 0
    outputs: int = 0
    differing: int = 0
    """Integers that are not equal."""
    differing_outputs: int = 0
    past_one: int = 0
    """Integers off by more than one unit, and floats by more than the tolerance."""
    engine_bytes: int = 0
    engine_differing: int = 0


def export(python: str, cache: Path, samples: int, cases: list[tuple[str, str, str]]) -> None:
    missing = [":".join(case) for case in cases if not (cache / f"{'-'.join(case)}.npz").exists()]
    if missing:
        script = Path(__file__).parent / "support" / "espdl_export.py"
        with (cache / "export.log").open("a") as log:
            subprocess.run(
                [python, str(script), str(cache), str(samples), *missing], check=True, stdout=log, stderr=log
            )


def integers(model: Model, target: str, name: str, real: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the executor's float stands for; floats as they are.

    Where ESP-PPQ merges two quantizers (Conv and the Clip behind it) the value between is no multiple of the scale,
    and is rounded as its exporter does for test values: in the target's way."""
    value = model.values[name]
    dtype = DTYPES[value.dtype]
    if dtype.kind == "f":
        return real
    return quantized(real.astype(np.float64), value.exponent, dtype.itemsize * 8, target_named(target)).astype(dtype)


def compare(
    counted: Counted, model: Model, name: str, made: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]
) -> None:
    gap = np.abs(made.astype(np.float64) - expected.astype(np.float64))
    counted.values += gap.size
    output = any(value.name == name for value in model.outputs)
    if made.dtype.kind == "f":
        counted.past_one += int(np.count_nonzero(gap > FLOAT_TOLERANCE))
        return
    differing = int(np.count_nonzero(gap))
    counted.differing += differing
    counted.past_one += int(np.count_nonzero(gap > 1))
    if output:
        counted.outputs += gap.size
        counted.differing_outputs += differing


def whole(counted: Counted, model: Model, arrays: dict[str, np.ndarray[Any, Any]], samples: int) -> None:
    """From input to output, every tensor on the way."""
    stacked = {
        v.name: np.stack([integers(model, counted.target, v.name, arrays[f"{v.name}#{i}"]) for i in range(samples)])
        for v in model.inputs
    }
    for name, made in Interpreter(model, counted.target).tensors(stacked):
        if f"{name}#0" not in arrays:
            continue
        counted.tensors += 1
        for index in range(samples):
            compare(counted, model, name, made[index], integers(model, counted.target, name, arrays[f"{name}#{index}"]))


def node_by_node(counted: Counted, model: Model, arrays: dict[str, np.ndarray[Any, Any]], samples: int) -> None:
    """Each node on ESP-PPQ's values of its inputs. Behind what it inserted on export, on ours."""
    known = dict(arrays)
    for node in model.nodes:
        takes = [name for name in dict.fromkeys(node.inputs) if name and name not in model.constants]
        alone = replace(
            model,
            nodes=(node,),
            inputs=tuple(replace(model.values[name], shape=known[f"{name}#0"].shape) for name in takes),
            outputs=tuple(model.values[name] for name in node.outputs),
        )
        feed = {
            name: np.stack([_as_integers(model, counted.target, name, known[f"{name}#{i}"]) for i in range(samples)])
            for name in takes
        }
        for name, made in Interpreter(alone, counted.target).run(feed).items():
            judged = f"{name}#0" in arrays
            counted.tensors += judged
            for index in range(samples):
                key = f"{name}#{index}"
                if judged:
                    compare(counted, model, name, made[index], integers(model, counted.target, name, arrays[key]))
                else:
                    known[key] = made[index]


def _as_integers(model: Model, target: str, name: str, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return value if value.dtype.kind == "i" else integers(model, target, name, value)


def engine(program: Path, folder: Path, path: Path, model: Model, target: str, samples: int) -> tuple[int, int]:
    """Bytes of outputs compared, and how many differ."""
    random = np.random.default_rng(5)
    feed = {}
    for value in model.inputs:
        info = np.iinfo(DTYPES[value.dtype])
        feed[value.name] = random.integers(info.min, info.max, (samples, *value.shape), endpoint=True).astype(
            DTYPES[value.dtype]
        )
    inputs, outputs = folder / "inputs", folder / "outputs"
    inputs.write_bytes(b"".join(feed[v.name][i].tobytes() for i in range(samples) for v in model.inputs))
    compared = differing = 0
    for semantics in Semantics:
        command = [str(program), str(path), TARGETS[target], semantics.value, str(inputs), str(outputs)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
        made = Interpreter(model, target, semantics).run(feed)
        expected = b"".join(made[v.name][i].tobytes() for i in range(samples) for v in model.outputs)
        got = outputs.read_bytes()
        compared += len(expected)
        both = (
            np.frombuffer(expected, np.uint8),
            np.frombuffer(got.ljust(len(expected), b"\0")[: len(expected)], np.uint8),
        )
        differing += int(np.count_nonzero(both[0] != both[1])) + abs(len(got) - len(expected))
    return compared, differing


def compiled(folder: Path) -> Path | None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    sources = [str(path) for path in sorted(ENGINE.glob("*.c"))]
    program = folder / "run_engine"
    subprocess.run(
        [compiler, "-std=c99", "-O2", "-o", str(program), *sources, str(ENGINE / "tools" / "run_engine.c")], check=True
    )
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--esp-ppq", required=True, help="interpreter of the environment that has esp-ppq")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the exports")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--network", action="append", choices=NETWORKS)
    parser.add_argument("--type", action="append", choices=TYPES)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    cases = [(n, t, k) for k in arguments.type or TYPES for n in arguments.network or NETWORKS for t in TARGETS]
    export(arguments.esp_ppq, arguments.cache, arguments.samples, cases)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(folder))
        heads = ("nodes", "tensors", "values", "differ", ">1", "outputs", "differ", "C bytes", "differ")
        print(f"{'network':<14}{'target':<9}{'type':<8}" + "".join(f"{head:>11}" for head in heads))
        for network, target, kind in cases:
            path = arguments.cache / f"{network}-{target}-{kind}.espdl"
            model = read_model(path)
            with np.load(path.with_suffix(".npz")) as stored:
                arrays = {name: stored[name] for name in stored.files}
            samples = 1 + max(int(name.rsplit("#", 1)[1]) for name in arrays)
            counted = Counted(network, target, kind, nodes=len(model.nodes))
            (whole if kind == "w8a8" else node_by_node)(counted, model, arrays, samples)
            if program is not None:
                counted.engine_bytes, counted.engine_differing = engine(
                    program, Path(folder), path, model, target, samples
                )
            results.append(counted)
            numbers = list(asdict(counted).values())[3:]
            order = (0, 1, 2, 4, 6, 3, 5, 7, 8)
            print(f"{network:<14}{target:<9}{kind:<8}" + "".join(f"{numbers[i]:>11,}" for i in order), flush=True)
    eight = [c for c in results if c.type == "w8a8"]
    more = [c for c in results if c.type != "w8a8"]
    values, outputs = sum(c.values for c in eight), sum(c.outputs for c in eight)
    print(f"int8: {sum(c.differing for c in eight)} of {values:,} values differ, among them ", end="")
    print(f"{sum(c.differing_outputs for c in eight)} of {outputs:,} outputs")
    if more:
        print(f"int16: {sum(c.differing for c in more)} of {sum(c.values for c in more):,} values differ, ", end="")
        print(f"{sum(c.past_one for c in more)} by more than one")
    wrong, total = sum(c.engine_differing for c in results), sum(c.engine_bytes for c in results)
    print(f"engine: {wrong} of {total:,} bytes differ from the interpreter's")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(c) for c in results], indent=1))
    return int(any(c.differing or c.past_one for c in eight) or any(c.past_one for c in more) or wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
