"""The ledger file: durability of lines, torn tails, detection of edits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import Ticking, finished_run

from harness.ledger import events as ev
from harness.ledger.ledger import Ledger, LedgerError, read_ledger, seal
from harness.ledger.state import LedgerState


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    run = finished_run(tmp_path_factory.mktemp("run") / "r")
    run.close()
    return (run.path / "ledger.jsonl").read_bytes()


def bare(events: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    return [{k: v for k, v in e.items() if k not in ("seq", "time")} for e in events]


def test_lines_carry_sequence_time_and_a_crc_anyone_can_check(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, clock=Ticking())
    ledger.append(ev.run({"boardtune": "1"}))
    ledger.append_many([ev.notice("a"), ev.notice("ü\n")])
    ledger.close()
    lines = path.read_bytes().splitlines()
    crc = 0
    for seq, line in enumerate(lines):
        value = json.loads(line)
        assert value["seq"] == seq
        assert value["time"].endswith("Z")
        body, _, _ = line.rpartition(b',"crc":')
        crc = zlib.crc32(body + b"}", crc)
        assert value["crc"] == f"{crc:08x}"
    assert [json.loads(line)["event"] for line in lines] == ["run", "notice", "notice"]
    assert json.loads(lines[2])["message"] == "ü\n"


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.append(ev.run({"a": float("nan"), "b": [float("inf")], "c": 1.5}))
    assert read_ledger(tmp_path / "l").events[0]["header"] == {"a": None, "b": [None], "c": 1.5}


def test_an_event_may_not_set_what_the_ledger_sets(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    with pytest.raises(LedgerError, match="seq"):
        ledger.append({"event": "notice", "seq": 4})
    assert (tmp_path / "l").read_bytes() == b""


def test_writing_goes_on_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "l"
    for message in "abc":
        ledger = Ledger(path)
        ledger.append(ev.notice(message))
        ledger.close()
    assert [e["message"] for e in read_ledger(path).events] == ["a", "b", "c"]
    with pytest.raises(LedgerError, match="closed"):
        ledger.append(ev.notice("d"))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_cutting_at_any_byte_leaves_a_valid_prefix(
    whole_run: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(whole_run)))
    path = tmp_path_factory.mktemp("cut") / "ledger.jsonl"
    path.write_bytes(whole_run[:cut])
    contents = read_ledger(path)
    assert len(contents.events) == whole_run[:cut].count(b"\n")
    assert contents.torn == whole_run[:cut].rpartition(b"\n")[2]
    state = LedgerState.from_events(contents.events)
    assert state.seq == len(contents.events)
    assert path.read_bytes() == whole_run[:cut], "reading changes nothing"

    ledger = Ledger(path)
    assert bool(ledger.notices) == bool(contents.torn)
    if contents.torn:
        assert (path.parent / f"ledger.jsonl.torn-{state.seq}").read_bytes() == contents.torn
    ledger.append(ev.notice("after"))
    ledger.close()
    again = read_ledger(path)
    assert again.events[:-1] == contents.events
    assert again.events[-1]["message"] == "after"
    assert again.torn == b""


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_changing_any_byte_of_a_complete_line_is_found_at_its_line(
    whole_run: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(whole_run) - 2))
    new = data.draw(st.integers(0, 255).filter(lambda b: b != whole_run[position] and b != 10))
    if whole_run[position] == 10:
        return
    path = tmp_path_factory.mktemp("edit") / "ledger.jsonl"
    edited = bytearray(whole_run)
    edited[position] = new
    path.write_bytes(edited)
    line = whole_run[:position].count(b"\n") + 1
    last = whole_run.count(b"\n")
    caught = None
    try:
        contents = read_ledger(path)
    except LedgerError as error:
        caught = error
    if caught is None:
        assert line == last, "only the last line may pass for an unfinished write"
        assert len(contents.events) == last - 1
    else:
        assert caught.where == f"{path}:{line}"


@pytest.mark.parametrize("damage", ["removed", "swapped", "doubled", "renumbered"])
def test_lines_removed_swapped_or_doubled_are_refused(whole_run: bytes, tmp_path: Path, damage: str) -> None:
    lines = whole_run.splitlines(keepends=True)
    at = 5
    if damage == "removed":
        del lines[at]
    elif damage == "swapped":
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    elif damage == "doubled":
        lines.insert(at, lines[at - 1])
    else:  # removed, and what follows sealed again with a chain that starts afresh
        event = {k: v for k, v in json.loads(lines[at]).items() if k not in ("seq", "time", "crc")}
        lines[at] = seal(event, at, "2026-01-01T00:00:00.000Z", 0)[0]
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError) as caught:
        read_ledger(path)
    assert caught.value.where == f"{path}:{at + 1}"


def test_zeros_after_a_power_loss_are_a_torn_tail(whole_run: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(whole_run + b"\0" * 512)
    ledger = Ledger(path)
    assert len(ledger.events) == whole_run.count(b"\n")
    assert path.read_bytes() == whole_run


def test_threads_do_not_mix_lines(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")

    def work(name: int) -> None:
        for i in range(20):
            ledger.append(ev.notice(f"{name}:{i}" + "x" * 3000))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    events = read_ledger(tmp_path / "l").events
    assert len(events) == 80
    for name in range(4):
        mine = [e["message"].rstrip("x") for e in events if e["message"].startswith(f"{name}:")]
        assert mine == [f"{name}:{i}" for i in range(20)]


def test_a_full_disk_leaves_the_ledger_readable_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "l"
    ledger = Ledger(path)
    ledger.append(ev.notice("kept"))
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
    with pytest.raises(LedgerError, match="bytes were written") as caught:
        ledger.append(ev.notice("lost"))
    assert "--resume" in str(caught.value)
    monkeypatch.undo()
    ledger.append(ev.notice("next"))
    assert [e["message"] for e in read_ledger(path).events] == ["kept", "next"]


def test_every_line_is_flushed_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    write, fsync = os.write, os.fsync
    ledger = Ledger(tmp_path / "l")
    monkeypatch.setattr(os, "write", lambda fd, data: (calls.append("write"), write(fd, data))[1])
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd))[1])
    ledger.append_many([ev.notice("a"), ev.notice("b"), ev.notice("c")])
    assert calls == ["write", "fsync"]


@pytest.mark.parametrize("place", ["line.before.proposed", "line.after.proposed"])
def test_killed_around_a_line(tmp_path: Path, place: str) -> None:
    code = (
        "from pathlib import Path; from harness.ledger import events as ev; from harness.ledger.ledger import Ledger\n"
        f"ledger = Ledger(Path({str(tmp_path / 'l')!r}))\n"
        "ledger.append(ev.run({})); ledger.append(ev.proposed(0, {}, 'x')); ledger.append(ev.notice('never'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "BOARDTUNE_FAILPOINT": place}, timeout=60, check=False
    )
    assert result.returncode == -9
    kinds = [e["event"] for e in read_ledger(tmp_path / "l").events]
    assert kinds == (["run"] if "before" in place else ["run", "proposed"])
