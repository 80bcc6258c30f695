"""The real thing: Ray, an emulated board behind SSH, and processes that are killed or interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from searches import TINY, Search, events_in

from harness.errors import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("searches")


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> tuple[bytes, str, str]:
    """candidates.json, stdout and stderr of a search that nobody disturbs, with ``--json``."""
    search = Search(folder / "whole", *TINY, "--json")
    code, out, err = search.end()
    assert code == 0, err
    assert search.gone() == {}
    return (folder / "whole" / "candidates.json").read_bytes(), out, err


def result(run_dir: Path) -> bytes:
    return (run_dir / "candidates.json").read_bytes()


def test_json_is_one_object_and_nothing_else(folder: Path, uninterrupted: tuple[bytes, str, str]) -> None:
    written, out, err = uninterrupted
    assert json.loads(out) == json.loads(written)
    assert err == ""
    run = folder / "whole"
    assert {"ledger.jsonl", "summary.json", "candidates.json", "report.html", "trials.csv"} <= {
        path.name for path in run.iterdir()
    }
    assert any((run / "logs").iterdir())
    assert {"recipe.json", "model.onnx", "measurement.json", "samples.parquet"} <= {
        path.name for path in (run / "0000").iterdir()
    }


def test_killed_again_and_again(folder: Path, uninterrupted: tuple[bytes, str, str]) -> None:
    run = folder / "killed"
    # A few of them for real; all of them are gone through in test_killed_anywhere.
    for failpoint in ("wire.before.measure@5", "ledger.before.final@2"):
        search = Search(run, *TINY, "--resume", failpoint=failpoint)
        code, _, err = search.end()
        assert code == -signal.SIGKILL, f"{failpoint}: {err}"
        assert search.gone() == {}, failpoint
    code, _, err = Search(run, *TINY, "--resume").end()
    assert code == 0, err
    assert result(run) == uninterrupted[0]


def test_a_quantizer_and_the_boards_server_die(folder: Path, uninterrupted: tuple[bytes, str, str]) -> None:
    run = folder / "helpers"
    search = Search(run)
    search.until("proposed")
    assert search.kill("ray::QuantizerActor") >= 1
    search.until("deployed", 2)
    assert search.kill("emulated/server.py") >= 1
    code, _, err = search.end()
    assert code == 0, err
    # What the board did until it died is charged, and that is another time every time.
    assert without_device_time(json.loads(result(run))) == without_device_time(json.loads(uninterrupted[0]))
    assert search.gone() == {}


def without_device_time(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_device_time(item) for name, item in value.items() if name != "device_seconds"}
    return [without_device_time(item) for item in value] if isinstance(value, list) else value


def test_an_actor_that_cannot_be_replaced_dies(folder: Path, uninterrupted: tuple[bytes, str, str]) -> None:
    """The search ends, says how to go on, and counts no trial out."""
    run = folder / "actors"
    for actor in ("ray::BoardActor", "ray::RecorderActor"):
        search = Search(run, *TINY, "--resume")
        search.until("deployed", sum(e["event"] == "deployed" for e in events_in(run)) + 1)
        assert search.kill(actor) == 1
        code, _, err = search.end()
        assert code == ExitCode.INTERNAL, err
        assert "a process of the search died" in err
        assert "--resume" in err
        assert search.gone() == {}
    assert not [event for event in events_in(run) if event["event"] == "failed"]
    code, _, err = Search(run, *TINY, "--resume").end()
    assert code == 0, err
    assert result(run) == uninterrupted[0]


def test_ctrl_c_once(folder: Path, uninterrupted: tuple[bytes, str, str]) -> None:
    run = folder / "interrupted"
    search = Search(run)
    search.until("deployed")
    # A terminal sends it to the whole group.
    os.killpg(search.process.pid, signal.SIGINT)
    code, _, err = search.end()
    assert code == ExitCode.INTERRUPTED, err
    assert search.gone() == {}
    assert "Traceback" not in err
    # The step in hand was finished, and everything is written.
    assert sum(e["event"] == "measured" for e in events_in(run)) == 1
    assert {"summary.json", "candidates.json", "report.html"} <= {path.name for path in run.iterdir()}
    command = re.search(r"interrupted; go on with:\n  (.+)", err)
    assert command is not None, err

    again = Search(run, command=command[1])
    again.until("resumed")
    again.until("deployed", 2)
    os.kill(again.process.pid, signal.SIGINT)
    code, _, err = again.end()
    assert code == ExitCode.INTERRUPTED, err
    code, _, err = Search(run, command=command[1]).end()
    assert code == 0, err
    assert result(run) == uninterrupted[0]


def test_ctrl_c_twice(folder: Path, uninterrupted: tuple[bytes, str, str]) -> None:
    run = folder / "twice"
    search = Search(run)
    search.until("deployed")
    os.killpg(search.process.pid, signal.SIGINT)
    os.killpg(search.process.pid, signal.SIGINT)
    code, _, err = search.end()
    assert code == ExitCode.INTERRUPTED, err
    assert "Traceback" not in err
    assert search.gone() == {}
    assert not [event for event in events_in(run) if event["event"] in ("failed", "finished")]
    code, _, err = Search(run, *TINY, "--resume").end()
    assert code == 0, err
    assert result(run) == uninterrupted[0]


def test_a_seed_gives_the_same_on_two_boards(folder: Path) -> None:
    options = (
        "--boards", "rpi5-emulated,ryzen-ai-emulated", "--preset", "standard", "--sampler", "tpe", "--trials", "12",
        "--effort", "quick", "--seed", "11",
    )  # fmt: skip
    for name in ("one", "two"):
        code, _, err = Search(folder / name, *options).end()
        assert code == 0, err
    assert result(folder / "one") == result(folder / "two")
    assert len(json.loads(result(folder / "one"))["candidates"]) > 2


def test_several_nodes(folder: Path, uninterrupted: tuple[bytes, str, str]) -> None:
    """Quantizers and trials find no processor on the first node; boards and the ledger stay with the controller."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=3)
        code, _, err = Search(folder / "nodes", *TINY, "--ray-address", cluster.address).end()
        assert code == 0, err
        assert result(folder / "nodes") == uninterrupted[0]
    finally:
        cluster.shutdown()
