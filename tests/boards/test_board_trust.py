"""Host keys: asked once, pinned, and never replaced in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import paramiko
import pytest

from device_agents.ssh.hostkeys import HostKey, host_key_from
from device_agents.ssh.target import SshTarget
from harness.boards.agents import known_hosts_path
from harness.boards.schema import Board
from harness.boards.trust import accept, ask_board
from harness.errors import ConfigError


def new_key(name: str = "pi.local", bits: int = 256) -> HostKey:
    key = paramiko.ECDSAKey.generate(bits=bits)
    return host_key_from(key.get_name(), key.asbytes(), name)


KEY, OTHER = new_key(), new_key()


def board(**transport: Any) -> Board:
    return Board.model_validate(
        {
            "apiVersion": "boardtune/v1",
            "kind": "Board",
            "metadata": {"name": "pi"},
            "transport": {"kind": "ssh", "host": "pi.local", **transport},
        }
    )


def presents(key: HostKey) -> Callable[[SshTarget], HostKey]:
    return lambda target: key


def test_new_key_is_enrolled_and_then_known_to_openssh_tools() -> None:
    question = ask_board(board(), presents(KEY))
    assert question.state == "new"
    assert accept(question) == known_hosts_path()
    assert known_hosts_path().stat().st_mode & 0o077 == 0
    assert ask_board(board(), presents(KEY)).state == "known"
    # An independent reader of the format.
    found = paramiko.HostKeys(str(known_hosts_path())).lookup("pi.local")
    assert found is not None
    assert [key.get_base64() for key in found.values()] == [KEY.line.split()[2]]


def test_asking_writes_nothing() -> None:
    ask_board(board(), presents(KEY))
    assert not known_hosts_path().exists()


def test_known_key_needs_nothing() -> None:
    accept(ask_board(board(), presents(KEY)))
    before = known_hosts_path().read_bytes()
    assert accept(ask_board(board(), presents(KEY))) is None
    assert known_hosts_path().read_bytes() == before


def test_changed_key_is_refused_without_replace() -> None:
    accept(ask_board(board(), presents(KEY)))
    question = ask_board(board(), presents(OTHER))
    assert question.state == "changed"
    with pytest.raises(ConfigError, match="has changed") as caught:
        accept(question)
    assert "--replace" in caught.value.hint
    assert KEY.fingerprint in caught.value.message
    assert OTHER.fingerprint in caught.value.message
    assert ask_board(board(), presents(KEY)).state == "known"


def test_changed_key_is_not_accepted_for_its_fingerprint_alone() -> None:
    accept(ask_board(board(), presents(KEY)))
    with pytest.raises(ConfigError, match="has changed"):
        accept(ask_board(board(), presents(OTHER)), fingerprint=OTHER.fingerprint)


def test_replace_leaves_only_the_new_key() -> None:
    accept(ask_board(board(), presents(KEY)))
    accept(ask_board(board(), presents(OTHER)), replace=True)
    assert ask_board(board(), presents(OTHER)).state == "known"
    assert ask_board(board(), presents(KEY)).state == "changed"


def test_keys_of_other_boards_stay() -> None:
    accept(ask_board(board(), presents(KEY)))
    elsewhere = new_key("[other.local]:2222")
    accept(ask_board(board(host="other.local", port=2222), presents(elsewhere)))
    accept(ask_board(board(), presents(OTHER)), replace=True)
    assert ask_board(board(host="other.local", port=2222), presents(elsewhere)).state == "known"


@pytest.mark.parametrize("form", ["{}", "{algorithm} {}", "bare"])
def test_fingerprint_is_compared(form: str) -> None:
    text = (
        KEY.fingerprint.removeprefix("SHA256:")
        if form == "bare"
        else form.format(KEY.fingerprint, algorithm=KEY.algorithm)
    )
    assert accept(ask_board(board(), presents(KEY)), fingerprint=text) is not None


@pytest.mark.parametrize(
    ("fingerprint", "message"),
    [(OTHER.fingerprint, "not SHA256"), ("abc", "--fingerprint")],
    ids=["of another key", "of another form"],
)
def test_wrong_fingerprint_enrols_nothing(fingerprint: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        accept(ask_board(board(), presents(KEY)), fingerprint=fingerprint)
    assert not known_hosts_path().exists()


def test_key_pinned_in_the_board_file() -> None:
    question = ask_board(board(host_key=KEY.fingerprint), presents(KEY))
    assert question.state == "pinned"
    assert accept(question) is None
    mismatch = ask_board(board(host_key=KEY.line), presents(OTHER))
    assert mismatch.state == "mismatch"
    with pytest.raises(ConfigError, match="its file pins") as caught:
        accept(mismatch, replace=True)
    assert "transport.host_key" in caught.value.hint
    assert not known_hosts_path().exists()


def test_board_without_host_key() -> None:
    local = board().model_copy(
        update={"transport": Board.model_validate({**board().model_dump(), "transport": {"kind": "local"}}).transport}
    )
    with pytest.raises(ConfigError, match="no host key to trust"):
        ask_board(local, presents(KEY))


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be written"):
        accept(ask_board(board(), presents(KEY)))
