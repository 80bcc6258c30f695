"""Secrets are read late, and shown never."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.boards.agents import open_agent, ssh_target
from harness.boards.registry import load_registry
from harness.boards.schema import Board
from harness.boards.secret_ref import SecretRef
from harness.errors import ConfigError

Write = Callable[..., Path]
SECRET = "correct horse battery staple"


def board(**transport: Any) -> Board:
    return Board.model_validate(
        {
            "apiVersion": "boardtune/v1",
            "kind": "Board",
            "metadata": {"name": "pi"},
            "transport": {"kind": "ssh", "host": "pi.local", **transport},
        }
    )


def password(value: Any) -> SecretRef:
    transport = board(password=value).transport
    assert transport.kind == "ssh"
    assert transport.password is not None
    return transport.password


@pytest.mark.parametrize("form", ["env:PI_PASSWORD", {"env": "PI_PASSWORD"}])
def test_environment_variable(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = password(form)
    assert reference.model_dump() == "env:PI_PASSWORD"
    monkeypatch.delenv("PI_PASSWORD", raising=False)
    with pytest.raises(ConfigError, match="PI_PASSWORD, which is not set"):
        reference.resolve("pi", "transport.password")
    monkeypatch.setenv("PI_PASSWORD", "")
    with pytest.raises(ConfigError, match="which is empty"):
        reference.resolve("pi", "transport.password")
    monkeypatch.setenv("PI_PASSWORD", SECRET)
    assert reference.resolve("pi", "transport.password").reveal() == SECRET


def test_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "secret"
    reference = password({"file": str(path)})
    with pytest.raises(ConfigError, match="cannot be read"):
        reference.resolve("pi", "transport.password")
    path.write_text("\n")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="first line is empty"):
        reference.resolve("pi", "transport.password")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        reference.resolve("pi", "transport.password")
    path.write_text(SECRET + "\nnot this\n")
    assert reference.resolve("pi", "transport.password").reveal() == SECRET
    assert caplog.records == []
    path.chmod(0o644)
    reference.resolve("pi", "transport.password")
    assert "chmod 600" in caplog.text
    assert SECRET not in caplog.text
    with pytest.raises(ConfigError, match="no small regular file"):
        password({"file": str(tmp_path)}).resolve("pi", "transport.password")


def test_secret_is_in_nothing_that_is_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("PI_PASSWORD", SECRET)
    value = board(password="env:PI_PASSWORD", passphrase="env:PI_PASSWORD")
    target = ssh_target(value)
    agent = open_agent(value)
    shown = [repr(value), str(value), value.model_dump_json(), repr(target), str(target), repr(agent), caplog.text]
    agent.close()
    output = capsys.readouterr()
    assert all(SECRET not in text for text in [*shown, output.out, output.err])
    assert target.password is not None
    assert target.password.reveal() == SECRET


@pytest.mark.parametrize(
    "line",
    [
        f"  password: {SECRET}",
        f"  password: [{SECRET}]",
        f"  password: {{env: '{SECRET}'}}",
        f"  password: {{plain: '{SECRET}'}}",
        f"  password: 'file:{SECRET}\\n'\n  passphrase: {SECRET}",
        "  password: *correcthorse",
        "  password: !correcthorse",
        "  password: %correcthorse",
        "  password: @correcthorse",
        "  password: 'correcthorse",
        "  password: correcthorse: x",
        f"  key: '-----BEGIN PRIVATE KEY----- {SECRET}'",
    ],
)
def test_secret_in_a_board_file_is_not_repeated_by_the_error(write: Write, line: str) -> None:
    write("pi.yaml", f"metadata: {{name: pi}}\ntransport:\n  kind: ssh\n  host: pi\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load_registry().get("pi")
    assert ":7" in caught.value.where or ":8" in caught.value.where
    assert "correct" not in str(caught.value)


def test_missing_key_file_is_told_before_connecting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist") as caught:
        open_agent(board(key=str(tmp_path / "id_ed25519")))
    assert "ssh-keygen" in caught.value.hint
