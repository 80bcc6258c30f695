"""Boards that cannot be used: exit code 4, the board's name, and what to do about it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from harness.errors import ExitCode
from harness.ledger.run_directory import RunDirectory
from tests.controller import local_ray
from tests.ssh.openssh import OpenSshServer, missing_openssh, running_sshd

Boardtune = Callable[..., tuple[int, str, str]]
EMULATED = yaml.safe_load((Path(__file__).parents[2] / "boards" / "rpi5-emulated.yaml").read_text())


def emulated(name: str, *faults: dict[str, Any], **sections: Any) -> None:
    content = {**EMULATED, **sections, "metadata": {"name": name}}
    content["emulated"] = {**EMULATED["emulated"], "faults": list(faults)}
    content["recovery"] = {"cool_down_s": 0, "retries": 1}
    Path(f"boards/{name}.yaml").write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"kind": "refuse"}, "is this the port of the ssh server?"),
        ({"kind": "reject_login"}, "publickey"),
        ({"kind": "changed_host_key"}, "host key"),
        ({"kind": "no_python"}, "python"),
        ({"kind": "no_runtime"}, "onnxruntime"),
        ({"kind": "old_runtime"}, "1.16"),
        ({"kind": "disk_full", "after_bytes": 1000}, "disk"),
        ({"kind": "unwritable"}, "writ"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_unusable(boardtune: Boardtune, fault: dict[str, Any], told: str) -> None:
    emulated("pi", fault)
    code, out, err = boardtune("measure", "model.onnx", "--boards", "pi", "--effort", "quick")
    assert code == ExitCode.BOARD_UNAVAILABLE, err
    assert "board 'pi'" in err
    assert told in err.lower()
    assert out == ""


@pytest.mark.parametrize("fault", ["crash_in_load", "out_of_memory"])
def test_a_model_that_the_board_cannot_take(boardtune: Boardtune, fault: str) -> None:
    """The board is well: the canary loads, the model does not."""
    emulated("pi", {"kind": fault})
    code, out, err = boardtune("measure", "model.onnx", "--boards", "pi", "--effort", "quick")
    assert code == ExitCode.NO_FEASIBLE_CANDIDATE, err
    assert "board 'pi'" in err
    assert out == ""


@pytest.mark.parametrize(("name", "meant"), [("alfa", "alpha"), ("rpi5emulated", "rpi5-emulated"), ("locl", "local")])
def test_unknown_names(boardtune: Boardtune, name: str, meant: str) -> None:
    for words in (("measure", "model.onnx"), ("search", "--model", "model.onnx", "--calib", "calib.npz")):
        code, _, err = boardtune(*words, "--boards", f"local,{name}")
        assert code == ExitCode.USAGE
        assert f"unknown board '{name}'" in err
        assert meant in err


def test_measure_as_json(boardtune: Boardtune) -> None:
    emulated("pi")
    code, out, err = boardtune("measure", "--model", "model.onnx", "--boards", "pi", "--effort", "quick", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert set(found) == {"pi"}
    assert found["pi"]["emulated"] is True
    assert found["pi"]["verdict"] == "valid"
    assert found["pi"]["latency_ns"]["p50"] > 0


def test_measurements_that_cannot_be_valid(boardtune: Boardtune) -> None:
    emulated("pi", state={"governor": "userspace"})
    code, out, _ = boardtune("measure", "model.onnx", "--boards", "pi", "--effort", "quick")
    assert code == ExitCode.MEASUREMENTS_INVALID
    assert "pi (emulated): invalid" in out
    assert "because" in out
    assert "userspace" in out


@pytest.mark.skipif(missing_openssh() is not None, reason=str(missing_openssh()))
class TestOverSsh:
    @pytest.fixture(scope="class")
    def server(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSshServer]:
        with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
            yield server

    def board(self, server: OpenSshServer, **changes: Any) -> None:
        transport = {
            "kind": "ssh", "host": server.host, "port": server.port, "user": server.user, "key": str(server.user_key),
            "host_key": server.host_fingerprint("ed25519"), "use_agent": False, "config": os.devnull,
            "python": sys.executable, "workdir": str(Path("board").absolute()), **changes,
        }  # fmt: skip
        content = {
            "apiVersion": "boardtune/v1", "kind": "Board", "metadata": {"name": "bench"}, "noise": "shared",
            "transport": {name: value for name, value in transport.items() if value is not None},
            "recovery": {"cool_down_s": 0},
        }  # fmt: skip
        Path("boards/bench.yaml").write_text(yaml.safe_dump(content))

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"user": "nobody-here"}, "bench"),
            ({"host_key": "SHA256:" + "A" * 43}, "host key"),
            ({"host_key": None}, "boards trust"),
            ({"python": "/usr/bin/no-such-python"}, "python"),
            ({"port": 1}, "refused"),
            ({"workdir": "/proc/boardtune"}, "/proc/boardtune"),
        ],
        ids=["login", "changed", "unknown", "python", "refused", "unwritable"],
    )
    def test_unusable(self, boardtune: Boardtune, server: OpenSshServer, changes: dict[str, Any], told: str) -> None:
        self.board(server, **changes)
        code, out, err = boardtune("measure", "model.onnx", "--boards", "bench", "--effort", "quick")
        assert code == ExitCode.BOARD_UNAVAILABLE, err
        assert "'bench'" in err
        assert told in err.lower()
        assert out == ""

    def test_usable(self, boardtune: Boardtune, server: OpenSshServer) -> None:
        self.board(server)
        code, out, err = boardtune("measure", "model.onnx", "--boards", "bench", "--effort", "quick")
        assert code in (ExitCode.OK, ExitCode.MEASUREMENTS_INVALID), err
        assert "placement 1 nodes on CPUExecutionProvider" in out


class TestSearches:
    """Without Ray's processes, with everything else as it is."""

    SEARCH = ("search", "--model", "model.onnx", "--calib", "calib.npz", "--eval", "eval.npz", "--run-dir", "run",
              "--trials", "3", "--top-k", "1", "--effort", "quick", "--min-accuracy", "-50pp")  # fmt: skip

    @pytest.fixture(autouse=True)
    def _threads(self) -> Iterator[None]:
        with local_ray.installed(), mock.patch("harness.report.build.write_report", lambda run: run.path):
            yield

    def test_done(self, boardtune: Boardtune) -> None:
        emulated("pi")
        code, out, err = boardtune(*self.SEARCH, "--boards", "pi", "--json")
        assert code == ExitCode.OK, err
        assert json.loads(out) == json.loads(Path("run/candidates.json").read_text())
        code, out, err = boardtune(*self.SEARCH, "--boards", "pi")
        assert code == ExitCode.USAGE
        assert "holds a run already" in err
        code, out, err = boardtune(*self.SEARCH, "--boards", "pi", "--resume")
        assert code == ExitCode.OK, err
        assert "report: " in out

    def test_no_board(self, boardtune: Boardtune) -> None:
        emulated("pi", {"kind": "refuse"})
        emulated("other")
        code, _, err = boardtune(*self.SEARCH, "--boards", "pi,other")
        assert code == ExitCode.BOARD_UNAVAILABLE, err
        assert "board 'pi'" in err
        assert "'other'" not in err

    def test_nothing_keeps_the_constraint(self, boardtune: Boardtune) -> None:
        emulated("pi")
        code, out, err = boardtune(*self.SEARCH, "--boards", "pi", "--max-latency", "1us")
        assert code == ExitCode.NO_FEASIBLE_CANDIDATE
        assert "no feasible candidate: as many trials as were asked for" in err
        assert "nothing to ship on pi" in out

    def test_the_budget_ends_before_anything_is_feasible(self, boardtune: Boardtune) -> None:
        emulated("pi")
        code, _, err = boardtune(
            *self.SEARCH, "--boards", "pi", "--max-latency", "1us", "--budget", "1ms", "--trials", "8"
        )
        assert code == ExitCode.BUDGET_ENDED
        assert "--budget" in err

    def test_nothing_valid(self, boardtune: Boardtune) -> None:
        emulated("pi", state={"governor": "userspace"})
        code, _, err = boardtune(*self.SEARCH, "--boards", "pi")
        assert code == ExitCode.MEASUREMENTS_INVALID, err

    def test_run_directories(self, boardtune: Boardtune, tmp_path: Path) -> None:
        emulated("pi")
        search = (*self.SEARCH, "--boards", "pi")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "thesis.txt").write_text("mine")
        code, _, err = boardtune(*search)
        assert code == ExitCode.USAGE
        assert "thesis.txt" in err
        (tmp_path / "run" / "thesis.txt").unlink()

        with RunDirectory.create(tmp_path / "run", {"key": {}}):
            code, _, err = boardtune(*search, "--resume")
        assert code == ExitCode.USAGE
        assert f"in use by process {os.getpid()}" in err

        code, _, err = boardtune(*search, "--resume")
        assert code == ExitCode.USAGE
        assert "the run here is of something else" in err
        assert "model: the run has null" in err

        ledger = tmp_path / "run" / "ledger.jsonl"
        ledger.write_text('{"seq":0,"event":"run","ti')
        code, _, err = boardtune(*search, "--resume")
        assert code == ExitCode.OK, err
        assert "the last line was unfinished" in err

        lines = ledger.read_text().splitlines(keepends=True)
        ledger.write_text("".join([lines[0], lines[1].replace("aarch64", "armv7"), *lines[2:]]))
        code, _, err = boardtune(*search, "--resume")
        assert code == ExitCode.INTERNAL
        assert "ledger.jsonl:2" in err

        ledger.unlink()
        code, _, err = boardtune(*search, "--run-dir", tmp_path / "model.onnx" / "run")
        assert code == ExitCode.USAGE
        assert "run directory" in err
