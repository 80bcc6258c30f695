from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from device_agents.contract import LeaseLost, LinkError
from device_agents.ssh.lock import BoardLock

ADDRESS = ["jump:22", "pi.local:2222"]
HOLDER = """
import sys, time
from pathlib import Path
from device_agents.ssh.lock import BoardLock
BoardLock(Path(sys.argv[1]), ["jump:22", "pi.local:2222"]).acquire()
print("held", flush=True)
{then}
"""


def holder(folder: Path, then: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(then=then), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "held"
    return process


def test_second_controller_is_told_who_holds_the_board(tmp_path: Path) -> None:
    first, second = BoardLock(tmp_path, ADDRESS), BoardLock(tmp_path, ADDRESS)
    first.acquire()
    first.acquire()
    with pytest.raises(LeaseLost, match=rf"process {os.getpid()} since \d{{4}}-\d\d-\d\dT"):
        second.acquire()
    BoardLock(tmp_path, ["pi.local:2222"]).acquire()  # another way to the board is another lock
    first.release()
    first.release()
    second.acquire()
    assert second.held
    assert not first.held


def test_releasing_leaves_no_file(tmp_path: Path) -> None:
    lock = BoardLock(tmp_path / "new" / "folder", ADDRESS)
    lock.acquire()
    assert [path.name for path in lock.path.parent.iterdir()] == ["ssh-pi.local-2222-via-jump-22.lock"]
    lock.release()
    assert list(lock.path.parent.iterdir()) == []


def test_killed_holder_frees_the_board(tmp_path: Path) -> None:
    process = holder(tmp_path, "time.sleep(60)")
    lock = BoardLock(tmp_path, ADDRESS)
    with pytest.raises(LeaseLost, match=f"process {process.pid} "):
        lock.acquire()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    lock.acquire()
    assert lock.held
    lock.release()


def test_child_forked_by_a_killed_holder_does_not_keep_the_board(tmp_path: Path) -> None:
    then = """
import os
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
    process = holder(tmp_path, then)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        lock = BoardLock(tmp_path, ADDRESS)
        with pytest.raises(LeaseLost):  # the fork did not free it either
            lock.acquire()
        process.kill()
        process.wait(10)
        os.kill(child, 0)
        lock.acquire()
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_removal_between_open_and_lock_does_not_give_the_board_to_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (BoardLock(tmp_path, ADDRESS) for _ in range(3))
    first.acquire()
    opened = second._open

    def open_then_lose_the_file() -> int:
        descriptor = opened()
        if first.held:
            first.release()  # removes the file that was just opened
        return descriptor

    monkeypatch.setattr(second, "_open", open_then_lose_the_file)
    second.acquire()
    with pytest.raises(LeaseLost):
        third.acquire()


def test_unreadable_holder_and_unusable_folder(tmp_path: Path) -> None:
    lock = BoardLock(tmp_path, ADDRESS)
    lock.acquire()
    lock.path.write_text("")
    with pytest.raises(LeaseLost, match="another process"):
        BoardLock(tmp_path, ADDRESS).acquire()
    (tmp_path / "file").write_text("")
    with pytest.raises(LinkError, match="lock file"):
        BoardLock(tmp_path / "file", ADDRESS).acquire()


def test_only_one_of_many_racing_processes_gets_the_board(tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
from device_agents.contract import LeaseLost
from device_agents.ssh.lock import BoardLock
folder, witness = Path(sys.argv[1]), Path(sys.argv[2])
lock = BoardLock(folder, ["jump:22", "pi.local:2222"])
end = time.monotonic() + 1.5
while time.monotonic() < end:
    try:
        lock.acquire()
    except LeaseLost:
        continue
    witness.mkdir()  # raises if somebody else is inside
    witness.rmdir()
    lock.release()
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    racers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "l"), str(tmp_path / "w")], env=env)
        for _ in range(3)
    ]
    end = time.monotonic() + 60
    assert [racer.wait(max(0.1, end - time.monotonic())) for racer in racers] == [0, 0, 0]
