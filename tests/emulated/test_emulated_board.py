"""An emulated board through the real agent: what it says of itself, its numbers, its outputs, its heat."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from emulated_boards import NPU, cost_model, make_spec, save
from onnx import TensorProto, helper, numpy_helper

from device_agents.contract import (
    Agent,
    Block,
    BlockRequest,
    DeviceReboot,
    DeviceTimeout,
    LoadReport,
    OutOfMemory,
    Pipeline,
    RuntimeOptions,
)
from device_agents.emulated import EmulatedSpec
from device_agents.emulated.cost_model import estimate
from device_agents.host_lock import HostLock

X = np.random.default_rng(3).standard_normal((8, 3, 8, 8)).astype(np.float32)
REQUEST = BlockRequest(min_count=200, min_ns=1_000_000, max_ns=10**12)
Models = dict[str, tuple[Path, str]]
Board = Callable[..., Agent]


def load(agent: Agent, model: tuple[Path, str], **options: Any) -> LoadReport:
    agent.deploy(*model)
    return agent.load(model[1], RuntimeOptions(**options))


def block(agent: Agent, session: str, request: BlockRequest = REQUEST) -> Block:
    return agent.measure(session, {"x": X}, request)


def modelled_ns(spec: EmulatedSpec, path: Path, batch: int = 1) -> float:
    return estimate(onnx.load(path), spec.cost_model, {"x": (batch, 3, 8, 8)}).latency_ns


def test_says_that_it_is_emulated_and_what_it_stands_for(board: Board) -> None:
    facts = board().connect()
    assert facts.emulated is True
    assert (facts.cpu_model, facts.machine, facts.os) == ("Test CPU", "aarch64", "Test OS")
    assert facts.memory_bytes == 1_000_000_000
    assert facts.cpu_count == 4
    assert facts.providers == ("CPUExecutionProvider",)
    assert facts.extra["cost_model"] == "test"


def test_samples_are_the_cost_models_latency_with_the_stated_noise(board: Board, models: Models) -> None:
    spec = make_spec(noise={"sigma": 0.05, "block_sigma": 0.0, "spike_probability": 0.0})
    agent = board(spec)
    agent.connect()
    report = load(agent, models["small"])
    samples = block(agent, report.session, BlockRequest(5000, 1, 10**13)).samples_ns
    logs = np.log(samples / modelled_ns(spec, models["small"][0]))
    # Five standard errors each; the median's is sqrt(pi / 2) times the mean's.
    assert abs(np.median(logs)) < 5 * 0.05 * np.sqrt(np.pi / 2 / 5000)
    assert logs.std() == pytest.approx(0.05, rel=5 / np.sqrt(2 * 5000))
    assert report.load_ns == round((5.0 + models["small"][0].stat().st_size / 1e3 / 100) * 1e6)


def test_warm_up_decays_as_stated_and_the_first_inference_is_the_coldest(board: Board, models: Models) -> None:
    spec = make_spec(noise={"kind": "none"}, warm_up={"cold_factor": 3.0, "decay_inferences": 5.0})
    agent = board(spec)
    agent.connect()
    measured = block(agent, load(agent, models["small"]).session)
    warm = modelled_ns(spec, models["small"][0])
    assert measured.first_ns == pytest.approx(3.0 * warm, abs=1)
    ordinals = np.arange(1, len(measured.samples_ns) + 1)
    np.testing.assert_allclose(measured.samples_ns, warm * (1 + 2 * np.exp(-ordinals / 5)), atol=1)


def test_the_same_seed_gives_the_same_samples_whatever_else_was_measured(board: Board, models: Models) -> None:
    def interleaved(agent: Agent, target: str) -> list[np.ndarray]:
        """As a measurement does: health, then canary ("other") and candidate in turn."""
        agent.health()
        sessions = {name: load(agent, models[name]).session for name in ("other", target)}
        blocks = [block(agent, sessions[name]).samples_ns for name in ("other", target, "other", target)]
        for session in sessions.values():
            agent.unload(session)
        return blocks

    busy, fresh, seeded = board(), board(), board(make_spec(seed=8))
    for agent in (busy, fresh, seeded):
        agent.connect()
    interleaved(busy, "large")
    kept = load(busy, models["large"]).session
    block(busy, kept)
    again = interleaved(busy, "small")
    expected = interleaved(fresh, "small")
    for mine, theirs in zip(again, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not np.array_equal(expected[1], expected[3])
    for mine, theirs in zip(interleaved(seeded, "small"), expected, strict=True):
        assert not np.array_equal(mine, theirs)


def test_outputs_are_those_of_really_executing_the_model(board: Board, models: Models) -> None:
    agent = board()
    agent.connect()
    report = load(agent, models["large"])
    session = onnxruntime.InferenceSession(str(models["large"][0]), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": X})[0]
    block(agent, report.session)
    for batch in (1, 4):
        got = agent.infer(report.session, {"x": X}, batch).outputs["y"]
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_batch_is_charged_as_a_batch(board: Board, models: Models) -> None:
    spec = make_spec(noise={"kind": "none"})
    agent = board(spec)
    agent.connect()
    report = load(agent, models["large"])
    before = agent.health().clock_ns
    agent.infer(report.session, {"x": X}, 4)
    passed = agent.health().clock_ns - before
    assert passed == 2 * round(modelled_ns(spec, models["large"][0], 4))


def test_a_block_of_batches_takes_what_the_cost_model_says_of_batches(board: Board, models: Models) -> None:
    spec = make_spec(noise={"kind": "none"})
    agent = board(spec)
    agent.connect()
    report = load(agent, models["large"])
    for batch in (1, 8, 11):
        measured = block(agent, report.session, BlockRequest(20, 1, 10**12, batch=batch))
        assert set(measured.samples_ns) == {round(modelled_ns(spec, models["large"][0], batch))}
    assert modelled_ns(spec, models["large"][0], 8) > 3 * modelled_ns(spec, models["large"][0], 1)


@pytest.mark.parametrize(("post", "passes"), [("none", 0.0), ("softmax", 3.0), ("argmax", 1.0)])
def test_processing_around_the_model_takes_time(board: Board, models: Models, post: Any, passes: float) -> None:
    """Each step over the elements is bound by memory (8 bytes per element at 8 GB/s), softmax by its operations."""
    processor = {"gelement_per_s": 2.0, "memory_gb_s": 8.0, "launch_us": 3.0, "element_cost": {"Softmax": 6}}
    spec = make_spec(noise={"kind": "none"}, cost_model=cost_model(processor))
    agent = board(spec)
    agent.connect()
    agent.deploy(*models["small"])
    pipeline = Pipeline(scale=0.5, mean=(1.0,), transpose=(2, 0, 1), post=post)
    report = agent.load(models["small"][1], RuntimeOptions(), pipeline)
    raw = np.ascontiguousarray(X.transpose(0, 2, 3, 1))
    request = BlockRequest(20, 1, 10**12, batch=4)
    samples = agent.measure(report.session, {"x": raw}, request).samples_ns
    before = 3 * (3000 + 4 * 192 * 1.0)
    after = 3000 + 4 * 5 * passes if passes else 0.0
    expected = modelled_ns(spec, models["small"][0], 4) + before + after
    np.testing.assert_allclose(samples, expected, atol=3)
    clock = agent.health().clock_ns
    agent.infer(report.session, {"x": raw}, 4)
    assert agent.health().clock_ns - clock == pytest.approx(2 * expected, abs=6)


def test_another_label_is_another_draw_and_the_same_the_same(board: Board, models: Models) -> None:
    def measured(label: str) -> np.ndarray:
        agent.health()
        session = load(agent, models["small"]).session
        samples = block(agent, session, replace(REQUEST, label=label)).samples_ns
        agent.unload(session)
        return samples

    agent = board()
    agent.connect()
    search, final = measured("search"), measured("final")
    assert not np.array_equal(search, final)
    np.testing.assert_array_equal(measured("search"), search)
    np.testing.assert_array_equal(measured("final"), final)


def test_throttling_shows_as_drift_and_as_a_flag_and_the_board_cools_down(board: Board, models: Models) -> None:
    heat = {"ambient_c": 40.0, "rise_c": 40.0, "time_constant_s": 2.0, "threshold_c": 70.0, "slow_down": 1.5}
    agent = board(make_spec(noise={"kind": "none"}, throttling=heat))
    agent.connect()
    report = load(agent, models["large"])
    half_second = BlockRequest(1, 500_000_000, 10**12)
    blocks = [block(agent, report.session, half_second) for _ in range(9)]
    medians = [float(np.median(b.samples_ns)) for b in blocks]
    # 70 °C is reached when 1 - exp(-t / 2 s) = 30 / 40, at 2.77 s: in the sixth block.
    assert medians[:5] == [medians[0]] * 5
    assert medians[6:] == pytest.approx([1.5 * medians[0]] * 3, abs=1.0)
    assert [b.after.throttled for b in blocks] == [False] * 5 + [True] * 4
    assert blocks[4].after.temperature_c == pytest.approx(40 + 40 * (1 - np.exp(-2.5 / 2)), abs=0.1)
    readings = [agent.health() for _ in range(4)]
    assert [r.throttled for r in readings] == [False] * 4
    assert all(a.temperature_c > b.temperature_c for a, b in itertools.pairwise(readings))


def test_an_accelerator_gives_a_receipt_with_offload_and_time_shares(board: Board, tmp_path: Path) -> None:
    from emulated_boards import conv_net, save
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._rows = iter([{"x": X[i : i + 1]} for i in range(4)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._rows, None)

    float_path, _ = save(conv_net(), tmp_path, "float")
    quantized = tmp_path / "int8.onnx"
    quantize_static(
        float_path, quantized, Reader(), quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    npu = {**NPU, "operators": {**NPU["operators"], "Gemm": ["int8"]}}
    agent = board(make_spec(cost_model=cost_model(accelerator=npu)), exclusive_sessions=True)
    assert agent.connect().providers == ("VitisAIExecutionProvider", "CPUExecutionProvider")
    both = (("VitisAIExecutionProvider", ()), ("CPUExecutionProvider", ()))
    report = load(agent, save(onnx.load(quantized), tmp_path, "int8"), providers=both)
    placed = report.placement.nodes
    assert {"conv"} <= set(placed["VitisAIExecutionProvider"])
    assert {"pool", "flatten"} <= set(placed["CPUExecutionProvider"])
    everything = [*placed["VitisAIExecutionProvider"], *placed["CPUExecutionProvider"], *report.placement.fused]
    assert sorted(everything) == sorted(node.name for node in onnx.load(quantized).graph.node)
    assert report.placement.evidence == ("emulated-cost-model",)
    assert report.placement.agrees is None
    reasons = report.placement.fallback_reasons
    assert reasons["pool"] == "GlobalAveragePool is not supported by VitisAIExecutionProvider"
    assert 0 < (report.placement.offload_ratio or 0) < 1
    assert sum(report.placement.time_share.values()) == pytest.approx(1.0)
    assert report.compiled_sha256 is not None
    alone = load(agent, (float_path, save(conv_net(), tmp_path, "float")[1]), providers=both)
    assert alone.placement.offload_ratio == 0.0
    assert alone.compiled_sha256 is None


def test_a_model_beyond_the_boards_memory_does_not_load(board: Board, models: Models) -> None:
    presents = {"cpu_model": "c", "machine": "m", "os": "o", "memory_mb": 30}
    agent = board(make_spec(presents=presents))
    agent.connect()
    with pytest.raises(OutOfMemory, match="30 MB"):
        load(agent, models["small"])


def test_peak_memory_is_runtime_weights_and_activations(board: Board, models: Models) -> None:
    spec = make_spec()
    agent = board(spec)
    agent.connect()
    report = load(agent, models["small"])
    result = estimate(onnx.load(models["small"][0]), spec.cost_model, {"x": (1, 3, 8, 8)})
    assert report.peak_memory_bytes == 30_000_000 + 2 * result.weight_bytes + result.activation_bytes
    larger = agent.infer(report.session, {"x": X}, 8).peak_memory_bytes
    assert larger == report.peak_memory_bytes + 7 * result.activation_bytes


def test_real_pace_takes_the_time_it_says(board: Board, models: Models) -> None:
    spec = make_spec(pace="real", noise={"kind": "none"}, cost_model=cost_model(processor={"invocation_us": 2000.0}))
    agent = board(spec)
    agent.connect()
    report = load(agent, models["small"])
    measured = block(agent, report.session, BlockRequest(20, 1, 10**11))
    # A sleep is never shorter than asked, so the device's clock cannot show less than the cost model.
    assert measured.samples_ns.min() >= modelled_ns(spec, models["small"][0]) - 1
    assert report.load_ns >= 5_000_000


def test_real_execution_makes_way_for_a_clock_on_this_host(board: Board, models: Models, tmp_path: Path) -> None:
    agent = board(host_lock=tmp_path / "lock")
    agent.connect()
    agent.deploy(*models["small"])
    release, held = threading.Event(), threading.Event()

    def clock() -> None:
        with HostLock(tmp_path / "lock").clock():
            held.set()
            release.wait(60)

    thread = threading.Thread(target=clock)
    thread.start()
    try:
        assert held.wait(30)
        with pytest.raises(DeviceTimeout):
            agent.load(models["small"][1], RuntimeOptions(), deadline_s=2.0)
    finally:
        release.set()
        thread.join(30)
    assert agent.load(models["small"][1], RuntimeOptions()).load_ns > 0


def test_files_and_boot_survive_a_close_where_the_folder_is_kept(board: Board, models: Models, tmp_path: Path) -> None:
    first = board(root=tmp_path / "root")
    boot = first.connect().boot_id
    first.deploy(*models["small"])
    first.close()
    second = board(root=tmp_path / "root")
    assert second.connect().boot_id == boot
    assert second.deploy(*models["small"]).sent_bytes == 0


def test_a_temporary_folder_is_gone_after_close(board: Board) -> None:
    agent = board()
    agent.connect()
    root = agent._transport._root  # type: ignore[attr-defined]
    assert (root / "home").is_dir()
    agent.close()
    assert not root.exists()


def test_a_server_that_died_is_a_new_boot(board: Board, models: Models) -> None:
    import os
    import signal

    agent = board()
    boot = agent.connect().boot_id
    os.kill(agent._transport.server_pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(DeviceReboot):
        agent.describe()
    assert agent.recover().boot_id != boot
    assert load(agent, models["small"]).load_ns > 0


def test_runs_what_only_this_hosts_option_for_precise_sums_cannot(board: Board, tmp_path: Path) -> None:
    """Float weights behind QuantizeLinear share a zero point: how PyTorch exports a network trained quantized."""
    rng = np.random.default_rng(0)
    constants = {"s": np.float32(0.05), "u": np.uint8(128), "ws": np.float32(0.02), "z": np.int8(0)}
    weights = {name: rng.normal(size=(6, 6)).astype(np.float32) for name in ("a", "b")}
    nodes = []
    for source, weight, target in (("x", "a", "m"), ("m", "b", "y")):
        for name, zero in ((source, "u"), (weight, "z")):
            scale = "s" if zero == "u" else "ws"
            nodes.append(helper.make_node("QuantizeLinear", [name, scale, zero], [f"{name}_q"], f"{name}_q"))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", scale, zero], [f"{name}_d"], f"{name}_d"))
        product = f"{target}_f"
        nodes.append(helper.make_node("Gemm", [f"{source}_d", f"{weight}_d"], [product], f"{target}_gemm"))
        nodes.append(helper.make_node("QuantizeLinear", [product, "s", "u"], [f"{product}_q"], f"{product}_q"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{product}_q", "s", "u"], [target], f"{product}_d"))
    graph = helper.make_graph(
        nodes,
        "trained quantized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6])],
        [numpy_helper.from_array(value, name) for name, value in {**constants, **weights}.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    agent = board()
    agent.connect()
    report = load(agent, save(made, tmp_path, "trained"))
    x = rng.normal(size=(1, 6)).astype(np.float32)
    expected = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    np.testing.assert_allclose(agent.infer(report.session, {"x": x}).outputs["y"], expected[0], atol=0.05)
