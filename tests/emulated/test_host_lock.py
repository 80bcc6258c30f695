"""One clock alone, or any number of workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agents.host_lock import HostBusy, HostLock

SOON = 0.2
DEADLINE = 30.0


@pytest.fixture
def lock(tmp_path: Path) -> HostLock:
    return HostLock(tmp_path / "host")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[list[threading.Thread]]:
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_workers_share_and_a_clock_waits_for_all_of_them(lock: HostLock, tmp_path: Path) -> None:
    other = HostLock(tmp_path / "host")
    with lock.work():
        with other.work(SOON):
            pass
        with pytest.raises(HostBusy, match="another process of this host"), other.clock(SOON):
            pass
    with other.clock(SOON):
        pass


def test_a_clock_keeps_workers_and_clocks_out(lock: HostLock, tmp_path: Path) -> None:
    other = HostLock(tmp_path / "host")
    with lock.clock():
        with pytest.raises(HostBusy), other.work(SOON):
            pass
        with pytest.raises(HostBusy), other.clock(SOON):
            pass
    with other.work(SOON):
        pass


def test_breathe_lets_a_waiting_clock_in_first(lock: HostLock, tmp_path: Path, elsewhere: list) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def clock() -> None:
        other = HostLock(tmp_path / "host")
        waiting.set()
        with other.clock(DEADLINE):
            order.append("clock")

    with lock.work() as work:
        assert work.breathe() is False
        thread = threading.Thread(target=clock)
        elsewhere.append(thread)
        thread.start()
        assert waiting.wait(DEADLINE)
        while not work.breathe():
            pass
        order.append("work")
        # The shared side is held again.
        with pytest.raises(HostBusy), HostLock(tmp_path / "host").clock(SOON):
            pass
    assert order == ["clock", "work"]


def test_a_waiting_clock_is_not_starved_by_new_workers(lock: HostLock, tmp_path: Path, elsewhere: list) -> None:
    timed = threading.Event()

    def clock() -> None:
        with HostLock(tmp_path / "host").clock(DEADLINE):
            timed.set()

    with lock.work():
        thread = threading.Thread(target=clock)
        elsewhere.append(thread)
        thread.start()
        # From the moment the clock waits at the turnstile no worker gets past it.
        while True:
            try:
                with HostLock(tmp_path / "host").work(0.0):
                    pass
            except HostBusy:
                break
        assert not timed.is_set()
    assert timed.wait(DEADLINE)


def test_within_a_thread_work_is_part_of_a_clock_and_a_second_clock_is_an_error(lock: HostLock) -> None:
    with lock.clock(), lock.work(SOON) as work:
        assert work.breathe() is False
        with pytest.raises(RuntimeError, match="itself"), lock.clock():
            pass
    with lock.work(), lock.work(), pytest.raises(RuntimeError, match="itself"), lock.clock():
        pass
    with lock.clock(SOON):
        pass


_HOLDER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from device_agents.host_lock import HostLock
with getattr(HostLock(Path(sys.argv[1])), sys.argv[3])():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("side", ["clock", "work"])
def test_a_killed_process_frees_it(lock: HostLock, tmp_path: Path, side: str) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", _HOLDER, str(tmp_path / "host"), root, side]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(HostBusy), lock.clock(SOON):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait(DEADLINE)
        holder.stdout.close()
    with lock.clock(DEADLINE):
        pass


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_keep_it(lock: HostLock) -> None:
    reader, writer = os.pipe()
    with lock.clock():
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        with lock.clock(SOON):
            pass
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)
