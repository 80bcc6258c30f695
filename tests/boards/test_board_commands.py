"""``boardtune boards …`` as a person types it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result
from fake_agent import FakeAgent

from device_agents.contract import LinkError
from device_agents.ssh.hostkeys import HostKey, host_key_from
from harness.boards.agents import known_hosts_path
from harness.boards.folders import packaged_folder, templates_folder
from harness.boards.init import parse_address, template_names
from harness.boards.json_schema import board_file_schema
from harness.boards.registry import load_board_file, load_registry
from harness.cli.boards import command
from harness.errors import BoardtuneError, ConfigError, ExitCode

Write = Callable[..., Path]
LINE = "pi.local ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
KEY = host_key_from("ssh-ed25519", base64.b64decode(LINE.split()[2]), "pi.local")


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(command, arguments, input=text)


def failure(result: Result) -> BoardtuneError:
    assert isinstance(result.exception, BoardtuneError), result.output
    return result.exception


def written(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def pi(write: Write) -> Path:
    return write(
        "pi.yaml",
        "metadata: {name: pi, sku: rpi5, labels: {shelf: top}}\n"
        "transport: {kind: ssh, host: pi.local, user: me, password: 'env:PI'}\n",
    )


def test_list_shows_boards_and_broken_files(write: Write, pi: Path) -> None:
    write("bad.yaml", "metadata: {name: bad}\ntransport: {kind: lokal}\n")
    output = run("list").output
    row = next(line for line in output.splitlines() if line.startswith("pi "))
    assert row.split() == ["pi", "me@pi.local", "rpi5", "-", "shelf=top", "./boards"]
    assert any(line.split()[:2] == ["local", "local"] and line.endswith("packaged") for line in output.splitlines())
    assert "bad.yaml:4: transport.kind cannot be 'lokal'" in output
    assert "did you mean 'local'?" in output


def test_list_as_json(write: Write, pi: Path) -> None:
    write("bad.yaml", "metadata: {name: bad}\ntransport: {kind: lokal}\n")
    content = written(run("list", "--json"))
    (mine,) = [board for board in content["boards"] if board["name"] == "pi"]
    assert (mine["transport"], mine["emulated"], mine["from"]) == ("ssh", False, "./boards")
    assert [board["name"] for board in content["broken"]] == ["bad"]


def test_show(pi: Path) -> None:
    output = run("show", "pi").output
    content = yaml.safe_load(output)
    assert content["transport"] == {
        "kind": "ssh", "host": "pi.local", "user": "me", "password": "env:PI", "use_agent": True,
        "python": "python3", "workdir": ".boardtune", "keepalive_s": 15.0,
    }  # fmt: skip
    assert "pi.yaml (./boards)" in output
    assert written(run("show", "pi", "--json"))["metadata"]["sku"] == "rpi5"


def test_what_show_prints_is_a_board_file(pi: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.yaml"
    copy.write_text(run("show", "pi").output, encoding="utf-8")
    assert load_board_file(copy) == load_board_file(pi)


def test_show_of_an_unknown_board() -> None:
    error = failure(run("show", "lcoal"))
    assert error.exit_code == ExitCode.USAGE
    assert "did you mean 'local'?" in error.hint


def test_check(monkeypatch: pytest.MonkeyPatch, pi: Path) -> None:
    agents: list[FakeAgent] = []

    def opened(board: object) -> FakeAgent:
        agents.append(FakeAgent())
        return agents[-1]

    monkeypatch.setattr("harness.boards.check.open_agent", opened)
    result = run("check", "pi")
    assert result.exit_code == 0
    assert "pi over me@pi.local" in result.output
    assert "pi is ready" in result.output
    assert agents[0].calls[-1] == "close"
    assert written(run("check", "pi", "local", "--json"))["boards"][1]["board"] == "local"
    run("check")
    assert len(agents) == 3 + len(load_registry().names())


def test_check_of_an_unreachable_board_ends_with_4(monkeypatch: pytest.MonkeyPatch, pi: Path) -> None:
    fails = {"connect": LinkError("connection refused")}
    monkeypatch.setattr("harness.boards.check.open_agent", lambda board: FakeAgent(fails=fails))
    result = run("check", "pi")
    assert result.exit_code == ExitCode.BOARD_UNAVAILABLE
    assert "connection refused" in result.output
    assert "pi is not usable: 1 thing to look at" in result.output


def test_check_of_an_unknown_board_touches_none(monkeypatch: pytest.MonkeyPatch, pi: Path) -> None:
    monkeypatch.setattr("harness.boards.check.open_agent", lambda board: pytest.fail("touched a board"))
    assert failure(run("check", "pi", "pj")).exit_code == ExitCode.USAGE


def test_clean(monkeypatch: pytest.MonkeyPatch, pi: Path) -> None:
    monkeypatch.setattr("harness.boards.clean.open_agent", lambda board: FakeAgent(left=["models"]))
    assert run("clean", "pi").output.splitlines() == ["removed models", "pi is clean"]
    assert written(run("clean", "pi", "--json")) == {"board": "pi", "removed": ["models"]}


@pytest.fixture
def presents(monkeypatch: pytest.MonkeyPatch, pi: Path) -> None:
    monkeypatch.setenv("PI", "secret")
    monkeypatch.setattr("device_agents.ssh.fetch_host_key", lambda target: KEY)


@pytest.mark.usefixtures("presents")
def test_trust_shows_the_fingerprint_and_needs_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    error = failure(run("trust", "pi"))
    assert KEY.fingerprint in error.message
    assert "--fingerprint" in error.hint
    assert not known_hosts_path().exists()
    assert KEY.fingerprint in run("trust", "pi", "--yes").output
    assert LINE in known_hosts_path().read_text()
    assert "enrolled already" in run("trust", "pi").output


@pytest.mark.usefixtures("presents")
@pytest.mark.parametrize(("answer", "enrolled"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_trust_asks_a_person(monkeypatch: pytest.MonkeyPatch, answer: str, enrolled: bool) -> None:
    monkeypatch.setattr("harness.cli.boards._somebody_is_here", lambda: True)
    result = run("trust", "pi", text=answer)
    assert known_hosts_path().exists() == enrolled
    assert result.exit_code == (ExitCode.OK if enrolled else ExitCode.USAGE)


@pytest.mark.usefixtures("presents")
def test_trust_by_fingerprint() -> None:
    assert "not SHA256:BBB" in failure(run("trust", "pi", "--fingerprint", "SHA256:" + "B" * 43)).message
    assert written(run("trust", "pi", "--fingerprint", KEY.fingerprint, "--json"))["state"] == "new"


def test_trust_of_an_unreachable_board_ends_with_4(monkeypatch: pytest.MonkeyPatch, presents: None) -> None:
    def refuse(target: object) -> HostKey:
        raise LinkError("no route to host")

    monkeypatch.setattr("device_agents.ssh.fetch_host_key", refuse)
    assert failure(run("trust", "pi", "--yes")).exit_code == ExitCode.BOARD_UNAVAILABLE


SSH_TEMPLATES = [name for name in template_names() if name not in ("local", "esp32", "mlperf-tiny")]


@pytest.mark.parametrize("template", SSH_TEMPLATES)
def test_init_from_every_template(template: str, tmp_path: Path) -> None:
    (tmp_path / "work" / "id").write_text("")
    result = run("init", "lab-1", "--ssh", "joe@10.0.0.7:2222", "--template", template, "--key", "id")
    assert result.exit_code == 0, result.output
    assert "boardtune boards trust lab-1" in result.output
    board = load_registry().get("lab-1")
    assert board.name == "lab-1"
    assert board.transport.kind == "ssh"
    transport = board.transport
    assert (transport.host, transport.user, transport.port) == ("10.0.0.7", "joe", 2222)
    assert transport.key == tmp_path / "work" / "id"
    original = (templates_folder() / f"{template}.yaml").read_text()
    comments = [line for line in original.splitlines() if line.startswith("#")]
    assert comments == [line for line in Path("boards/lab-1.yaml").read_text().splitlines() if line.startswith("#")]


def test_init_of_a_serial_board() -> None:
    result = run("init", "chip", "--serial", "/dev/ttyACM3", "--target", "esp32p4")
    assert result.exit_code == 0, result.output
    assert "trust" not in result.output
    board = load_registry().get("chip")
    assert board.transport.model_dump(include={"kind", "port", "target"}) == {
        "kind": "serial",
        "port": "/dev/ttyACM3",
        "target": "esp32p4",
    }
    assert (board.runtime.name, board.canary.model) == ("esp-dl", "firmware-1")
    assert "excludes" in failure(run("init", "both", "--serial", "COM3", "--local")).message
    assert "not a serial port" in failure(run("init", "odd", "--serial", "; rm -rf /")).message


def test_init_of_this_machine_and_without_a_user() -> None:
    assert run("init", "here", "--local").exit_code == 0
    assert load_registry().get("here").transport.kind == "local"
    assert run("init", "there", "--ssh", "pi.local").exit_code == 0
    transport = load_registry().get("there").transport
    assert transport.kind == "ssh"
    assert (transport.user, transport.port) == (None, None)


def test_init_into_other_folders(tmp_path: Path) -> None:
    assert written(run("init", "a", "--local", "--user", "--json"))["file"] == str(tmp_path / "config/boards/a.yaml")
    assert written(run("init", "b", "--local", "--folder", str(tmp_path / "x"), "--json"))["file"] == str(
        tmp_path / "x/b.yaml"
    )


def test_init_replaces_a_file_only_by_force() -> None:
    run("init", "a", "--local")
    Path("boards/a.yaml").write_text("mine")
    assert "exists already" in failure(run("init", "a", "--local")).message
    assert Path("boards/a.yaml").read_text() == "mine"
    assert run("init", "a", "--local", "--force").exit_code == 0
    assert load_registry().get("a").name == "a"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["My_Pi", "--local"], "not a board name: 'My_Pi'", "lower-case"),
        (["a"], "where is the board?", "--ssh user@host"),
        (["a", "--local", "--ssh", "x"], "exclude each other", ""),
        (["a", "--ssh", "user@"], "not an address: 'user@'", "user@host"),
        (["a", "--ssh", "x:99999"], "transport.port", "99999"),
        (["a", "--ssh=-oProxyCommand=x"], "transport.host", ""),
        (
            ["a", "--ssh", "x", "--template", "rasberry-pi"],
            "unknown template 'rasberry-pi'",
            "did you mean 'raspberry-pi'?",
        ),
        (["a", "--local", "--template", "jetson"], "for another transport", "--ssh"),
    ],
)
def test_init_refuses(arguments: list[str], message: str, hint: str) -> None:
    error = failure(run("init", *arguments))
    assert message in error.message
    assert hint in error.hint
    assert not Path("boards").exists()


def test_init_asks_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cli.boards._somebody_is_here", lambda: True)
    assert run("init", "a", text="me@pi.local\n").exit_code == 0
    assert run("init", "b", text="local\n").exit_code == 0
    registry = load_registry()
    assert (registry.get("a").transport.kind, registry.get("b").transport.kind) == ("ssh", "local")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pi", ("pi", None, None)),
        ("me@pi", ("pi", "me", None)),
        ("me@pi:2222", ("pi", "me", 2222)),
        ("fe80::1", ("fe80::1", None, None)),
        ("me@[fe80::1]:22", ("fe80::1", "me", 22)),
    ],
)
def test_addresses(text: str, expected: tuple[str, str | None, int | None]) -> None:
    address = parse_address(text)
    assert (address.host, address.user, address.port) == expected


@pytest.mark.parametrize("text", ["", "me@", "a b", "me@@pi", "pi:", "pi:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


def test_schema_is_one_and_accepts_all_that_ships(tmp_path: Path) -> None:
    schema = json.loads(run("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    files = [*packaged_folder().glob("*.yaml"), *templates_folder().glob("*.yaml")]
    assert len(files) >= 7
    for path in files:
        validator.validate(yaml.safe_load(path.read_text()))
    out = tmp_path / "schema.json"
    assert written(run("schema", "--out", str(out), "--json")) == {"file": str(out)}
    assert json.loads(out.read_text()) == schema


HEAD = {"apiVersion": "boardtune/v1", "kind": "Board", "metadata": {"name": "a"}}


@pytest.mark.parametrize(
    ("content", "valid"),
    [
        ({**HEAD, "transport": {"kind": "local"}}, True),
        ({**HEAD, "transport": {"kind": "local", "host": "x"}}, False),
        ({**HEAD, "transport": {"kind": "local"}, "state": None, "limits": {"max_model_bytes": None}}, True),
        ({**HEAD, "transport": None}, False),
        ({**HEAD}, False),
        ({**HEAD, "extends": "family"}, True),
        ({**HEAD, "extends": "family", "transport": {"host": "x"}}, True),
        ({**HEAD, "extends": "family", "transport": {"hots": "x"}}, False),
        ({**HEAD, "extends": "family", "metadata": {}}, False),
        ({**HEAD, "kind": "BoardFamily", "limits": {"max_model_bytes": "8MB"}}, True),
        ({**HEAD, "kind": "BoardFamily", "limits": {"max_model_bytes": "8 bananas"}}, False),
        ({**HEAD, "transport": {"kind": "local"}, "noise": "loud"}, False),
        ({**HEAD, "transport": {"kind": "local"}, "runtime": {"providers": ["CPUExecutionProvider"]}}, True),
        ({**HEAD, "transport": {"kind": "ssh", "host": "x", "password": "hunter2"}}, False),
        ({**HEAD, "transport": {"kind": "ssh", "host": "x", "password": {"env": "X"}}}, True),
    ],
)
def test_schema_agrees_with_the_loader(write: Write, content: dict[str, Any], valid: bool) -> None:
    validator = jsonschema.Draft202012Validator(board_file_schema())
    assert validator.is_valid(content) == valid
    family = {**HEAD, "kind": "BoardFamily", "metadata": {"name": "family"}, "transport": {"kind": "ssh", "host": "y"}}
    write("family.yaml", yaml.safe_dump(family), header=False)
    write("a.yaml", yaml.safe_dump(content), header=False)
    (entry,) = [entry for entry in load_registry([Path("boards")]).entries if entry.path.name == "a.yaml"]
    assert (entry.error is None) == valid, entry.error


def test_every_key_is_described_somewhere_for_editors() -> None:
    schema = board_file_schema()
    ssh = schema["$defs"]["SshTransport"]["properties"]
    assert all("description" in body or "$ref" in json.dumps(body) for name, body in ssh.items() if name != "kind")


@pytest.mark.parametrize("name", sorted(command.commands))
def test_every_command_has_help_and_json(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "--json" in result.output
    assert isinstance(command.commands[name], click.Command)
