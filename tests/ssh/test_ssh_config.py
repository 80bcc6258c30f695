from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from device_agents.contract import LinkError
from device_agents.ssh.config import Hop, route
from device_agents.ssh.target import SshTarget

PIN = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def hops(home: Path, text: str | None, host: str = "pi", **fields: object) -> tuple[Hop, ...]:
    if text is not None:
        (home / ".ssh" / "config").write_text(text)
    return route(SshTarget(host=host, lock_dir=home / "locks", **fields))  # type: ignore[arg-type]


def addresses(found: tuple[Hop, ...]) -> list[str]:
    return [f"{hop.user}@{hop.host}:{hop.port}" for hop in found]


def test_without_configuration_openssh_defaults_hold(home: Path) -> None:
    (hop,) = hops(home, None, "Pi.local")
    assert addresses((hop,)) == [f"{getpass.getuser()}@Pi.local:22"]
    assert [path.name for path in hop.identities] == ["id_ed25519", "id_ecdsa", "id_rsa"]
    assert hop.agent_any
    assert not hop.identities_required
    assert hop.known_hosts == (home / ".ssh/known_hosts", Path("/etc/ssh/ssh_known_hosts"))
    assert hop.names == ("pi.local",)


def test_configuration_fills_what_the_target_leaves_open(home: Path) -> None:
    text = """
    Host pi
      HostName %h.lab.example
      Port 2200
      User robot
      IdentityFile ~/.ssh/lab
      IdentitiesOnly yes
      UserKnownHostsFile ~/.ssh/lab_hosts "%d/.ssh/more hosts"
      GlobalKnownHostsFile none
    """
    (hop,) = hops(home, text, known_hosts=home / "own")
    assert addresses((hop,)) == ["robot@pi.lab.example:2200"]
    assert hop.identities == (home / ".ssh/lab",)
    assert not hop.agent_any
    assert hop.known_hosts == (home / ".ssh/lab_hosts", home / ".ssh/more hosts", home / "own")
    assert hop.names == ("[pi.lab.example]:2200", "pi.lab.example")


def test_explicit_fields_win(home: Path) -> None:
    text = "Host pi\n Port 2200\n User robot\n IdentityFile ~/.ssh/lab\n ProxyJump gate\n ProxyCommand nc %h %p\n"
    found = hops(home, text, port=22, user="me", key_file=home / "k", proxy_jump="none", host_key=PIN)
    assert addresses(found) == ["me@pi:22"]
    assert found[0].identities == (home / "k",)
    assert found[0].identities_required
    assert not found[0].agent_any
    assert found[0].pin is not None
    assert found[0].pin.fingerprint == PIN


def test_jumps_are_resolved_one_by_one_and_pins_and_users_stay_with_the_board(home: Path) -> None:
    text = """
    Host pi
      ProxyJump gate,ops@[fe80::1]:2022,inner
    Host gate
      HostName gate.example
      ProxyJump outer
    Host inner
      User deep
      Port 99
      ProxyJump ignored-because-not-first
    """
    found = hops(home, text, user="robot", key_file=home / "k", host_key=PIN)
    me = getpass.getuser()
    assert addresses(found) == [
        f"{me}@outer:22",
        f"{me}@gate.example:22",
        "ops@fe80::1:2022",
        "deep@inner:99",
        "robot@pi:22",
    ]
    assert [hop.pin is not None for hop in found] == [False, False, False, False, True]
    assert [hop.is_board for hop in found] == [False, False, False, False, True]
    assert found[0].identities[-1] == home / "k"
    assert len(found[0].identities) == 4


def test_included_files_keep_their_blocks_to_themselves(home: Path) -> None:
    (home / ".ssh" / "conf.d").mkdir()
    (home / ".ssh" / "conf.d" / "a.conf").write_text("Host pi\n  Port 2201\nHost other\n  Port 1\n")
    text = "Host pi\n  User robot\n  Include conf.d/*.conf missing-*\n  HostName 10.0.0.5\n"
    assert addresses(hops(home, text)) == ["robot@10.0.0.5:2201"]


def test_match_blocks_work_and_those_with_commands_are_never_run(home: Path) -> None:
    witness = home / "witness"
    text = f"""
    Match host pi exec "touch {witness}"
      Port 2
    Match !exec "touch {witness}" host pi
      Port 3
    Match host pi
      User robot
    Host *
      Port 4
    """
    assert addresses(hops(home, text)) == ["robot@pi:4"]
    assert not witness.exists()


@pytest.mark.parametrize(
    ("text", "fields", "words"),
    [
        ("Host pi\n ProxyCommand nc %h %p\n", {}, "ProxyCommand"),
        ("Host gate\n ProxyCommand nc %h %p\n", {"proxy_jump": "gate"}, "ProxyCommand"),
        ("Host a\n ProxyJump b\nHost b\n ProxyJump a\n", {"proxy_jump": "a"}, "circles"),
        ("Host pi\n Port ssh\n", {}, "Port 'ssh'"),
        ("Host pi\n HostName -oProxyCommand=x\n", {}, "HostName"),
        ("Include config\n", {}, "Include"),
        ("", {"proxy_jump": "gate:99999"}, "65535"),
        ("", {"proxy_jump": "-evil"}, "starts with"),
        ("", {"proxy_jump": "a b"}, "characters"),
        ("", {"proxy_jump": "-x@gate"}, "login name"),
        ("", {"config_file": Path("/nowhere/config")}, "does not exist"),
        ("CanonicalizeHostname yes\n", {}, "canonicaldomains"),
    ],
)
def test_what_cannot_be_used_is_said(home: Path, text: str, fields: dict[str, object], words: str) -> None:
    with pytest.raises(LinkError, match=words):
        hops(home, text, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"host": ""}, "host"),
        ({"host": "-oProxyCommand=reboot"}, "host"),
        ({"host": "pi;reboot"}, "host"),
        ({"host": "pi", "port": 0}, "port"),
        ({"host": "pi", "user": "-l"}, "user"),
        ({"host": "pi", "user": "a b"}, "user"),
        ({"host": "pi", "python": "python3; reboot"}, "python"),
        ({"host": "pi", "python": "-c"}, "python"),
        ({"host": "pi", "python": "$(reboot)"}, "python"),
        ({"host": "pi", "workdir": "../.."}, "workdir"),
        ({"host": "pi", "workdir": "a\nb"}, "workdir"),
        ({"host": "pi", "workdir": "~root/x"}, "workdir"),
        ({"host": "pi", "workdir": ""}, "workdir"),
        ({"host": "pi", "host_key": "yes"}, "host_key"),
        ({"host": "pi", "keepalive_s": -1}, "keepalive_s"),
    ],
)
def test_a_target_refuses_what_could_be_read_as_something_else(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}: "):
        SshTarget(lock_dir=Path("/tmp"), **fields)  # type: ignore[arg-type]
