"""MLPerf Tiny firmware: timing from its own stamps, its outputs, and everything that can go wrong on the line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from device_agents.contract import (
    AgentError,
    BadData,
    BlockRequest,
    BoardUnfit,
    DataRef,
    DeviceCrash,
    DeviceReboot,
    DeviceTimeout,
    LeaseLost,
    LinkError,
    ModelRejected,
    Pipeline,
    RuntimeOptions,
)
from device_agents.serial.mlperf_line import Clock
from device_agents.serial.mlperf_tiny import MlperfTinyAgent
from device_agents.serial.port import Port, SerialTarget
from harness.boards.canary import canary_path, canary_sha256
from harness.boards.own_model import doubts, sending_s
from harness.boards.schema import Board
from harness.cli.main import cli
from harness.errors import ConfigError
from tests.serial.mlperf_firmware import BIASES, INPUTS, OUTPUTS, TIMES_US, WEIGHTS, running

QUICK = BlockRequest(min_count=6, min_ns=0, max_ns=20_000_000_000)
COMMAND_S = 20.0


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The firmware's model, written as ONNX and computed by ONNX Runtime."""
    initializers = [
        numpy_helper.from_array(np.array(WEIGHTS, np.float32).T.copy(), "w"),
        numpy_helper.from_array(np.array(BIASES, np.float32), "b"),
        numpy_helper.from_array(np.float32(8), "eight"),
    ]
    nodes = [
        helper.make_node("Cast", ["x"], ["real"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["real", "w"], ["product"], name="matmul"),
        helper.make_node("Add", ["product", "b"], ["sum"], name="add"),
        helper.make_node("Div", ["sum", "eight"], ["y"], name="div"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT8, ["n", INPUTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", OUTPUTS])],
        initializers,
    )
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def data(model: Path) -> Path:
    path = model.parent / "rows.npz"
    x = np.random.default_rng(3).integers(-128, 128, (12, INPUTS)).astype(np.int8)
    np.savez(path, x=x)
    return path


def expected(model: Path, data: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": np.load(data)["x"]})[0]


@contextmanager
def agent_on(port: str, folder: Path, **options: object) -> Iterator[MlperfTinyAgent]:
    agent = MlperfTinyAgent("tiny", SerialTarget(folder, port=port, reset="none", **options))  # type: ignore[arg-type]
    try:
        yield agent
    finally:
        agent.close()


@contextmanager
def loaded(tmp_path: Path, model: Path, data: Path, fault: str = "", start_us: int = 1_000_000):
    """(agent, session, reference to the samples, firmware's process)."""
    with running(fault, start_us) as (port, process), agent_on(port, tmp_path) as agent:
        agent.connect()
        for path in (model, data):
            assert agent.deploy(path, digest(path)).sent_bytes == 0
        yield agent, agent.load(digest(model), RuntimeOptions()).session, DataRef(digest(data)), process


def test_what_the_firmware_says_of_itself(tmp_path: Path) -> None:
    with running() as (port, _), agent_on(port, tmp_path) as agent:
        facts = agent.connect()
        assert (facts.cpu_model, facts.runtime, facts.extra["firmware_model"]) == ("stand-in", "mlperf-tiny", "tiny01")
        assert facts.runtime_version == "ULPMark for tinyML Firmware V0.0.1"
        assert agent.describe() == facts
        tested = agent.self_test(0.3)
        assert tested["clock"].startswith("ok")
        assert "cannot be checked" in tested["model"]
        first, second = agent.health(), agent.health()
        assert 0 < second.clock_ns - first.clock_ns < 60e9
        assert agent.clean() == ()


def test_times_are_the_devices_own(tmp_path: Path, model: Path, data: Path) -> None:
    with loaded(tmp_path, model, data) as (agent, session, rows, _):
        block = agent.measure(session, rows, QUICK)
        # Every time is one that the firmware's clock has, in turn; what the line takes is in none of them.
        turns = [TIMES_US.index(int(time) // 1000) for time in block.samples_ns]
        assert set(block.samples_ns) == {1000 * time for time in TIMES_US}
        assert turns == [(turns[0] + at) % 3 for at in range(len(turns))]
        assert len(turns) == 6
        assert block.first_ns is None
        assert block.after.clock_ns - block.before.clock_ns >= sum(block.samples_ns)


def test_a_block_ends_by_its_minima_and_its_maximum(tmp_path: Path, model: Path, data: Path) -> None:
    with loaded(tmp_path, model, data) as (agent, session, rows, _):
        assert len(agent.measure(session, rows, BlockRequest(1, 0, 10**12)).samples_ns) == 1
        assert len(agent.measure(session, rows, BlockRequest(1, 100_000_000, 10**12)).samples_ns) > 3
        assert len(agent.measure(session, rows, BlockRequest(10**6, 0, 1)).samples_ns) == 1


def test_outputs_are_those_of_onnx_runtime(tmp_path: Path, model: Path, data: Path) -> None:
    with loaded(tmp_path, model, data) as (agent, session, rows, _):
        got = agent.infer(session, rows).outputs
        assert list(got) == ["y"]
        assert np.array_equal(got["y"], expected(model, data))  # eighths are exact in three decimals
        some = agent.infer(session, DataRef(rows.sha256, (5, 2))).outputs["y"]
        assert np.array_equal(some, expected(model, data)[[5, 2]])


def test_firmware_that_gives_results_only_when_asked(tmp_path: Path, model: Path, data: Path) -> None:
    with loaded(tmp_path, model, data, "results on request") as (agent, session, rows, _):
        assert np.array_equal(agent.infer(session, rows).outputs["y"], expected(model, data))


@pytest.mark.parametrize("fault", ["", "misfits are errors"])
def test_the_canary_runs_on_what_is_in_the_buffer(fault: str, tmp_path: Path) -> None:
    board = board_at("/dev/null")
    with running(fault) as (port, _), agent_on(port, tmp_path) as agent:
        agent.connect()
        assert agent.deploy(canary_path(board), canary_sha256(board)).sent_bytes == 0
        report = agent.load(canary_sha256(board), RuntimeOptions())
        assert (report.inputs, report.placement.evidence) == ((), ())
        assert len(agent.measure(report.session, {}, QUICK).samples_ns) == 6


def test_half_a_command_of_before_is_no_trouble(tmp_path: Path, model: Path, data: Path) -> None:
    with loaded(tmp_path, model, data, "half a command") as (agent, session, rows, _):
        assert np.array_equal(agent.infer(session, rows).outputs["y"], expected(model, data))


def test_a_clock_that_wraps(tmp_path: Path, model: Path, data: Path) -> None:
    with loaded(tmp_path, model, data, start_us=2**32 - 600_000) as (agent, session, rows, _):
        began = agent.health().clock_ns
        block = agent.measure(session, rows, BlockRequest(1, 800_000_000, 20_000_000_000))
        assert set(block.samples_ns) == {1000 * time for time in TIMES_US}
        assert 800_000_000 <= block.after.clock_ns - began < 60_000_000_000


def test_the_clock_tells_wraps_from_resets() -> None:
    clock = Clock()
    assert [clock.take(stamp) for stamp in (2**32 - 1000, 2**32 - 400, 200)] == [0, 600, 1200]
    assert clock.step_us == 600
    with pytest.raises(DeviceReboot, match="went back"):
        clock.take(100)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("silent", DeviceTimeout, "not a byte"),
        ("other firmware", BoardUnfit, "not as MLPerf Tiny"),
        ("noise", LinkError, "no answer was among them"),
        ("energy", BoardUnfit, "built for energy"),
    ],
)
def test_boards_that_cannot_be_driven(fault: str, error: type[AgentError], words: str, tmp_path: Path) -> None:
    with running(fault) as (port, _), agent_on(port, tmp_path) as agent:
        with pytest.raises(error, match=words) as raised:
            agent.connect(COMMAND_S)
        assert raised.value.board == "tiny"


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("refusal", BadData, "warmup must be"),
        ("half results", BadData, "no whole m-results"),
        ("one stamp", BadData, "1 stamps came where 2"),
        ("a wild stamp", BadData, "counts wrong"),
        ("back in time", DeviceReboot, "went back"),
        ("reset", DeviceReboot, "rebooted during infer%"),
        ("panic", DeviceCrash, "LoadProhibited"),
        ("reset in a pause", DeviceReboot, "rebooted during (a pause|infer)"),
        ("endless", BadData, "does not end"),
        ("hang", DeviceTimeout, "breaks off after 'm-lap-us"),
        ("unplugged", LinkError, "gone|no reply|not open"),
    ],
)
def test_faults_in_the_middle(
    fault: str, error: type[AgentError], words: str, tmp_path: Path, model: Path, data: Path
) -> None:
    with loaded(tmp_path, model, data, fault) as (agent, session, rows, _):
        with pytest.raises(error, match=words) as raised:
            agent.measure(session, rows, QUICK, deadline_s=2.0 if fault == "hang" else COMMAND_S)
        assert raised.value.board == "tiny"
        if fault == "hang":
            assert "press its reset button" in raised.value.hint
        if fault in ("endless", "hang", "unplugged"):
            return
        if issubclass(error, DeviceReboot):
            with pytest.raises(LinkError, match="is gone"):
                agent.measure(session, rows, QUICK)
        # Afterwards the board can be used as before.
        before = raised.value
        boot_id = agent.recover(COMMAND_S).boot_id
        again = agent.load(digest(model), RuntimeOptions())
        assert again.boot_id == boot_id, before
        assert np.array_equal(agent.infer(again.session, rows).outputs["y"], expected(model, data))


def test_a_board_that_hangs_is_reset(tmp_path: Path, model: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[str] = []

    def reset(port: Port) -> bool:
        resets.append(port.name)
        return len(resets) == 1

    with loaded(tmp_path, model, data, "hang") as (agent, session, rows, _):
        monkeypatch.setattr(Port, "reset", reset)
        with pytest.raises(DeviceTimeout) as raised:
            agent.measure(session, rows, QUICK, deadline_s=1.0)
        assert (len(resets), raised.value.hint) == (1, "")
        with pytest.raises(DeviceTimeout, match="not a byte"):
            agent.recover(COMMAND_S)
        assert len(resets) == 2


def test_a_reset_while_a_row_is_sent(tmp_path: Path, model: Path, data: Path) -> None:
    with loaded(tmp_path, model, data, "reset while loading") as (agent, session, rows, _):
        with pytest.raises(DeviceReboot, match="rebooted during db%"):
            agent.infer(session, rows)
        agent.recover(COMMAND_S)
        session = agent.load(digest(model), RuntimeOptions()).session
        assert np.array_equal(agent.infer(session, rows).outputs["y"], expected(model, data))


def test_a_log_on_the_same_line(tmp_path: Path, model: Path, data: Path) -> None:
    with loaded(tmp_path, model, data, "chatter") as (agent, session, rows, _):
        assert np.array_equal(agent.infer(session, rows).outputs["y"], expected(model, data))
        assert "sensors: 41.5 C" in agent.line_log


def test_steps_of_the_clock_are_found_and_told(tmp_path: Path, model: Path, data: Path) -> None:
    with loaded(tmp_path, model, data, "coarse") as (agent, session, rows, _):
        assert set(agent.measure(session, rows, QUICK).samples_ns) <= {2_000_000, 3_000_000}
        facts = agent.describe()
        assert facts.extra["clock_step_us"] == "1000"
        board = board_at("/dev/null")
        assert "steps of 1000 µs" in doubts(board, facts, 2.5e6)[1]
        assert len(doubts(board, facts, 2.5e8)) == 1


def test_a_line_that_loses_bytes(tmp_path: Path, model: Path, data: Path) -> None:
    with (
        loaded(tmp_path, model, data, "a lost byte") as (agent, session, rows, _),
        pytest.raises(BadData, match="counts another number"),
    ):
        agent.infer(session, rows)


def test_a_clock_that_stands_still(tmp_path: Path, model: Path, data: Path) -> None:
    with (
        loaded(tmp_path, model, data, "still") as (agent, session, rows, _),
        pytest.raises(BoardUnfit, match="does not move"),
    ):
        agent.measure(session, rows, QUICK)


def changed(model: Path, folder: Path, inputs: int, kind: int = TensorProto.INT8, outputs: int = OUTPUTS) -> Path:
    x = helper.make_tensor_value_info("x", kind, ["n", inputs])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", outputs])
    graph = helper.make_graph([helper.make_node("Other", ["x"], ["y"])], "g", [x], [y])
    path = folder / "other.onnx"
    onnx.save(helper.make_model(graph), path)
    return path


@pytest.mark.parametrize("fault", ["", "misfits are errors"])
@pytest.mark.parametrize(
    ("inputs", "outputs", "error", "words"),
    [
        (17, OUTPUTS, BadData, "expected 16"),
        (5000, OUTPUTS, BoardUnfit, "exceeds maximum of 4096"),
        (INPUTS, 5, BadData, "gives 4 numbers"),
    ],
)
def test_a_model_that_is_not_the_firmwares(
    fault: str, inputs: int, outputs: int, error: type[AgentError], words: str, tmp_path: Path, model: Path
) -> None:
    other = changed(model, tmp_path, inputs, outputs=outputs)
    with running(fault) as (port, _), agent_on(port, tmp_path) as agent:
        agent.connect()
        agent.deploy(other, digest(other))
        session = agent.load(digest(other), RuntimeOptions()).session
        with pytest.raises(error, match=words):
            agent.infer(session, {"x": np.zeros((1, inputs), np.int8)})


def test_requests_that_make_no_sense(tmp_path: Path, model: Path, data: Path) -> None:
    with loaded(tmp_path, model, data) as (agent, session, rows, _):
        one = np.zeros((1, INPUTS), np.int8)
        with pytest.raises(BadData, match="takes 1"):
            agent.infer(session, rows, batch=2)
        with pytest.raises(BadData, match="inputs are"):
            agent.infer(session, {"z": one})
        with pytest.raises(BadData, match="takes int8"):
            agent.infer(session, {"x": one.astype(np.float32)})
        with pytest.raises(BadData, match="no session"):
            agent.infer("s99", rows)
        with pytest.raises(BadData, match="was not deployed"):
            agent.infer(session, DataRef("0" * 64))
        with pytest.raises(BadData, match="was not named"):
            agent.load("0" * 64, RuntimeOptions())
        with pytest.raises(BadData, match="has the sha256"):
            agent.deploy(model, "0" * 64)
        with pytest.raises(BoardUnfit, match="has no XnnpackExecutionProvider"):
            agent.load(digest(model), RuntimeOptions(providers=(("XnnpackExecutionProvider", ()),)))
        with pytest.raises(BoardUnfit, match="post-processing"):
            agent.load(digest(model), RuntimeOptions(), Pipeline(scale=2.0))
        (tmp_path / "no.onnx").write_bytes(b"TFL3 is another format")
        with pytest.raises(ModelRejected, match="not an ONNX model"):
            agent.deploy(tmp_path / "no.onnx", digest(tmp_path / "no.onnx"))
        # None of it took the line out of step.
        assert np.array_equal(agent.infer(session, rows).outputs["y"], expected(model, data))


def test_one_boardtune_at_a_time(tmp_path: Path) -> None:
    with running() as (port, _), agent_on(port, tmp_path) as agent:
        agent.connect()
        with agent_on(port, tmp_path) as other, pytest.raises(LeaseLost):
            other.connect()


# ---- through the command line ----------------------------------------------------------------------------------------


def board_at(port: str, **sections: object) -> Board:
    return Board.model_validate(
        {
            "apiVersion": "boardtune/v1",
            "kind": "Board",
            "metadata": {"name": "tiny"},
            "transport": {"kind": "mlperf_tiny", "port": port},
            **sections,
        }
    )


@pytest.fixture
def boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in ("BOARDTUNE_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    return tmp_path / "boards"


def write(folder: Path, port: str) -> None:
    result = CliRunner().invoke(cli, ["boards", "init", "tiny", "--serial", port, "--template", "mlperf-tiny"])
    assert result.exit_code == 0, result.output


def test_board_file() -> None:
    board = board_at("/dev/ttyACM0")
    assert (board.runtime.name, board.canary.model) == ("mlperf-tiny", "compiled-in")
    with pytest.raises(ValueError, match="does not run behind"):
        board_at("/dev/ttyACM0", runtime={"name": "esp-dl"})


def test_sending_takes_time_by_the_rate() -> None:
    # 31 bytes are 66 characters and "m-ready\\r\\n" is 9: at 9600 baud 78 ms and the bridge's 20 ms.
    slow = board_at("/dev/null")
    slow = slow.model_copy(update={"transport": slow.transport.model_copy(update={"baud": 9600})})
    assert sending_s(slow, 31) == pytest.approx(0.098125)
    assert sending_s(slow, 3100) == pytest.approx(9.8125)


def test_list_show_check_flash(boards: Path) -> None:
    with running() as (port, _):
        write(boards, port)
        run = CliRunner().invoke
        listed = json.loads(run(cli, ["boards", "list", "--json"]).stdout)
        assert port in json.dumps(listed)
        assert "firmware of its own" in str(run(cli, ["boards", "flash", "tiny"]).exception)
        assert "mlperf_tiny" in run(cli, ["boards", "show", "tiny"]).output
        checked = run(cli, ["boards", "check", "tiny"])
        assert checked.exit_code == 0, checked.output
        assert "canary compiled-in: 2.5" in checked.output


@pytest.mark.slow
def test_measure(boards: Path, model: Path, data: Path) -> None:
    rows = np.load(data)["x"]
    labels = expected(model, data).argmax(1)
    labels[:3] = (labels[:3] + 1) % OUTPUTS
    np.savez(boards.parent / "labelled.npz", x=rows, labels=labels)
    with running() as (port, _):
        write(boards, port)
        measured = CliRunner().invoke(
            cli,
            ["measure", str(model), "--boards", "tiny", "--eval", "labelled.npz", "--effort", "quick", "--json"],
        )
        assert measured.exit_code == 0, measured.output
        result = json.loads(measured.stdout)["tiny"]
        assert result["verdict"] == "suspect"
        assert "that the firmware contains the model you named cannot be checked" in " ".join(result["reasons"])
        assert 2_500_000 <= result["latency_ns"]["p50"] <= 2_534_000
        assert result["metrics"]["top1"]["value"] == pytest.approx(0.75)  # 9 of 12


def test_search_is_refused_before_the_board_is_touched(boards: Path, model: Path, data: Path) -> None:
    write(boards, "/dev/no-such-port")
    result = CliRunner().invoke(cli, ["search", str(model), "--calib", str(data), "--boards", "tiny"])
    assert isinstance(result.exception, ConfigError)
    assert "boardtune measure MODEL --boards tiny" in str(result.exception)


def test_console(boards: Path) -> None:
    with running("other firmware") as (port, _):
        write(boards, port)
        result = CliRunner().invoke(cli, ["boards", "console", "tiny", "--seconds", "1", "--json"])
        assert "hello, world" in json.loads(result.stdout)["lines"], result.output
