"""Lints: each says what it should of a model made for it, and none is missing where the device would differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from device_agents.emulated.espdl.interpreter import Interpreter
from device_agents.emulated.espdl.memory import activation_bytes, activation_shapes
from device_agents.emulated.espdl.model import Model
from device_agents.emulated.espdl.reader import read_model
from device_agents.emulated.espdl.target import Semantics, target_named
from harness.audit.finding import Finding
from harness.cli.lint import command
from harness.errors import ConfigError, ModelError
from harness.lints.espdl import BoardMemory, lint, reciprocal_differs
from tests.espdl.espdl_random import random_model
from tests.espdl.espdl_writer import Constant, Graph, Step, Value, blocked
from tests.espdl.golden_models import GOLDEN, golden

DIFFERENCES = {"add-exponents", "copy-exponents", "lane-saturation", "coarse-table", "average-rounding"}
"""Those that say that a device computes something else than was simulated."""


def _found(graph: Graph, target: str = "esp32s3", memory: BoardMemory | None = None) -> dict[str, Finding]:
    return {finding.code: finding for finding in lint(read_model(graph.to_bytes()), target, memory)}


def _add(exponents: tuple[int, int, int], op: str = "Add") -> Graph:
    return Graph(
        [Value("a", (1, 4), exponents[0]), Value("b", (1, 4), exponents[1])], [Value("y", (1, 4), exponents[2])],
        steps=[Step(op, ("a", "b"), ("y",), name="/sum")],
    )  # fmt: skip


@pytest.mark.parametrize("op", ["Add", "Sub"])
@pytest.mark.parametrize("exponents", [(-4, -5, -4), (-4, -4, -3)])
def test_unequal_exponents_of_an_addition(op: str, exponents: tuple[int, int, int]) -> None:
    finding = _found(_add(exponents, op))["add-exponents"]
    assert finding.severity == "error"
    assert finding.where == ("/sum",)
    assert finding.evidence == {"input_exponents": list(exponents[:2]), "output_exponent": exponents[2]}
    assert "Align to Output" in finding.advice
    assert ("options.fusion_alignment.elementwise_to", "Align to Output") in [
        (c.field, c.after) for c in finding.changes
    ]


def test_equal_exponents_need_no_word() -> None:
    assert _found(_add((-4, -4, -4))) == {}


def _conv(inner: int, weight: int, shift: int, outer: int = 16) -> Graph:
    values, layout = blocked(np.full((outer, 1, 1, inner), weight, np.int8), 16)
    return Graph(
        [Value("x", (1, 1, 1, inner), -7)], [Value("y", (1, 1, 1, outer), shift - 14)],
        steps=[Step("Conv", ("x", "w"), ("y",), {"kernel_shape": (1, 1)}, name="/conv")],
        constants=[Constant("w", values, (1, 1, inner, outer), (-7,), layout)],
    )  # fmt: skip


def test_lanes_that_can_saturate_by_the_exact_bound() -> None:
    # 2**19 = 524288: 32 inputs of -128 by -128 are exactly that (one past the top), 31 are not
    assert "lane-saturation" not in _found(_conv(31, -128, 10))
    finding = _found(_conv(32, -128, 10))["lane-saturation"]
    assert finding.severity == "warning"
    assert finding.evidence["greatest_sum"] == 1 << 19
    assert finding.evidence["channels_at_risk"] == 16
    assert ("options.mixed_precision.layers", ["/conv"]) in [(c.field, c.after) for c in finding.changes]
    assert _found(_conv(32, -128, 13))["lane-saturation"].severity == "error"  # the output could have held it
    assert "lane-saturation" not in _found(_conv(32, -128, 10, outer=15))  # no whole block: a wide accumulator
    assert "lane-saturation" not in _found(_conv(32, -128, 10), target="esp32p4")
    assert "lane-saturation" not in _found(_conv(31, 127, 10))


def test_a_left_shift() -> None:
    assert _found(_conv(4, 1, -1))["negative-shift"].evidence == {"mac_shift": -1}
    assert "negative-shift" not in _found(_conv(4, 1, 0))


def _activation(bits: int, table: int | None, op: str = "Swish") -> Graph:
    dtype = 3 if bits == 8 else 5
    constants = (
        [] if table is None else [Constant("t", np.zeros(table, np.int8 if bits == 8 else np.int16), (table,), (-4,))]
    )
    return Graph(
        [Value("x", (1, 4), -4, dtype)], [Value("y", (1, 4), -4, dtype)], constants=constants,
        steps=[Step(op, ("x",), ("y",), {} if table is None else {"lut": "t"}, name="/act")],
    )  # fmt: skip


def test_16_bit_activations_without_and_with_a_table() -> None:
    assert set(_found(_activation(16, None))) == {"float-activation"}
    assert _found(_activation(16, 257))["coarse-table"].evidence == {"entries": 257, "step": 256}
    assert _found(_activation(8, 256)) == {}
    assert _found(_activation(16, 2049, op="LUT")) == {}


def test_operators_and_groups_that_nothing_runs() -> None:
    graph = Graph([Value("x", (1, 4))], [Value("y", (1, 4))], steps=[Step("GRU", ("x",), ("y",), name="/gru")])
    finding = _found(graph)["unsupported-operator"]
    assert (finding.severity, finding.where, finding.evidence) == ("error", ("/gru",), {"operator": "GRU"})
    values, layout = blocked(np.ones((16, 1, 1, 2), np.int8), 16, groups=2)
    grouped = Graph(
        [Value("x", (1, 1, 1, 4), -4)], [Value("y", (1, 1, 1, 16), -4)],
        constants=[Constant("w", values, (1, 1, 16, 2), (-4,), layout)],
        steps=[Step("Conv", ("x", "w"), ("y",), {"group": 2}, name="/g")],
    )  # fmt: skip
    assert "2 groups" in _found(grouped)["unsupported-operator"].what


def test_copied_integers_of_another_exponent() -> None:
    graph = Graph(
        [Value("a", (1, 2), -4), Value("b", (1, 2), -5)], [Value("y", (1, 4), -4)],
        steps=[Step("Concat", ("a", "b"), ("y",), {"axis": 1}, name="/cat")],
    )  # fmt: skip
    assert _found(graph)["copy-exponents"].where == ("/cat",)


def test_memory() -> None:
    model = golden("tiny_images-esp32s3-w8a8")
    peak = activation_bytes(model, activation_shapes(model, "esp32s3"))
    assert peak == 1056  # what the portable engine says of the same plan

    def codes(**memory: object) -> set[str]:
        found = lint(model, "esp32s3", BoardMemory(**memory))  # type: ignore[arg-type]
        return {finding.code for finding in found if finding.code.endswith("memory")}

    assert codes(psram_bytes=peak + model.size_bytes) == set()
    assert codes(psram_bytes=peak + model.size_bytes - 1) == {"activation-memory"}
    assert codes(psram_bytes=peak, flash_slot_bytes=model.size_bytes, model_in="flash") == set()
    assert codes(psram_bytes=peak - 1, flash_slot_bytes=model.size_bytes - 1, model_in="flash") == {
        "activation-memory",
        "model-memory",
    }


def test_averages_that_a_reciprocal_rounds_otherwise() -> None:
    for count in (1, 2, 4, 16, 64):
        assert not reciprocal_differs(count, -1, 8, 8, target_named("esp32s3"))
    # 21 / 2**1 / … by hand: some tie k + 1/2 = sum / (count * 2**shift) whose float32 product with 1/count misses it
    differing = [count for count in range(2, 60) if reciprocal_differs(count, 1, 8, 8, target_named("esp32s3"))]
    assert differing
    for count in differing[:5]:
        sums = np.arange(-128 * count, 127 * count + 1, dtype=np.float32)
        by_division = np.floor(sums / np.float32(count) / 2 + np.float32(0.5))
        by_product = np.floor(sums * (np.float32(1) / np.float32(count)) / 2 + np.float32(0.5))
        assert np.any(by_division != by_product)


def _differs(model: Model, target: str, seed: int) -> bool:
    random = np.random.default_rng(seed)
    value = model.inputs[0]
    most = 128 if value.dtype == 3 else 32768
    x = random.integers(-most, most, (6, *value.shape)).astype(np.int8 if value.dtype == 3 else np.int16)
    x[:2] = random.choice([-most, most - 1], (2, *value.shape))
    runs = [Interpreter(model, target, semantics).run({value.name: x}) for semantics in Semantics]
    return any(not np.array_equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.parametrize("target", ["esp32s3", "esp32p4", "esp32"])
@pytest.mark.parametrize("bits", [8, 16])
def test_wherever_the_device_differs_a_lint_has_spoken(target: str, bits: int) -> None:
    differing = silent = 0
    for seed in range(40):
        model = read_model(random_model(seed, target, bits).to_bytes())
        spoke = {finding.code for finding in lint(model, target)} & DIFFERENCES
        if _differs(model, target, seed):
            differing += 1
            assert spoke, f"seed {seed}: {[node.op for node in model.nodes]}"
        silent += not spoke
    assert differing > 5  # the models do exercise differences
    assert silent > 0  # and the lints are not always speaking


def _command(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_the_command_prints_findings_and_says_by_its_exit_code_whether_one_is_an_error() -> None:
    large = next(path for path in GOLDEN if path.stem == "tiny_images-esp32s3-w8a8-large")
    said = _command(large, "--target", "esp32s3")
    assert said.exit_code == 3
    assert "/Add" in said.output
    assert "Align to Output" in said.output
    findings = json.loads(_command(large, "--target", "esp32s3", "--json").stdout)["findings"]
    assert findings[0]["code"] == "add-exponents"
    fine = next(path for path in GOLDEN if path.stem == "tiny_images-esp32p4-w8a8")
    assert _command(fine, "--target", "esp32p4", "--psram", 1 << 20).exit_code == 0
    small = json.loads(_command(fine, "--target", "esp32p4", "--psram", 100, "--flash-slot", 100, "--json").stdout)
    assert {finding["code"] for finding in small["findings"]} == {"activation-memory", "model-memory"}


def test_the_command_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    bad = tmp_path / "bad.espdl"
    bad.write_bytes(b"EDL2 and no more")
    error = _command(bad, "--target", "esp32s3").exception
    assert isinstance(error, ModelError)
    assert str(bad) in str(error)
    error = _command(GOLDEN[0], "--target", "esp32s4").exception
    assert isinstance(error, ConfigError)
    assert "esp32s3" in str(error)


def test_lints_of_the_golden_files() -> None:
    assert {finding.code for finding in lint(golden("tiny_images-esp32s3-w8a8-large"), "esp32s3")} >= {"add-exponents"}
    assert "add-exponents" not in {finding.code for finding in lint(golden("tiny_images-esp32s3-w8a8"), "esp32s3")}
