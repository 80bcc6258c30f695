"""The interpreter against ESP-PPQ's executor (in the golden files) and against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_agents.contract import BadData
from device_agents.emulated.espdl.arithmetic import exp, requantized, sigmoid, tanh
from device_agents.emulated.espdl.errors import MalformedModel, UnsupportedNode
from device_agents.emulated.espdl.interpreter import Interpreter
from device_agents.emulated.espdl.kernels.lanes import lane_reach, saturated
from device_agents.emulated.espdl.reader import read_model
from device_agents.emulated.espdl.target import Semantics, target_named
from tests.espdl.espdl_random import random_model
from tests.espdl.espdl_writer import Array, Constant, Graph, Step, Value, blocked
from tests.espdl.golden_models import GOLDEN, GOLDEN_8, golden, target_of, test_inputs

DEVICE, REFERENCE = Semantics.DEVICE, Semantics.REFERENCE


@pytest.mark.parametrize("path", GOLDEN_8, ids=lambda path: path.stem)
def test_every_int8_tensor_is_what_esp_ppq_computed(path: Path) -> None:
    model = read_model(path)
    compared = 0
    for name, made in Interpreter(model, target_of(path)).tensors(test_inputs(model)):
        expected = model.test_outputs.get(name)
        if expected is None:
            continue
        compared += 1
        assert made.shape[1:] == expected.dims
        if made.dtype.kind == "f":
            np.testing.assert_allclose(made[0], expected.array(), atol=1e-6)
        else:
            assert np.array_equal(made[0], expected.array()), name
    assert compared >= len(model.nodes) - 3


def test_every_int16_node_is_within_one_of_esp_ppq_on_its_own_inputs() -> None:
    """Its executor adds in float32, which rounds 16-bit products; node by node, so that nothing accumulates."""
    model = golden("tiny_images-esp32s3-w16a16")
    known = {**model.test_inputs, **model.test_outputs}
    compared = 0
    for node in model.nodes:
        activations = [name for name in node.inputs if name in model.values and name]
        if not all(name in known for name in (*activations, *node.outputs)):
            continue
        alone = replace(
            model,
            nodes=(node,),
            inputs=tuple(replace(model.values[n], shape=known[n].dims) for n in activations),
            outputs=tuple(model.values[n] for n in node.outputs),
        )
        made = Interpreter(alone, "esp32s3").run({n: np.asarray(known[n].array())[np.newaxis] for n in activations})
        for name, values in made.items():
            compared += 1
            gap = np.abs(values[0].astype(np.int64) - known[name].array().astype(np.int64))
            assert gap.max() <= 1, node.label
    assert compared >= 8


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("semantics", list(Semantics))
def test_a_batch_gives_what_single_samples_give(seed: int, semantics: Semantics) -> None:
    model = read_model(random_model(seed, "esp32s3").to_bytes())
    random = np.random.default_rng(seed)
    batch = random.integers(-128, 128, (5, *model.inputs[0].shape)).astype(np.int8)
    interpreter = Interpreter(model, "esp32s3", semantics)
    name, out = model.inputs[0].name, model.outputs[0].name
    together = interpreter.run({name: batch})[out]
    alone = [interpreter.run({name: batch[i : i + 1]})[out][0] for i in range(5)]
    assert np.array_equal(together, np.stack(alone))


def _two(
    op: str, exponents: tuple[int, int, int], a: list[int], b: list[int], target: str, semantics: Semantics
) -> list[int]:
    first, second, out = exponents
    graph = Graph(
        [Value("a", (1, len(a)), first), Value("b", (1, len(b)), second)],
        [Value("y", (1, len(a)), out)],
        steps=[Step(op, ("a", "b"), ("y",))],
    )
    inputs: dict[str, Array] = {"a": np.asarray([a], np.int8), "b": np.asarray([b], np.int8)}
    return Interpreter(read_model(graph.to_bytes()), target, semantics).run(inputs)["y"].ravel().tolist()


@pytest.mark.parametrize(("target", "expected"), [("esp32p4", [0, 2, 2, 0, -2]), ("esp32s3", [1, 2, 3, 0, -1])])
def test_halves_are_rounded_as_the_target_has_them(target: str, expected: list[int]) -> None:
    # (a + 0) at half the output's step: 0.5, 1.5, 2.5, -0.5, -1.5
    assert _two("Add", (-4, -4, -3), [1, 3, 5, -1, -3], [0] * 5, target, REFERENCE) == expected


def test_the_device_adds_integers_whatever_their_exponents() -> None:
    a, b = [100, -100, 10, 3], [50, -50, -4, 2]
    assert _two("Add", (-4, -5, -3), a, b, "esp32s3", DEVICE) == [127, -128, 6, 5]
    assert _two("Sub", (-4, -5, -3), a, b, "esp32s3", DEVICE) == [50, -50, 14, 1]
    # 100/16 + 50/32 = 7.8125, in units of 1/8: 62.5
    assert _two("Add", (-4, -5, -3), a, b, "esp32s3", REFERENCE) == [63, -62, 4, 2]
    assert _two("Add", (-4, -4, -4), a, b, "esp32p4", DEVICE) == _two("Add", (-4, -4, -4), a, b, "esp32p4", REFERENCE)


def _wide_conv(exponent_out: int) -> Graph:
    """512 inputs, all weights 100: the sum of positive inputs leaves 20 bits long before the end."""
    weights = np.full((32, 1, 1, 512), 100, np.int8)
    weights = np.concatenate([weights, np.full((3, 1, 1, 512), 100, np.int8)])
    values, layout = blocked(weights, 16)
    return Graph(
        [Value("x", (1, 1, 1, 512), -7)],
        [Value("y", (1, 1, 1, 35), exponent_out)],
        steps=[Step("Conv", ("x", "w"), ("y",), {"kernel_shape": (1, 1)})],
        constants=[Constant("w", values, (1, 1, 512, 35), (-7,), layout)],
    )


def test_lanes_of_the_s3_saturate_at_20_bits_and_channels_past_the_last_block_do_not() -> None:
    model = read_model(_wide_conv(2).to_bytes())  # a shift of 16
    x = np.full((1, 1, 1, 1, 512), 127, np.int8)
    reference = Interpreter(model, "esp32s3", REFERENCE).run({"x": x})["y"].ravel()
    device = Interpreter(model, "esp32s3", DEVICE).run({"x": x})["y"].ravel()
    assert set(reference.tolist()) == {round(512 * 127 * 100 / 2**16)} == {99}
    assert device.tolist() == [8] * 32 + [99] * 3  # (2**19 - 1) / 2**16 = 7.99…; channels 32 to 34 fill no block
    same = Interpreter(model, "esp32p4", DEVICE).run({"x": x})["y"].ravel()
    assert set(same.tolist()) == {99}


def test_saturated_sums_remember_where_they_clipped() -> None:
    """Up to the end of the lane, then back down: what was lost above is missing below."""
    x = np.zeros((1, 1, 1, 1, 512), np.int8)
    x[..., :100], x[..., 100:140] = 127, -127
    model = read_model(_wide_conv(0).to_bytes())
    device = Interpreter(model, "esp32s3", DEVICE).run({"x": x})["y"].ravel()
    top = (1 << 19) - 1
    assert device[0] == (top - 40 * 12700 + (1 << 13)) >> 14
    assert device[-1] == min(127, (60 * 12700 + (1 << 13)) >> 14)


def test_lane_reach_is_attained_and_never_passed() -> None:
    random = np.random.default_rng(3)
    matrix, bias = random.integers(-128, 128, (9, 4)), random.integers(-1000, 1000, 4)
    least, greatest = lane_reach(matrix, bias, 8)
    for channel in range(4):
        best = np.where(matrix[:, channel] > 0, 127, -128)
        partial = np.concatenate([[bias[channel]], bias[channel] + np.cumsum(best * matrix[:, channel])])
        assert max(partial.max(), 0) <= greatest[channel] <= max(partial.max(), partial[-1] - min(bias[channel], 0))
        assert least[channel] <= min(bias[channel], 0)
    for _ in range(200):
        x = random.integers(-128, 128, 9)
        partial = bias + np.cumsum(x[:, None] * matrix, axis=0)
        assert np.all(partial <= greatest)
        assert np.all(partial >= least)


def test_saturated_is_a_loop_with_a_clip() -> None:
    random = np.random.default_rng(4)
    terms = random.integers(-50, 50, (20, 30)).astype(float)
    for row, got in zip(terms, saturated(terms, 7, -60, 60), strict=True):
        total = 7.0
        for term in row:
            total = min(60.0, max(-60.0, total + term))
        assert got == total


@pytest.mark.parametrize("target", ["esp32", "esp32p4"])
def test_requantizing_is_exact_arithmetic_on_fractions(target: str) -> None:
    values = np.arange(-3000, 3000)
    for shift in (-2, 0, 1, 3, 7, 11):
        got = requantized(values.astype(np.float32), shift, 8, target_named(target))
        for value, made in zip(values.tolist(), got.tolist(), strict=True):
            exact = value * 2.0**-shift
            whole = (
                round(exact) if target == "esp32p4" else math.floor(exact + 0.5)
            )  # round() of Python is half to even
            assert made == min(127, max(-128, whole))


def test_the_exponential_is_correct_to_the_last_bits() -> None:
    x = np.concatenate([np.linspace(-700, 700, 4001), np.linspace(-2, 2, 4001)])
    reference = np.asarray([math.exp(value) for value in x])
    assert np.max(np.abs(exp(x) - reference) / reference) < 5e-16
    assert np.max(np.abs(tanh(x) - np.tanh(x))) < 1e-15
    assert np.max(np.abs(sigmoid(x) - 1 / (1 + np.exp(-x)))) < 1e-15


def test_a_table_of_16_bits_gives_its_nearest_entry() -> None:
    table = (np.arange(2049) - 1024).astype(np.int16)
    graph = Graph(
        [Value("x", (1, 6), -11, 5)], [Value("y", (1, 6), -11, 5)],
        steps=[Step("Swish", ("x",), ("y",), {"lut": "t"})],
        constants=[Constant("t", table, (2049,), (-11,))],
    )  # fmt: skip
    x = np.asarray([[-32768, -32753, -32752, -32736, 0, 32767]], np.int16)
    model = read_model(graph.to_bytes())
    assert Interpreter(model, "esp32s3", DEVICE).run({"x": x})["y"].ravel().tolist() == [
        -1024,
        -1024,
        -1023,
        -1023,
        0,
        1024,
    ]
    assert Interpreter(model, "esp32p4", DEVICE).run({"x": x})["y"].ravel().tolist() == [
        -1024,
        -1024,
        -1024,
        -1023,
        0,
        1024,
    ]
    real = x[0].astype(float) / 2048
    ideal = np.clip(np.floor(real / (1 + np.exp(-real)) * 2048 + 0.5), -32768, 32767)
    assert np.array_equal(Interpreter(model, "esp32s3", REFERENCE).run({"x": x})["y"].ravel(), ideal)


def test_an_unknown_operator_is_named() -> None:
    graph = Graph([Value("x", (1, 4))], [Value("y", (1, 4))], steps=[Step("GRU", ("x",), ("y",), name="/gru")])
    with pytest.raises(UnsupportedNode, match=r"GRU.*'/gru'"):
        Interpreter(read_model(graph.to_bytes()), "esp32s3")


def test_an_input_that_nothing_makes_is_named() -> None:
    graph = Graph(
        [Value("x", (1, 4))], [Value("y", (1, 4))], values=[Value("z", (1, 4))],
        steps=[Step("Add", ("x", "z"), ("y",), name="/add")],
    )  # fmt: skip
    with pytest.raises(MalformedModel, match=r"'/add'.*'z'"):
        Interpreter(read_model(graph.to_bytes()), "esp32s3")


def test_wrong_inputs_are_refused() -> None:
    interpreter = Interpreter(golden("tiny_images-esp32s3-w8a8"), "esp32s3")
    right = np.zeros((1, 8, 8, 3), np.int8)
    with pytest.raises(BadData, match="'nothere'"):
        interpreter.run({"input": right, "nothere": right})
    with pytest.raises(BadData, match="missing"):
        interpreter.run({})
    with pytest.raises(BadData, match=r"\[1, 8, 8, 3\]"):
        interpreter.run({"input": right[:, :7]})
    with pytest.raises(BadData, match="float32"):
        interpreter.run({"input": right.astype(np.float32)})
    with pytest.raises(KeyError, match="esp8266"):
        Interpreter(interpreter.model, "esp8266")


def test_real_inputs_are_quantized_with_the_models_scale() -> None:
    interpreter = Interpreter(golden("tiny_images-esp32s3-w8a8"), "esp32s3")
    step = 2.0 ** interpreter.model.inputs[0].exponent
    real = np.asarray([0.49, 0.5, -0.5, 1000, -1000, float("nan")]) * step
    assert interpreter.quantize("input", real).tolist() == [0, 1, 0, 127, -128, 0]


@pytest.mark.parametrize("path", [path for path in GOLDEN if "w8a8" in path.stem], ids=lambda path: path.stem)
def test_device_and_reference_agree_where_exponents_do(path: Path) -> None:
    """Of the golden files only the one aligned to large has additions the device does not rescale."""
    model = read_model(path)
    runs = [Interpreter(model, target_of(path), semantics).run(test_inputs(model)) for semantics in Semantics]
    same = all(np.allclose(runs[0][name], runs[1][name], atol=1e-6) for name in runs[0])
    assert same == ("large" not in path.stem)


@pytest.mark.parametrize("target", ["esp32s3", "esp32p4", "esp32"])
@pytest.mark.parametrize("outer", [5, 16, 35])
def test_a_right_side_packed_at_run_time_multiplies_like_a_plain_one(target: str, outer: int) -> None:
    random = np.random.default_rng(outer)
    a = random.integers(-20, 20, (1, 2, 3, 7)).astype(np.int8)
    b = random.integers(-20, 20, (1, 2, 7, outer)).astype(np.int8)
    if target == "esp32":
        packed = np.stack([matrix.T.reshape(7, outer) for matrix in b[0]])[np.newaxis]
    else:
        packed = np.stack([blocked(m.T.reshape(outer, 1, 1, 7), 16)[0].reshape(7, outer) for m in b[0]])[np.newaxis]
    made = []
    for layout, right in (("native_kn", b), ("packed", packed)):
        graph = Graph(
            [Value("a", (1, 2, 3, 7), -4), Value("b", (1, 2, 7, outer), -4)], [Value("y", (1, 2, 3, outer), -4)],
            steps=[Step("MatMul", ("a", "b"), ("y",), {"input1_layout": layout})],
        )  # fmt: skip
        made.append(Interpreter(read_model(graph.to_bytes()), target).run({"a": a, "b": right})["y"])
    exact = (
        np.floor((a.astype(int) @ b.astype(int)) / 16 + 0.5)
        if target != "esp32p4"
        else np.rint((a.astype(int) @ b.astype(int)) / 16)
    )
    assert np.array_equal(made[0].reshape(exact.shape), np.clip(exact, -128, 127))
    assert np.array_equal(made[0], made[1])
