"""``check`` and ``clean``: what is wrong with a board, in words, and the exit code for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_agent import FakeAgent, with_facts, with_state

from device_agents.contract import (
    AgentError,
    BoardUnfit,
    DeviceCrash,
    DeviceTimeout,
    LeaseLost,
    LinkError,
    ModelRejected,
    Untrusted,
)
from harness.boards.agents import open_agent
from harness.boards.check import check_board
from harness.boards.clean import clean_board
from harness.boards.findings import CheckReport, Finding
from harness.boards.host_lock import host_lock, times_on_this_host
from harness.boards.registry import load_registry
from harness.boards.schema import Board
from harness.errors import BoardUnavailable, ExitCode


def board(**sections: Any) -> Board:
    base: dict[str, Any] = {
        "apiVersion": "boardtune/v1",
        "kind": "Board",
        "metadata": {"name": "pi"},
        "transport": {"kind": "ssh", "host": "pi.local"},
    }
    return Board.model_validate({**base, **sections})


def bad(report: CheckReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.level != "ok"]


def test_good_board_is_ready() -> None:
    agent = FakeAgent()
    report = check_board(board(), agent)
    assert (report.level, report.exit_code) == ("ok", ExitCode.OK)
    assert report.canary_median_ms == pytest.approx(1.0)
    assert agent.calls == ["connect", "health", "self_test", "deploy", "load", "measure", "measure", "unload", "close"]
    text = " ".join(finding.what for finding in report.findings)
    for fact in (
        "Cortex-A76",
        "4 processors",
        "4.0 GiB",
        "Debian 12",
        "Python 3.11.2",
        "onnxruntime 1.20.0",
        "50 °C",
        "2400 of 2400 MHz",
    ):
        assert fact in text


def test_canary_is_loaded_with_the_boards_own_options() -> None:
    agent = FakeAgent()
    check_board(board(runtime={"threads": {"intra": 3}}), agent)
    assert agent.options is not None
    assert agent.options.intra_op_threads == 3


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (LinkError("connection refused"), "switched on"),
        (DeviceTimeout("no answer in 60 s"), "restart"),
        (Untrusted("host key unknown"), "boardtune boards trust pi"),
        (LeaseLost("another controller holds it"), "wait until"),
        (BoardUnfit("no python3 there"), "transport.python"),
        (BoardUnfit("no python3 there", hint="apt install python3"), "apt install python3"),
    ],
)
def test_unreachable_board(error: AgentError, hint: str) -> None:
    agent = FakeAgent(fails={"connect": error})
    report = check_board(board(), agent)
    assert report.exit_code == ExitCode.BOARD_UNAVAILABLE
    assert [finding.what for finding in bad(report)] == [error.message]
    assert hint in bad(report)[0].hint
    assert agent.calls[-1] == "close"


@pytest.mark.parametrize(
    ("agent", "sections", "level", "what"),
    [
        (FakeAgent(), {"runtime": {"providers": ["CUDAExecutionProvider"]}}, "error", "has no CUDAExecutionProvider"),
        (FakeAgent(), {"runtime": {"threads": {"intra": 8}}}, "warning", "threads.intra is 8, and the board has 4"),
        (with_facts(runtime="esp-dl"), {}, "error", "its runtime is esp-dl"),
        (
            FakeAgent(),
            {"state": {"governor": "powersave"}},
            "warning",
            "governor is performance, its file wants powersave",
        ),
        (FakeAgent(), {"state": {"power_mode": "turbo"}}, "warning", "power_mode is balanced, its file wants turbo"),
        (with_state(power_mode=None), {"state": {"power_mode": "turbo"}}, "warning", "does not show its own"),
        (with_state(governor="ondemand"), {}, "warning", "governor is ondemand"),
        (
            with_state(temperature_c=91.0),
            {"state": {"max_temperature_c": 80}},
            "warning",
            "91 °C hot, more than the 80 °C",
        ),
        (with_state(temperature_c=None), {"state": {"max_temperature_c": 80}}, "warning", "shows no temperature"),
        (with_state(throttled=True), {}, "warning", "throttled"),
        (with_state(load_average=3.0), {}, "warning", "load average 3.0 on 4 processors"),
        (FakeAgent(), {"limits": {"max_memory_bytes": "8GiB"}}, "warning", "8.0 GiB, and the board has 4.0 GiB"),
        (FakeAgent(), {"limits": {"max_model_bytes": "60GiB"}}, "warning", "limits.max_model_bytes"),
        (with_state(disk_free_bytes=2**20), {}, "warning", "cache_bytes is 1.0 GiB"),
        (FakeAgent(), {"limits": {"min_offload": 0.5}}, "error", "has no accelerator"),
        (FakeAgent(), {"limits": {"operators": ["Conv", "Cnov"]}}, "warning", "'Cnov', which is no ONNX operator"),
        (FakeAgent(findings={"noise": "problem: 60 %"}), {}, "warning", "noise: 60 %"),
        (FakeAgent(findings={"arithmetic": "problem: wrong"}), {}, "error", "arithmetic: wrong"),
        (FakeAgent(findings={"disk": "problem: full"}), {}, "warning", "disk: full"),
        (FakeAgent(canary_ns=1_200_000), {"canary": {"median_ms": 1.0}}, "warning", "1.20 times the 1 ms"),
        (FakeAgent(canary_ns=800_000), {"canary": {"median_ms": 1.0}}, "warning", "0.80 times the 1 ms"),
        (FakeAgent(fails={"load": ModelRejected("opset 13 unknown")}), {}, "error", "opset 13 unknown"),
        (FakeAgent(fails={"measure": DeviceCrash("signal 11")}), {}, "error", "signal 11"),
    ],
)
def test_one_thing_is_wrong(agent: FakeAgent, sections: dict[str, Any], level: str, what: str) -> None:
    report = check_board(board(**sections), agent)
    (finding,) = bad(report)
    assert finding.level == level
    assert what in finding.what
    assert report.level == level
    assert report.exit_code == (ExitCode.BOARD_UNAVAILABLE if level == "error" else ExitCode.OK)
    assert agent.calls[-1] == "close"


@pytest.mark.parametrize(
    ("agent", "sections"),
    [
        (FakeAgent(), {"state": {"governor": "performance", "power_mode": "balanced", "max_temperature_c": 60}}),
        (with_state(load_average=3.0), {"noise": "shared"}),
        (FakeAgent(findings={"noise": "problem: 60 %"}), {"noise": "shared"}),
        (FakeAgent(canary_ns=1_040_000), {"canary": {"median_ms": 1.0}}),
        (with_state(temperature_c=None, governor=None, load_average=None, throttled=None, disk_free_bytes=None), {}),
        (FakeAgent(), {"limits": {"operators": ["Conv", "com.microsoft:QGemm"]}}),
    ],
)
def test_nothing_is_wrong(agent: FakeAgent, sections: dict[str, Any]) -> None:
    assert bad(check_board(board(**sections), agent)) == []


def test_nothing_is_timed_on_a_board_that_computes_wrongly() -> None:
    agent = FakeAgent(findings={"arithmetic": "problem: wrong"})
    assert check_board(board(), agent).canary_median_ms is None
    assert "measure" not in agent.calls


def test_secret_that_cannot_be_read_is_a_mistake_in_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_SECRET", raising=False)
    transport = {"kind": "ssh", "host": "pi", "password": "env:NO_SUCH_SECRET"}
    report = check_board(board(transport=transport))
    assert report.exit_code == ExitCode.USAGE
    assert "NO_SUCH_SECRET, which is not set" in report.findings[0].what


def test_missing_canary_is_told_before_the_board_is_touched(tmp_path: Path) -> None:
    agent = FakeAgent()
    canary = {"model": str(tmp_path / "own.onnx"), "sha256": "a" * 64}
    report = check_board(board(canary=canary), agent)
    assert report.exit_code == ExitCode.USAGE
    assert agent.calls == ["close"]


def test_report_is_json() -> None:
    content = json.loads(json.dumps(check_board(board(), FakeAgent()).to_json()))
    assert content["board"] == "pi"
    assert content["facts"]["cpu_count"] == 4
    assert content["state"]["governor"] == "performance"


def test_clean_says_what_was_removed_and_closes() -> None:
    agent = FakeAgent(left=(".boardtune",))
    assert clean_board(board(), agent) == (".boardtune",)
    assert agent.calls == ["connect", "clean", "close"]


def test_clean_of_an_unreachable_board() -> None:
    agent = FakeAgent(fails={"connect": LinkError("no route")})
    with pytest.raises(BoardUnavailable, match="no route") as caught:
        clean_board(board(), agent)
    assert caught.value.exit_code == ExitCode.BOARD_UNAVAILABLE
    assert agent.calls[-1] == "close"


def local_board(tmp_path: Path, **sections: Any) -> Board:
    return board(transport={"kind": "local", "workdir": str(tmp_path / "workdir")}, noise="shared", **sections)


def test_this_machine_passes_for_real(tmp_path: Path) -> None:
    report = check_board(local_board(tmp_path), seconds=0.2)
    assert [finding for finding in report.findings if finding.level == "error"] == []
    assert report.exit_code == ExitCode.OK
    assert report.facts is not None
    assert "CPUExecutionProvider" in report.facts.providers
    assert report.canary_median_ms is not None
    assert report.canary_median_ms > 0


def test_this_machine_without_a_provider_it_cannot_have(tmp_path: Path) -> None:
    runtime = {"providers": ["VitisAIExecutionProvider", "CPUExecutionProvider"]}
    report = check_board(local_board(tmp_path, runtime=runtime), seconds=0.2)
    assert report.exit_code == ExitCode.BOARD_UNAVAILABLE
    assert any("has no VitisAIExecutionProvider" in finding.what for finding in report.findings)


def test_this_machine_is_clean_afterwards(tmp_path: Path) -> None:
    local = local_board(tmp_path)
    check_board(local, seconds=0.2)
    assert list((tmp_path / "workdir").rglob("*.onnx")) != [] or any((tmp_path / "workdir").iterdir())
    assert clean_board(local) != ()
    left = tmp_path / "workdir"
    assert not left.exists() or not any(path.is_file() and path.stat().st_size > 1000 for path in left.rglob("*"))


def test_a_board_that_shares_this_hosts_processors_waits_for_its_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.boards.check._CLOCK_DEADLINE_S", 0.05)
    agent = FakeAgent()
    with host_lock().clock(1.0):
        report = check_board(local_board(tmp_path), agent)
        elsewhere = check_board(board(), FakeAgent())
    assert any("not timed" in finding.what for finding in bad(report))
    assert "measure" not in agent.calls
    assert elsewhere.level == "ok"


def test_which_boards_time_on_this_host() -> None:
    assert times_on_this_host(load_registry().get("local"))
    assert not times_on_this_host(board())


@pytest.mark.parametrize(
    ("host", "more", "here"),
    [
        ("localhost", {}, True),
        ("127.0.0.1", {}, True),
        ("127.8.9.1", {"port": 2222}, True),
        ("::1", {}, True),
        ("board.localhost", {}, True),
        ("192.0.2.1", {}, False),
        ("localhost.example.org", {}, False),
        ("127.0.0.1", {"proxy_jump": "gateway"}, False),
    ],
)
def test_boards_over_ssh_to_this_host(host: str, more: dict[str, Any], here: bool) -> None:
    assert times_on_this_host(board(transport={"kind": "ssh", "host": host, **more})) == here


def test_agents_are_made_without_connecting(tmp_path: Path) -> None:
    for value in (board(), local_board(tmp_path)):
        agent = open_agent(value)
        assert agent.name == "pi"
        agent.close()
