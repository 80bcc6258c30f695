from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agents.secret import Secret


@given(st.text(min_size=3).filter(lambda text: text not in "Secret('********')"))
def test_no_form_of_display_shows_the_value(value: str) -> None:
    secret = Secret(value)
    shown = [str(secret), repr(secret), f"{secret}", f"{secret:>12}", "%s %r" % (secret, secret), repr([secret])]  # noqa: UP031
    assert not any(value in text for text in shown)
    assert secret.reveal() == value


def test_does_not_leave_the_process() -> None:
    with pytest.raises(TypeError, match="reference"):
        pickle.dumps(Secret("hunter2"))
    with pytest.raises(TypeError):
        json.dumps(Secret("hunter2"))


def test_equality_truth_and_hash_follow_the_value() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert not Secret("")
