"""What every agent must do, whatever the board and the transport behind it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import models
import numpy as np
import onnxruntime
import pytest
from dropping import drop_link_after

from device_agents.contract import (
    Agent,
    BadData,
    BlockRequest,
    BoardUnfit,
    DataRef,
    DeviceCrash,
    DeviceTimeout,
    LinkError,
    LoadReport,
    ModelRejected,
    OutOfMemory,
    RuntimeOptions,
    UnsupportedOperator,
)
from tests.conformance.limits import CACHE_BYTES

SHORT = BlockRequest(min_count=20, min_ns=1_000_000, max_ns=2_000_000_000)


def deploy(agent: Agent, path: Path) -> str:
    sha256 = models.digest(path)
    agent.deploy(path, sha256)
    return sha256


def load(agent: Agent, path: Path, **options) -> LoadReport:
    return agent.load(deploy(agent, path), RuntimeOptions(**options))


def random_file(path: Path, size: int, seed: int) -> Path:
    path.write_bytes(np.random.default_rng(seed).bytes(size))
    return path


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((8, 4)).astype(np.float32)


# ---- the board -----------------------------------------------------------------------------------------------------


def test_describe_says_what_the_board_is(fresh: Agent) -> None:
    facts = fresh.connect()
    assert facts == fresh.describe()
    assert facts.runtime == "onnxruntime"
    assert "CPUExecutionProvider" in facts.providers
    assert facts.cpu_count >= 1
    assert facts.memory_bytes > 0
    assert len(facts.runner_sha256) == 64
    assert facts.boot_id
    assert facts.hardware_id


def test_health_has_the_same_boot(agent: Agent) -> None:
    first, second = agent.health(), agent.health()
    assert first.boot_id == second.boot_id == agent.describe().boot_id
    assert second.clock_ns >= first.clock_ns
    assert first.disk_free_bytes is not None


def test_self_test_finds_arithmetic_right(agent: Agent) -> None:
    findings = agent.self_test(seconds=0.2)
    assert findings["arithmetic"].startswith("ok")
    assert findings["runtime"].startswith("ok")
    assert all(text.startswith(("ok", "problem")) for text in findings.values())


def test_calls_before_connect_are_link_errors(fresh: Agent) -> None:
    with pytest.raises(LinkError) as caught:
        fresh.health()
    assert fresh.name in str(caught.value)


def test_close_twice_and_connect_again(fresh: Agent) -> None:
    agent = fresh
    agent.connect()
    boot_id = agent.describe().boot_id
    agent.close()
    agent.close()
    with pytest.raises(LinkError):
        agent.health()
    assert agent.connect().boot_id == boot_id


def test_recover_gives_a_working_agent_without_sessions(fresh: Agent, tmp_path: Path, x: np.ndarray) -> None:
    agent = fresh
    agent.connect()
    path = models.affine(tmp_path / "m.onnx")
    report = load(agent, path)
    facts = agent.recover()
    assert facts.boot_id == report.boot_id
    with pytest.raises(LinkError):
        agent.infer(report.session, {"x": x})
    again = agent.load(models.digest(path), RuntimeOptions())
    assert agent.infer(again.session, {"x": x}).outputs["y"].shape == (8, 4)


# ---- files ---------------------------------------------------------------------------------------------------------


def test_deploy_once_then_skip(agent: Agent, tmp_path: Path) -> None:
    path = random_file(tmp_path / "f", 300_000, 1)
    sha256 = models.digest(path)
    assert not agent.has(sha256)
    first = agent.deploy(path, sha256)
    assert (first.sent_bytes, first.size_bytes, first.sha256) == (300_000, 300_000, sha256)
    assert agent.has(sha256)
    assert agent.deploy(path, sha256).sent_bytes == 0


def test_deploy_survives_the_connection(fresh: Agent, tmp_path: Path) -> None:
    agent = fresh
    agent.connect()
    path = random_file(tmp_path / "f", 1000, 2)
    deploy(agent, path)
    agent.close()
    agent.connect()
    assert agent.deploy(path, models.digest(path)).sent_bytes == 0


def test_deploy_of_an_empty_file(agent: Agent, tmp_path: Path) -> None:
    path = random_file(tmp_path / "f", 0, 2)
    deploy(agent, path)
    assert agent.has(models.digest(path))


def test_deploy_resumes_a_broken_upload(agent: Agent, tmp_path: Path) -> None:
    path = random_file(tmp_path / "f", 200_000, 3)
    sha256 = models.digest(path)
    half = tmp_path / "half"
    half.write_bytes(path.read_bytes()[:120_000])
    agent._transport.upload(half, f"models/{sha256}.part", 0, 30.0)
    report = agent.deploy(path, sha256)
    assert report.resumed
    assert report.sent_bytes == 80_000
    assert agent.has(sha256)


def test_deploy_restarts_when_what_was_there_is_wrong(agent: Agent, tmp_path: Path) -> None:
    path = random_file(tmp_path / "f", 200_000, 4)
    sha256 = models.digest(path)
    agent._transport.upload(random_file(tmp_path / "other", 50_000, 5), f"models/{sha256}.part", 0, 30.0)
    report = agent.deploy(path, sha256)
    assert report.sent_bytes == 150_000 + 200_000
    assert not report.resumed
    assert agent.has(sha256)


def test_deploy_of_a_file_under_a_wrong_digest_is_refused(agent: Agent, tmp_path: Path) -> None:
    path = random_file(tmp_path / "f", 1000, 6)
    wrong = "ab" * 32
    with pytest.raises(BadData, match=models.digest(path)):
        agent.deploy(path, wrong)
    assert not agent.has(wrong)


def test_least_recently_used_goes_first(fresh: Agent, tmp_path: Path) -> None:
    agent = fresh
    agent.connect()
    size = CACHE_BYTES * 3 // 10
    files = [random_file(tmp_path / f"f{k}", size, 10 + k) for k in range(4)]
    for path in files[:3]:
        deploy(agent, path)
    assert agent.has(models.digest(files[0]))  # a use: now the second is the oldest
    deploy(agent, files[3])
    assert [agent.has(models.digest(path)) for path in files] == [True, False, True, True]


def test_a_loaded_model_is_not_evicted(fresh: Agent, tmp_path: Path, x: np.ndarray) -> None:
    agent = fresh
    agent.connect()
    model = models.affine(tmp_path / "m.onnx")
    report = load(agent, model)
    for k in range(4):
        deploy(agent, random_file(tmp_path / f"f{k}", CACHE_BYTES * 4 // 10, 20 + k))
    assert agent.has(models.digest(model))
    assert agent.infer(report.session, {"x": x}).outputs["y"].shape == (8, 4)


def test_a_file_larger_than_the_cache_is_refused_with_numbers(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        os.truncate(file.fileno(), CACHE_BYTES + 1)
    with pytest.raises(BoardUnfit, match=str(CACHE_BYTES + 1)):
        agent.deploy(path, "cd" * 32)


# ---- loading -------------------------------------------------------------------------------------------------------


def test_load_reports_inputs_outputs_time_and_memory(agent: Agent) -> None:
    report = load(agent, models.EXAMPLE)
    assert report.inputs == (("image", "float32", ("batch", 1, 28, 28)),)
    assert report.outputs == ("logits",)
    assert report.load_ns > 0
    assert report.peak_memory_bytes is None or report.peak_memory_bytes > 1_000_000
    assert report.boot_id == agent.describe().boot_id


def test_placement_accounts_for_every_node(agent: Agent, tmp_path: Path) -> None:
    import onnx

    report = load(agent, models.EXAMPLE)
    placed = [name for names in report.placement.nodes.values() for name in names]
    everything = sorted(node.name for node in onnx.load(models.EXAMPLE).graph.node)
    assert sorted([*placed, *report.placement.fused, *report.placement.folded]) == everything
    assert report.placement.evidence
    assert report.placement.agrees is not False


def test_garbage_is_rejected(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(ModelRejected) as caught:
        load(agent, random_file(tmp_path / "m.onnx", 5000, 30))
    assert type(caught.value) is ModelRejected


@pytest.mark.parametrize("make", [models.unknown_operator, models.unimplemented_type])
def test_operators_without_implementation_are_named(agent: Agent, tmp_path: Path, make) -> None:
    with pytest.raises(UnsupportedOperator, match=r"NoSuchOperator|Conv"):
        load(agent, make(tmp_path / "m.onnx"))


def test_load_of_what_was_not_deployed_is_bad_data(agent: Agent) -> None:
    with pytest.raises(BadData, match="deploy"):
        agent.load("ef" * 32, RuntimeOptions())


def test_a_provider_the_board_lacks_is_named(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(BoardUnfit, match="CUDAExecutionProvider"):
        load(agent, models.affine(tmp_path / "m.onnx"), providers=(("CUDAExecutionProvider", ()),))


# ---- measuring -----------------------------------------------------------------------------------------------------


def test_a_block_holds_raw_samples(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    report = load(agent, models.affine(tmp_path / "m.onnx"))
    request = BlockRequest(min_count=300, min_ns=5_000_000, max_ns=20_000_000_000, rows=3)
    block = agent.measure(report.session, {"x": x}, request)
    assert block.samples_ns.dtype == np.int64
    assert block.samples_ns.ndim == 1
    assert len(block.samples_ns) >= 300
    assert (block.samples_ns > 0).all()
    assert block.boot_id == report.boot_id == block.before.boot_id == block.after.boot_id
    assert block.after.clock_ns - block.before.clock_ns >= block.samples_ns.sum() >= 0


def test_a_block_runs_until_both_minima_hold(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    report = load(agent, models.affine(tmp_path / "m.onnx"))
    by_time = agent.measure(report.session, {"x": x}, BlockRequest(1, 20_000_000, 10**10))
    spent = by_time.after.clock_ns - by_time.before.clock_ns
    assert spent >= 20_000_000
    assert len(by_time.samples_ns) > 1
    by_count = agent.measure(report.session, {"x": x}, BlockRequest(len(by_time.samples_ns) + 7, 1, 10**11))
    assert len(by_count.samples_ns) == len(by_time.samples_ns) + 7


def test_max_ns_ends_a_block_early(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    report = load(agent, models.affine(tmp_path / "m.onnx"))
    block = agent.measure(report.session, {"x": x}, BlockRequest(10**9, 10**12, 5_000_000))
    assert 1 <= len(block.samples_ns) < 10**9
    # All but the last inference fit below the limit.
    assert block.samples_ns[:-1].sum() <= 5_000_000


def test_first_inference_is_reported_once_and_apart(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    report = load(agent, models.affine(tmp_path / "m.onnx"))
    request = BlockRequest(5, 1, 10**10)
    first = agent.measure(report.session, {"x": x}, request)
    second = agent.measure(report.session, {"x": x}, request)
    assert first.first_ns is not None
    assert first.first_ns > 0
    assert len(first.samples_ns) == 5
    assert second.first_ns is None


def test_a_block_feeds_as_many_samples_as_asked_for(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    free = load(agent, models.affine(tmp_path / "free.onnx"))
    for batch in (2, len(x) + 3):
        block = agent.measure(free.session, {"x": x}, replace(SHORT, batch=batch, label="any"))
        assert len(block.samples_ns) >= SHORT.min_count
    fixed = load(agent, models.affine(tmp_path / "fixed.onnx", batch=3))
    assert len(agent.measure(fixed.session, {"x": x}, replace(SHORT, batch=3)).samples_ns) >= SHORT.min_count
    with pytest.raises(BadData, match="2 samples per inference are asked for; the model takes 3"):
        agent.measure(fixed.session, {"x": x}, replace(SHORT, batch=2))


def test_measure_and_infer_leave_each_other_alone(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    report = load(agent, models.affine(tmp_path / "m.onnx"))
    before = agent.infer(report.session, {"x": x}).outputs["y"]
    agent.measure(report.session, {"x": x}, SHORT)
    np.testing.assert_array_equal(agent.infer(report.session, {"x": x}).outputs["y"], before)


# ---- inference -----------------------------------------------------------------------------------------------------


def test_outputs_equal_the_host_runtime_on_real_data(agent: Agent, tmp_path: Path) -> None:
    raw = np.load(models.EXAMPLE.with_name("eval.npz"), allow_pickle=False)["image"][:50]
    images = (raw.astype(np.float32) / 255)[:, None]
    data = tmp_path / "data.npz"
    np.savez(data, image=images, labels=np.arange(50))
    reference = onnxruntime.InferenceSession(models.EXAMPLE, providers=["CPUExecutionProvider"])
    expected = reference.run(None, {"image": images})[0]
    report = load(agent, models.EXAMPLE)
    ref = DataRef(deploy(agent, data))
    whole = agent.infer(report.session, ref, batch=7)
    sent = agent.infer(report.session, {"image": images}, batch=50)
    some = agent.infer(report.session, DataRef(ref.sha256, (49, 3, 4, 5, 3)))
    for got, want in [(whole, expected), (sent, expected), (some, expected[[49, 3, 4, 5, 3]])]:
        assert got.outputs["logits"].dtype == np.float32
        np.testing.assert_allclose(got.outputs["logits"], want, rtol=1e-4, atol=1e-4)


def test_compressed_data_is_read_too(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    data = tmp_path / "data.npz"
    np.savez_compressed(data, x=x)
    report = load(agent, models.affine(tmp_path / "m.onnx"))
    got = agent.infer(report.session, DataRef(deploy(agent, data), (2, 0)))
    np.testing.assert_allclose(got.outputs["y"], 3 * x[[2, 0]] + 1, rtol=1e-6)


def test_measuring_over_deployed_data(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=x)
    report = load(agent, models.affine(tmp_path / "m.onnx"))
    block = agent.measure(report.session, DataRef(deploy(agent, data), (1, 2)), SHORT)
    assert len(block.samples_ns) >= SHORT.min_count


@pytest.mark.parametrize("fixed", [1, 3])
def test_a_fixed_first_axis_sets_the_batch(agent: Agent, tmp_path: Path, x: np.ndarray, fixed: int) -> None:
    report = load(agent, models.affine(tmp_path / "m.onnx", batch=fixed))
    got = agent.infer(report.session, {"x": x}, batch=5)
    np.testing.assert_allclose(got.outputs["y"], 3 * x + 1, rtol=1e-6)
    assert len(agent.measure(report.session, {"x": x}, SHORT).samples_ns) >= SHORT.min_count


def test_several_inputs_and_an_output_without_batch_axis(agent: Agent, tmp_path: Path) -> None:
    report = load(agent, models.two_inputs(tmp_path / "m.onnx"))
    a = np.arange(10, dtype=np.int64).reshape(5, 2)
    got = agent.infer(report.session, {"b": a * 10, "a": a}, batch=1)
    np.testing.assert_array_equal(got.outputs["total"], a * 11)
    np.testing.assert_array_equal(got.outputs["count"], [2] * 5)


def test_outputs_of_varying_shape_are_refused(agent: Agent, tmp_path: Path) -> None:
    report = load(agent, models.positives(tmp_path / "m.onnx"))
    x = np.array([[1, -1, -1, -1], [1, 1, -1, -1]], dtype=np.float32)
    with pytest.raises(BadData, match="where"):
        agent.infer(report.session, {"x": x})
    assert agent.infer(report.session, {"x": x[:1]}).outputs["where"].shape == (1, 2, 1)


BAD_SAMPLES = {
    "dtype": {"x": np.zeros((2, 4), np.float64)},
    "shape": {"x": np.zeros((2, 5), np.float32)},
    "rank": {"x": np.zeros((2, 4, 1, 1), np.float32)},
    "name": {"z": np.zeros((2, 4), np.float32)},
    "extra": {"x": np.zeros((2, 4), np.float32), "z": np.zeros((2, 4), np.float32)},
    "empty": {"x": np.zeros((0, 4), np.float32)},
    "scalar": {"x": np.float32(0)},
    "objects": {"x": np.array([[None]], dtype=object)},
    "nothing": {},
}


@pytest.mark.parametrize("what", list(BAD_SAMPLES))
def test_samples_that_do_not_fit_are_bad_data(agent: Agent, tmp_path: Path, what: str, x: np.ndarray) -> None:
    report = load(agent, models.affine(tmp_path / "m.onnx"))
    for call in (agent.infer, lambda session, samples: agent.measure(session, samples, SHORT)):
        with pytest.raises(BadData) as caught:
            call(report.session, BAD_SAMPLES[what])
        if what in ("dtype", "shape", "rank", "name"):
            assert "'x'" in str(caught.value)
            assert "float32 [n, 4]" in str(caught.value)
    # The session is as good as before.
    np.testing.assert_allclose(agent.infer(report.session, {"x": x}).outputs["y"], 3 * x + 1, rtol=1e-6)


def test_rows_outside_the_data_are_bad_data(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=x)
    report = load(agent, models.affine(tmp_path / "m.onnx"))
    with pytest.raises(BadData, match="8 samples"):
        agent.infer(report.session, DataRef(deploy(agent, data), (0, 8)))


# ---- sessions and failures -----------------------------------------------------------------------------------------


def test_two_sessions_side_by_side_and_unload(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    one = load(agent, models.affine(tmp_path / "a.onnx", slope=2.0))
    two = load(agent, models.affine(tmp_path / "b.onnx", slope=5.0))
    assert one.session != two.session
    np.testing.assert_allclose(agent.infer(one.session, {"x": x}).outputs["y"], 2 * x + 1, rtol=1e-6)
    np.testing.assert_allclose(agent.infer(two.session, {"x": x}).outputs["y"], 5 * x + 1, rtol=1e-6)
    agent.unload(one.session)
    agent.unload(one.session)
    with pytest.raises(BadData, match="session"):
        agent.infer(one.session, {"x": x})
    np.testing.assert_allclose(agent.infer(two.session, {"x": x}).outputs["y"], 5 * x + 1, rtol=1e-6)


def test_a_native_crash_is_typed_and_the_runner_lives(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    good = load(agent, models.affine(tmp_path / "good.onnx"))
    bad = load(agent, models.crashing(tmp_path / "bad.onnx"))
    image = np.zeros((1, 1, 4, 4), np.float32)
    with pytest.raises(DeviceCrash, match="SIGSEGV"):
        agent.measure(bad.session, {"x": image}, SHORT)
    with pytest.raises(LinkError, match="SIGSEGV"):
        agent.infer(bad.session, {"x": image})
    np.testing.assert_allclose(agent.infer(good.session, {"x": x}).outputs["y"], 3 * x + 1, rtol=1e-6)


def test_a_hang_is_a_timeout_and_the_runner_lives(agent: Agent, tmp_path: Path, x: np.ndarray) -> None:
    good = load(agent, models.affine(tmp_path / "good.onnx"))
    path = models.endless(tmp_path / "bad.onnx")
    deploy(agent, path)
    bad = agent.load(models.digest(path), RuntimeOptions(), deadline_s=4.0)
    with pytest.raises(DeviceTimeout):
        agent.infer(bad.session, {"x": x[:1]}, deadline_s=1.5)
    np.testing.assert_allclose(agent.infer(good.session, {"x": x}).outputs["y"], 3 * x + 1, rtol=1e-6)


def test_running_out_of_memory_is_typed(agent: Agent, tmp_path: Path) -> None:
    report = load(agent, models.hungry(tmp_path / "m.onnx"))
    with pytest.raises(OutOfMemory):
        agent.infer(report.session, {"shape": np.array([[2**46]], np.int64)})
    assert agent.health().boot_id == report.boot_id


def test_a_result_is_fetched_after_a_dropped_link(fresh: Agent, tmp_path: Path, x: np.ndarray) -> None:
    agent = fresh
    agent.connect()
    path = models.affine(tmp_path / "m.onnx")
    report = load(agent, path)
    drops = drop_link_after(agent, "measure")
    block = agent.measure(report.session, {"x": x}, BlockRequest(1000, 1_000_000, 10**11))
    assert drops == ["measure"]
    assert len(block.samples_ns) >= 1000
    assert block.boot_id == report.boot_id
    with pytest.raises(LinkError, match="load it again"):
        agent.infer(report.session, {"x": x})
    again = agent.load(models.digest(path), RuntimeOptions())
    np.testing.assert_allclose(agent.infer(again.session, {"x": x}).outputs["y"], 3 * x + 1, rtol=1e-6)


def test_an_error_is_fetched_like_a_result(fresh: Agent, tmp_path: Path, x: np.ndarray) -> None:
    agent = fresh
    agent.connect()
    report = load(agent, models.affine(tmp_path / "m.onnx"))
    drops = drop_link_after(agent, "infer")
    with pytest.raises(BadData, match="float32"):
        agent.infer(report.session, {"x": x.astype(np.float64)})
    assert drops == ["infer"]


def test_file_requests_are_sent_again_after_a_dropped_link(fresh: Agent, tmp_path: Path) -> None:
    agent = fresh
    agent.connect()
    path = random_file(tmp_path / "f", 1000, 40)
    for operation in ("has", "make_room", "commit"):
        agent.close()
        agent.connect()
        agent.clean()
        agent.connect()
        drops = drop_link_after(agent, operation)
        agent.deploy(path, models.digest(path))
        assert drops == [operation]
        assert agent.has(models.digest(path))


def test_clean_leaves_nothing(fresh: Agent, tmp_path: Path) -> None:
    agent = fresh
    agent.connect()
    path = random_file(tmp_path / "f", 1000, 41)
    deploy(agent, path)
    removed = agent.clean()
    assert f"models/{models.digest(path)}" in removed
    assert any(name.startswith("runner/") for name in removed)
    agent.close()
    left = [p for p in tmp_path.rglob("*") if p.is_file() and models.digest(path) in p.name]
    assert left == []
    agent.connect()
    assert not agent.has(models.digest(path))
