"""Connecting to a real OpenSSH server: keys, hosts, jumps, and what is said when it does not work."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agents.contract import AgentError, BoardUnfit, LeaseLost, LinkError, Untrusted
from device_agents.secret import Secret
from device_agents.ssh import HostKey, SshTransport, enrol, fetch_host_key
from device_agents.ssh.target import SshTarget
from tests.ssh.openssh import OpenSshServer, fingerprint, free_port, make_key, running_sshd


@pytest.fixture(scope="module")
def gate(sshd: OpenSshServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSshServer]:
    """A jump host: another sshd, with keys of its own, that accepts the first one's user key too."""
    with running_sshd(tmp_path_factory.mktemp("gate"), authorized=[Path(f"{sshd.user_key}.pub")]) as server:
        yield server


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def opened(target: SshTarget) -> None:
    transport = SshTransport(target)
    try:
        transport.open(30)
        assert transport.connected()
    finally:
        transport.close()
    assert not transport.connected()


def refused(target: SshTarget, kind: type[AgentError], deadline_s: float = 30) -> AgentError:
    transport = SshTransport(target)
    with pytest.raises(kind) as caught:
        transport.open(deadline_s)
    assert not transport.connected()
    assert list(target.lock_dir.iterdir()) == []  # a failed attempt does not keep others off the board
    transport.close()
    return caught.value


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_key_of_each_kind_logs_in(sshd: OpenSshServer, board: Path, tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / "key", kind)
    with (sshd.folder / "authorized_keys").open("a") as file:
        file.write(Path(f"{key}.pub").read_text())
    opened(sshd.target(board, key_file=key))


def test_encrypted_key_needs_its_passphrase(sshd: OpenSshServer, board: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path / "key", passphrase="correct horse")
    with (sshd.folder / "authorized_keys").open("a") as file:
        file.write(Path(f"{key}.pub").read_text())
    opened(sshd.target(board, key_file=key, passphrase=Secret("correct horse")))
    assert "encrypted" in str(refused(sshd.target(board, key_file=key), LinkError))
    wrong = str(refused(sshd.target(board, key_file=key, passphrase=Secret("battery staple")), LinkError))
    assert "wrong passphrase?" in wrong
    assert "battery" not in wrong


def test_agent_lends_an_encrypted_key(
    sshd: OpenSshServer, board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, other = make_key(tmp_path / "key"), make_key(tmp_path / "other")
    with (sshd.folder / "authorized_keys").open("a") as file:
        file.write(Path(f"{key}.pub").read_text())
    path = tmp_path / "agent.sock"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        while not path.exists():
            assert agent.poll() is None
        subprocess.run(["ssh-add", "-q", str(other), str(key)], check=True, timeout=20)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True, capture_output=True)
        opened(sshd.target(board, key_file=None, use_agent=True))
        opened(sshd.target(board, key_file=key, use_agent=True))
        refused(sshd.target(board, key_file=key, use_agent=False), LinkError)
    finally:
        agent.terminate()
        agent.wait(10)


def test_wrong_key_names_what_was_tried_and_what_is_accepted(sshd: OpenSshServer, board: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path / "stranger")
    error = refused(sshd.target(board, key_file=key), LinkError)
    assert not error.retryable
    said = str(error)
    assert str(key) in said
    assert "accepts: publickey" in said
    assert f"ssh -p {sshd.port} {sshd.user}@127.0.0.1" in said


def test_no_key_at_all(sshd: OpenSshServer, board: Path, tmp_path: Path) -> None:
    said = str(refused(sshd.target(board, key_file=None), LinkError))
    assert "no usable key" in said
    assert "ssh-copy-id" in said
    missing = str(refused(sshd.target(board, key_file=tmp_path / "nothing"), LinkError))
    assert "does not exist" in missing


def test_password_is_not_shown_when_the_server_takes_none(sshd: OpenSshServer, board: Path) -> None:
    error = refused(sshd.target(board, key_file=None, password=Secret("hunter2")), LinkError)
    assert "hunter2" not in f"{error} {error!r} {error.detail}"


def test_refused_port(sshd: OpenSshServer, board: Path) -> None:
    said = str(refused(sshd.target(board, port=free_port()), LinkError))
    assert "refused" in said
    assert "systemctl enable --now ssh" in said


def test_unknown_name(sshd: OpenSshServer, board: Path) -> None:
    said = str(refused(sshd.target(board, host="no-such-board.invalid"), LinkError))
    assert "not known" in said
    assert "no-such-board.invalid" in said


