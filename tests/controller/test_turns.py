"""Boards serve trials in the order of their numbers, one at a time."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.controller.turns import Turns


def serve(turns: Turns, numbers: list[int], *, skipped: set[int] = frozenset()) -> list[int]:  # type: ignore[assignment]
    """Lets threads ask in the given order; gives the order in which they were served."""
    served: list[int] = []

    def ask(number: int) -> None:
        if number in skipped:
            turns.skip([number])
            return
        with turns.turn(number, timeout_s=30):
            served.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return served


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_ascending_whatever_order_they_come_in(order: list[int], skipped: set[int]) -> None:
    assert serve(Turns(), order, skipped=skipped) == [n for n in range(6) if n not in skipped]


def test_numbers_before_the_first_do_not_count() -> None:
    turns = Turns(3)
    turns.skip([0, 1, 2])
    assert serve(turns, [4, 3]) == [3, 4]


def test_a_number_that_never_comes_is_named() -> None:
    turns = Turns()
    with pytest.raises(TimeoutError, match="trial 2 waited 0 s for trial 0"), turns.turn(2, timeout_s=0.01):
        pass


def test_a_turn_passes_on_after_an_error() -> None:
    turns = Turns()
    with pytest.raises(RuntimeError), turns.turn(0):
        raise RuntimeError
    with turns.turn(1, timeout_s=1):
        pass


def test_released_nobody_waits_for_a_number_that_never_comes() -> None:
    turns = Turns()
    passed: list[int] = []

    def late(number: int) -> None:
        with turns.turn(number, timeout_s=10):
            passed.append(number)

    threads = [threading.Thread(target=late, args=(number,)) for number in (2, 5)]
    for thread in threads:
        thread.start()
    turns.release()
    for thread in threads:
        thread.join(10)
    assert sorted(passed) == [2, 5]
    with turns.turn(9, timeout_s=0.01):
        pass


def test_skipping_the_one_being_served_lets_nobody_in_beside_it() -> None:
    """A trial's process died while its board still measures."""
    turns = Turns()
    inside = threading.Event()
    leave = threading.Event()
    together: list[bool] = []

    def first() -> None:
        with turns.turn(0):
            inside.set()
            leave.wait(10)

    def second() -> None:
        with turns.turn(1, timeout_s=10):
            together.append(not leave.is_set())

    def last() -> None:
        with turns.out_of_turn(0, timeout_s=10):
            together.append(not leave.is_set())

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert inside.wait(10)
    turns.skip([0])
    threads += [threading.Thread(target=second), threading.Thread(target=last)]
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.05)
    leave.set()
    for thread in threads:
        thread.join(10)
    assert together == [False, False]
