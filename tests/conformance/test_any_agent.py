"""What holds for every agent, whatever its transport and runtime: machines with the runner, microcontrollers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import agents_serial
import conftest
import numpy as np
import pytest
from kits import Arrays, Kit, espdl_kit, onnx_kit, sha256_of

from device_agents.contract import (
    Agent,
    BadData,
    BlockRequest,
    BoardUnfit,
    DataRef,
    LinkError,
    LoadReport,
    ModelRejected,
    RuntimeOptions,
)

FACTORIES = {
    "local": (
        conftest.factories()["local"],
        onnx_kit,
    ),  # of the runner's agents one will do: the others have their battery
    "chip": (agents_serial.chip, espdl_kit),
    "firmware": (agents_serial.firmware, espdl_kit),
}


@pytest.fixture(scope="module", params=list(FACTORIES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Agent, Kit]]:
    """A connected agent, and the model its board runs."""
    factory, kit = FACTORIES[request.param]
    with factory(tmp_path_factory.mktemp(request.param)) as agent:
        agent.connect()
        yield agent, kit()


@pytest.fixture
def agent(pair: tuple[Agent, Kit]) -> Iterator[Agent]:
    pair[0].connect()
    return pair[0]


@pytest.fixture
def kit(pair: tuple[Agent, Kit]) -> Kit:
    return pair[1]


def load(agent: Agent, kit: Kit, tmp_path: Path) -> LoadReport:
    path = kit.model(tmp_path / "m.onnx")
    agent.deploy(path, sha256_of(path))
    return agent.load(sha256_of(path), RuntimeOptions())


def assert_equal(got: Arrays, expected: Arrays) -> None:
    assert set(got) == set(expected)
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_allclose(got[name], array, rtol=1e-6)


def test_facts_state_and_self_test(agent: Agent) -> None:
    facts = agent.describe()
    assert facts.boot_id == agent.health().boot_id
    assert facts.hardware_id
    assert facts.memory_bytes > 0
    assert len(facts.runner_sha256) == 64
    assert agent.health().clock_ns <= agent.health().clock_ns
    findings = agent.self_test(seconds=0.1)
    assert findings["arithmetic"].startswith("ok")
    assert all(text.startswith(("ok", "problem")) for text in findings.values())


def test_closed_is_a_link_error_and_connecting_again_is_the_same_boot(agent: Agent) -> None:
    boot_id = agent.describe().boot_id
    agent.close()
    agent.close()
    with pytest.raises(LinkError) as caught:
        agent.health()
    assert agent.name in str(caught.value)
    assert agent.connect().boot_id == boot_id


def test_files_are_deployed_once_and_checked(agent: Agent, kit: Kit, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(np.random.default_rng(1).bytes(300_000))
    assert not agent.has(sha256_of(path))
    first = agent.deploy(path, sha256_of(path))
    assert (first.sent_bytes, first.size_bytes) == (300_000, 300_000)
    assert agent.deploy(path, sha256_of(path)).sent_bytes == 0
    with pytest.raises(BadData, match=sha256_of(path)):
        agent.deploy(path, "ab" * 32)
    with pytest.raises(ModelRejected):
        agent.load(sha256_of(path), RuntimeOptions())
    with pytest.raises(BadData, match="deploy"):
        agent.load("ef" * 32, RuntimeOptions())
    whole = kit.model(tmp_path / "m.onnx")
    agent.deploy(whole, sha256_of(whole))
    with pytest.raises(BoardUnfit, match="CUDAExecutionProvider"):
        agent.load(sha256_of(whole), RuntimeOptions(providers=(("CUDAExecutionProvider", ()),)))


def test_a_model_computes_what_it_must(agent: Agent, kit: Kit, tmp_path: Path) -> None:
    report = load(agent, kit, tmp_path)
    samples = kit.samples(20)
    assert [name for name, _, _ in report.inputs] == list(samples)
    assert set(report.outputs) == set(kit.expected(samples))
    assert report.load_ns > 0
    assert any(report.placement.nodes.values())
    assert_equal(dict(agent.infer(report.session, samples, batch=1).outputs), kit.expected(samples))
    data = tmp_path / "data.npz"
    np.savez(data, **samples)
    agent.deploy(data, sha256_of(data))
    rows = (7, 0, 7)
    got = agent.infer(report.session, DataRef(sha256_of(data), rows)).outputs
    assert_equal(dict(got), kit.expected({name: array[list(rows)] for name, array in samples.items()}))
    with pytest.raises(BadData, match="20 samples"):
        agent.infer(report.session, DataRef(sha256_of(data), (0, 20)))
    agent.unload(report.session)


def test_blocks_have_raw_times_and_end_as_asked(agent: Agent, kit: Kit, tmp_path: Path) -> None:
    report = load(agent, kit, tmp_path)
    samples = kit.samples(4)
    first = agent.measure(report.session, samples, BlockRequest(30, 1, 10**11, rows=3))
    assert first.samples_ns.dtype == np.int64
    assert len(first.samples_ns) == 30
    assert (first.samples_ns > 0).all()
    assert first.first_ns is not None
    assert first.boot_id == report.boot_id == first.before.boot_id == first.after.boot_id
    assert first.after.clock_ns - first.before.clock_ns >= first.samples_ns.sum()
    second = agent.measure(report.session, samples, BlockRequest(1, 5_000_000, 10**11))
    assert second.first_ns is None
    assert second.after.clock_ns - second.before.clock_ns >= 5_000_000
    cut = agent.measure(report.session, samples, BlockRequest(10**9, 10**12, 3_000_000))
    assert cut.samples_ns[:-1].sum() <= 3_000_000
    agent.unload(report.session)


def test_two_sessions_side_by_side(agent: Agent, kit: Kit, tmp_path: Path) -> None:
    one, two = load(agent, kit, tmp_path), load(agent, kit, tmp_path)
    assert one.session != two.session
    samples = kit.samples(3)
    for session in (one.session, two.session, one.session):
        assert_equal(dict(agent.infer(session, samples).outputs), kit.expected(samples))
    agent.unload(one.session)
    agent.unload(one.session)
    with pytest.raises(BadData, match="session"):
        agent.infer(one.session, samples)
    assert_equal(dict(agent.infer(two.session, samples).outputs), kit.expected(samples))
    agent.unload(two.session)


def test_samples_that_do_not_fit_are_bad_data_and_nothing_breaks(agent: Agent, kit: Kit, tmp_path: Path) -> None:
    report = load(agent, kit, tmp_path)
    (name, good), *_ = kit.samples(2).items()
    bad = [
        {},
        {"other": good},
        {name: good, "other": good},
        {name: good[:0]},
        {name: good[..., None]},
        {name: good.astype(np.float64)},
        {name: np.array([[None]], dtype=object)},
    ]
    for samples in bad:
        with pytest.raises(BadData):
            agent.infer(report.session, samples)
        with pytest.raises(BadData):
            agent.measure(report.session, samples, BlockRequest(1, 1, 10**9))
    samples = kit.samples(2)
    assert_equal(dict(agent.infer(report.session, samples).outputs), kit.expected(samples))
    agent.unload(report.session)


def test_recovering_loses_sessions_and_cleaning_loses_files(agent: Agent, kit: Kit, tmp_path: Path) -> None:
    report = load(agent, kit, tmp_path)
    assert agent.recover().boot_id == report.boot_id
    with pytest.raises(LinkError):
        agent.infer(report.session, kit.samples(1))
    path = kit.model(tmp_path / "m.onnx")
    assert agent.has(sha256_of(path))
    assert f"models/{sha256_of(path)}" in agent.clean()
    agent.close()
    agent.connect()
    assert not agent.has(sha256_of(path))
