"""The warm process of a vendor's quantizer, with a stand-in for the vendor's package, run by this Python."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.quantize.cache import Cache
from harness.quantize.contract import Cause
from harness.quantize.vendors import environments, warm
from harness.quantize.vendors.backend import VendorBackend, VendorFailed
from harness.quantize.vendors.environments import Environment, Vendor
from harness.quantize.vendors.warm import WarmVendors
from harness.recipes import vendors as recipe_vendors
from harness.recipes.options import Option, OptionTable
from harness.recipes.recipe import Recipe

PROGRAM = Path(__file__).parent / "stand_in.py"


class StandIn(Vendor):
    @property
    def program(self) -> Path:
        return PROGRAM


VENDOR = StandIn("stand_in", "a stand-in", (), (3, 0), (4, 0), "stand-in")
TABLE = OptionTable("stand_in", {"do": Option("str", "work")})


@pytest.fixture(autouse=True)
def vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_vendors, "VENDOR_TABLES", {"stand_in": TABLE})
    monkeypatch.setattr(warm, "find_environment", lambda name: Environment(VENDOR, Path(sys.executable), {}))


@pytest.fixture
def processes() -> Iterator[WarmVendors]:
    owner = WarmVendors()
    yield owner
    owner.close()


def recipe(do: str = "work") -> Recipe:
    return Recipe(scheme="vendor", backend="stand_in", options=(("do", do),))


class Caller:
    def __init__(self, owner: WarmVendors, folder: Path, memory_bytes: int = 1 << 30) -> None:
        self.folder = folder
        self.phases: list[str] = []
        self.breaths = 0
        self.backend = VendorBackend(
            "stand_in", owner.socket("stand_in"), memory_bytes, self._breathe, self.phases.append, Cache(None)
        )
        for name in ("model.onnx", "calibration.npz"):
            (folder / name).write_bytes(name.encode())

    def _breathe(self) -> None:
        self.breaths += 1

    @property
    def out(self) -> Path:
        return self.folder / "out.bin"

    def quantize(self, do: str = "work") -> tuple[str, ...]:
        return self.backend.quantize(self.folder / "model.onnx", self.folder / "calibration.npz", recipe(do), self.out)


def test_it_makes_the_file_and_says_how(processes: WarmVendors, tmp_path: Path) -> None:
    caller = Caller(processes, tmp_path)
    assert caller.quantize() == ("a notice",)
    assert caller.out.read_text().startswith("made in ")
    assert "stand_in: working" in caller.phases
    assert caller.backend.version().endswith("stand-in 1.0")


def test_one_import_one_child_per_job_and_the_same_hashes(processes: WarmVendors, tmp_path: Path) -> None:
    first, second = Caller(processes, tmp_path), Caller(processes, tmp_path)
    first.quantize()
    made = first.out.read_text()
    second.quantize()
    assert second.out.read_text() != made, "both in one process"
    assert first.backend.settings["started"] == second.backend.settings["started"], "imported twice"
    # Another warm process orders sets the same way.
    processes.close()
    third = Caller(processes, tmp_path)
    third.quantize()
    assert third.backend.settings["started"] != first.backend.settings["started"]
    assert third.backend.settings["hash"] == first.backend.settings["hash"]


def test_the_programs_neighbours_are_not_importable(processes: WarmVendors, tmp_path: Path) -> None:
    caller = Caller(processes, tmp_path)
    caller.quantize()
    assert str(Path(warm.__file__).parent) not in caller.backend.settings["path"]


@pytest.mark.parametrize(
    ("do", "cause", "message", "detail"),
    [
        ("raise", Cause.FAILED, "ValueError: a bad value", "Traceback"),
        ("unsupported", Cause.UNSUPPORTED, "no such layer", "Traceback"),
        ("crash", Cause.CRASHED, "died of SIGSEGV", "last words"),
        ("exit", Cause.CRASHED, r"ended without a result \(exit code 7\)", ""),
    ],
)
def test_failures_are_told_and_the_next_job_works(
    processes: WarmVendors, tmp_path: Path, do: str, cause: Cause, message: str, detail: str
) -> None:
    with pytest.raises(VendorFailed, match=message) as raised:
        Caller(processes, tmp_path).quantize(do)
    assert raised.value.cause == cause
    assert detail in raised.value.detail
    assert Caller(processes, tmp_path).quantize() == ("a notice",)


def test_memory_is_limited(processes: WarmVendors, tmp_path: Path) -> None:
    with pytest.raises(VendorFailed, match="over its limit of 256 MiB") as raised:
        Caller(processes, tmp_path, memory_bytes=256 << 20).quantize("memory")
    assert raised.value.cause == Cause.OUT_OF_MEMORY


@pytest.mark.parametrize("unread", [False, True])
def test_a_caller_that_hangs_up_takes_the_job_along(processes: WarmVendors, tmp_path: Path, unread: bool) -> None:
    """As the kernel does it for a process that is killed, whatever it had read by then."""
    Caller(processes, tmp_path).quantize()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(processes.socket("stand_in")))
        request = {"options": {"do": "hang"}, "out": str(tmp_path / "out.bin")}
        connection.sendall(json.dumps(request).encode() + b"\n")
        # By single bytes: nothing more than this line is taken.
        job = int(json.loads(b"".join(iter(lambda: connection.recv(1), b"\n")))["pid"])
        wait_until((tmp_path / "out.bin.pid").exists)  # its phase is told by then
        if not unread:
            connection.recv(1 << 16)
        assert alive(job)
    wait_until(lambda: not alive(job))
    assert Caller(processes, tmp_path).quantize() == ("a notice",)


def test_a_job_stands_still_while_a_clock_runs(processes: WarmVendors, tmp_path: Path) -> None:
    states: list[str] = []
    caller = Caller(processes, tmp_path)
    noted = tmp_path / "out.bin.pid"

    def breathe() -> None:
        if noted.exists() and noted.read_text():
            job = int(noted.read_text())
            wait_until(lambda: state_of(job) == "T")
            states.append(state_of(job))
            os.kill(job, signal.SIGKILL)

    caller.backend._breathe = breathe
    with pytest.raises(VendorFailed, match="SIGKILL"):
        caller.quantize("hang")
    assert states == ["T"]


def test_the_warm_process_ends_with_its_owner(tmp_path: Path) -> None:
    owner = WarmVendors()
    caller = Caller(owner, tmp_path)
    caller.quantize()
    pid = int(caller.backend.version().split()[1])
    assert alive(pid)
    owner.close()
    assert not alive(pid)


def test_a_dead_warm_process_is_started_again(processes: WarmVendors, tmp_path: Path) -> None:
    caller = Caller(processes, tmp_path)
    caller.quantize()
    pid = int(caller.backend.version().split()[1])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid) or state_of(pid) == "Z")
    with pytest.raises(VendorFailed, match=r"does not start|process ended"):
        caller.quantize()
    assert Caller(processes, tmp_path).quantize() == ("a notice",)


def test_a_backend_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BOARDTUNE_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("BOARDTUNE_BACKEND_ESP_PPQ", raising=False)
    with pytest.raises(ConfigError, match="is not installed\n  boardtune backends install esp_ppq"):
        environments.find_environment("esp_ppq")


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