@pytest.mark.parametrize(("greeting", "words"), [(b"", "handshake|SSH"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "SSH")])
def test_something_else_listens(sshd: OpenSshServer, board: Path, greeting: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.listen()
        if greeting:
            import threading

            def answer() -> None:
                link, _ = other.accept()
                with link:
                    link.sendall(greeting)

            threading.Thread(target=answer, daemon=True).start()
        error = refused(sshd.target(board, port=other.getsockname()[1]), LinkError, deadline_s=2)
        assert any(word in str(error) for word in words.split("|"))


def test_reset_while_connecting(sshd: OpenSshServer, board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who accepts and hangs up at once may be seen to do so by ``connect`` itself."""

    def reset(link: socket.socket, address: object) -> None:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    monkeypatch.setattr(socket.socket, "connect", reset)
    with pytest.raises(LinkError, match="does not speak SSH, or broke off") as caught:
        SshTransport(sshd.target(board)).open(20)
    assert "is this the port of the SSH server?" in caught.value.hint


def test_unknown_host_key_is_refused_with_its_fingerprint(sshd: OpenSshServer, board: Path) -> None:
    error = refused(sshd.target(board, host_key=None), Untrusted)
    assert sshd.host_fingerprint() in str(error)
    assert "boardtune boards trust" in str(error)
    assert not board.exists()


def test_changed_host_key_is_refused_with_both_fingerprints(sshd: OpenSshServer, board: Path, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    pinned = refused(sshd.target(board, host_key=fingerprint(Path(f"{other}.pub"))), Untrusted)
    assert fingerprint(Path(f"{other}.pub")) in str(pinned)
    assert sshd.host_fingerprint() in str(pinned)
    known = tmp_path / "known_hosts"
    algorithm, encoded = Path(f"{other}.pub").read_text().split()[:2]
    known.write_text(f"[127.0.0.1]:{sshd.port} {algorithm} {encoded}\n")
    listed = refused(sshd.target(board, host_key=None, known_hosts=known), Untrusted)
    assert "changed" in str(listed)
    assert f"{known}:1" in str(listed)
    assert sshd.host_fingerprint() in str(listed)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
@pytest.mark.parametrize("form", ["fingerprint", "with algorithm", "key", "known_hosts"])
def test_any_key_of_the_server_may_be_the_pinned_one(
    sshd: OpenSshServer, board: Path, tmp_path: Path, kind: str, form: str
) -> None:
    algorithm, encoded = sshd.host_public_key(kind).read_text().split()[:2]
    shown = sshd.host_fingerprint(kind)
    if form == "known_hosts":
        known = tmp_path / "known_hosts"
        known.write_text(sshd.known_hosts_line(kind) + "\n")
        opened(sshd.target(board, host_key=None, known_hosts=known))
    else:
        pin = {"fingerprint": shown, "with algorithm": f"{algorithm} {shown}", "key": f"{algorithm} {encoded}"}[form]
        opened(sshd.target(board, host_key=pin))


def test_known_key_of_a_kind_the_server_no_longer_has_counts_as_changed(board: Path, tmp_path: Path) -> None:
    with running_sshd(tmp_path / "sshd", host_key_types=["ed25519"]) as server:
        other = make_key(tmp_path / "old", "rsa")
        algorithm, encoded = Path(f"{other}.pub").read_text().split()[:2]
        error = refused(server.target(board, host_key=f"{algorithm} {encoded}"), Untrusted)
        assert server.host_fingerprint() in str(error)


def test_revoked_key_is_refused_even_if_pinned(sshd: OpenSshServer, board: Path, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"@revoked {sshd.known_hosts_line()}\n")
    assert "@revoked" in str(refused(sshd.target(board, known_hosts=known), Untrusted))


def test_enrolment_shows_the_key_and_then_trusts_it(sshd: OpenSshServer, board: Path, tmp_path: Path) -> None:
    target = sshd.target(board, host_key=None, known_hosts=tmp_path / "config" / "known_hosts")
    key = fetch_host_key(target)
    assert key == HostKey("ssh-ed25519", sshd.host_fingerprint(), sshd.known_hosts_line())
    refused(target, Untrusted)
    assert target.known_hosts is not None
    enrol(target.known_hosts, key)
    opened(target)


def test_enrolment_logs_in_nowhere(sshd: OpenSshServer, board: Path, tmp_path: Path) -> None:
    target = sshd.target(board, host_key=None, key_file=tmp_path / "missing", user="nobody-at-all")
    assert fetch_host_key(target).fingerprint == sshd.host_fingerprint()


def jump_target(sshd: OpenSshServer, gate: OpenSshServer, board: Path, known: Path, **changes: object) -> SshTarget:
    known.write_text(gate.known_hosts_line() + "\n")
    values: dict[str, object] = {"proxy_jump": f"{gate.user}@127.0.0.1:{gate.port}", "known_hosts": known}
    return sshd.target(board, **{**values, **changes})


def test_jump_host(sshd: OpenSshServer, gate: OpenSshServer, board: Path, tmp_path: Path) -> None:
    before = gate.log.count("Accepted publickey")
    target = jump_target(sshd, gate, board, tmp_path / "known")
    opened(target)
    assert gate.log.count("Accepted publickey") == before + 1
    assert fetch_host_key(target).fingerprint == sshd.host_fingerprint()


def test_two_jumps(sshd: OpenSshServer, gate: OpenSshServer, board: Path, tmp_path: Path) -> None:
    known = tmp_path / "known"
    hop = f"{gate.user}@127.0.0.1:{gate.port}"
    opened(jump_target(sshd, gate, board, known, proxy_jump=f"{hop},{hop}"))


def test_jump_host_is_verified_too(sshd: OpenSshServer, gate: OpenSshServer, board: Path, tmp_path: Path) -> None:
    target = jump_target(sshd, gate, board, tmp_path / "known", known_hosts=None)
    error = refused(target, Untrusted)
    assert "jump host" in str(error)
    assert gate.host_fingerprint() in str(error)
    assert "pin" not in str(error)
    with pytest.raises(Untrusted, match="jump host"):
        fetch_host_key(target)


def test_jump_host_never_sees_the_password(sshd: OpenSshServer, board: Path, tmp_path: Path) -> None:
    with running_sshd(tmp_path / "gate", extra=["PasswordAuthentication yes"]) as gate:
        target = jump_target(sshd, gate, board, tmp_path / "known", password=Secret("hunter2"), key_file=None)
        error = refused(target, LinkError)
        assert "jump host" in str(error)
        assert "Failed password" not in gate.log
        assert "tried: nothing" in str(error)


def test_jump_host_that_cannot_reach_the_board(
    sshd: OpenSshServer, gate: OpenSshServer, board: Path, tmp_path: Path
) -> None:
    error = refused(jump_target(sshd, gate, board, tmp_path / "known", port=free_port()), LinkError)
    assert "jump host cannot reach" in str(error)
    with running_sshd(
        tmp_path / "closed", extra=["AllowTcpForwarding no"], authorized=[Path(f"{sshd.user_key}.pub")]
    ) as closed:
        error = refused(jump_target(sshd, closed, board, tmp_path / "known"), LinkError)
        assert "AllowTcpForwarding" in str(error)


def test_ssh_configuration_leads_to_the_board(
    sshd: OpenSshServer, gate: OpenSshServer, board: Path, tmp_path: Path
) -> None:
    known = tmp_path / "known"
    known.write_text(f"the-board {sshd.known_hosts_line().split(' ', 1)[1]}\n{gate.known_hosts_line()}\n")
    config = tmp_path / "config"
    config.write_text(
        f"""
        Host pi
          HostName 127.0.0.1
          Port {sshd.port}
          HostKeyAlias the-board
          ProxyJump gate
        Host gate
          HostName 127.0.0.1
          Port {gate.port}
        Host *
          User {sshd.user}
          IdentityFile {sshd.user_key}
          UserKnownHostsFile {known}
        """
    )
    target = SshTarget(host="pi", lock_dir=tmp_path / "locks", config_file=config, use_agent=False, workdir=str(board))
    opened(target)


def test_two_controllers(sshd: OpenSshServer, board: Path) -> None:
    first, second = (SshTransport(sshd.target(board)) for _ in range(2))
    first.open(30)
    with pytest.raises(LeaseLost, match=f"process {os.getpid()}"):
        second.open(30)
    assert first.connected()
    first.close()
    second.open(30)
    second.close()


def test_opening_again_keeps_the_board(sshd: OpenSshServer, board: Path) -> None:
    first, second = (SshTransport(sshd.target(board)) for _ in range(2))
    first.open(30)
    first.open(30)
    with pytest.raises(LeaseLost):
        second.open(30)
    first.write_file("a", b"1")
    first.close()


def test_login_without_sftp(board: Path, tmp_path: Path) -> None:
    with running_sshd(tmp_path / "sshd", sftp=False) as server:
        assert "openssh-sftp-server" in str(refused(server.target(board), BoardUnfit))
    with running_sshd(tmp_path / "sshd2", sftp=False, extra=["Subsystem sftp /nowhere/sftp-server"]) as server:
        assert "openssh-sftp-server" in str(refused(server.target(board), BoardUnfit))


def test_failed_logins_leave_no_thread_that_keeps_the_program(sshd: OpenSshServer, board: Path) -> None:
    import threading

    before = {thread.ident for thread in threading.enumerate() if not thread.daemon}
    refused(sshd.target(board, host_key=None), Untrusted)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        refused(sshd.target(board, port=silent.getsockname()[1]), LinkError, deadline_s=1)
    assert {thread.ident for thread in threading.enumerate() if not thread.daemon} <= before
