"""An authenticated SSH connection to a board, through its jump hosts, every one of them verified."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import sys
from collections.abc import Sequence

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from device_agents.contract import AgentError, LinkError, Untrusted
from device_agents.ssh.auth import Credentials, log_in
from device_agents.ssh.config import Hop, route
from device_agents.ssh.guard import GuardedSocket, wire_log, within
from device_agents.ssh.hostkeys import (
    HostKey,
    KnownKey,
    families,
    host_key_from,
    key_fingerprint,
    read_known_hosts,
    signature_algorithms,
)
from device_agents.ssh.target import SshTarget
from device_agents.ssh.text import printable
from device_agents.transport import Deadline

logger = logging.getLogger(__name__)

_FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
"""One pass in OpenSSL and no separate MAC in Python: a fifth faster here than paramiko's first choice, aes128-ctr."""
_VERIFIABLE = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
"""Host key algorithms that paramiko verifies, in our order; SHA-1 signatures of RSA keys are out."""
_CONNECT_S = 20.0
_CLOSE_STALL_S = 2.0
_WINDOW_BYTES = 8 << 20
"""What the board may send unread: keeps a 100 ms path at 80 MB/s busy."""


class Connection:
    """A live, authenticated connection. :func:`connect` makes it."""

    def __init__(self, transport: paramiko.Transport, guards: Sequence[GuardedSocket], below: Sequence[object]) -> None:
        self.transport = transport
        self._guards = tuple(guards)
        self._below = tuple(item for item in below if isinstance(item, paramiko.Transport))

    def alive(self) -> bool:
        return (
            self.transport.is_active()
            and self.transport.is_authenticated()
            and not any(guard.ended for guard in self._guards)
        )

    def open_channel(self, deadline: Deadline) -> paramiko.Channel:
        """A session channel.

        Raises:
            LinkError: the link is gone, or the server opens no more channels.
        """
        try:
            return self.transport.open_session(window_size=_WINDOW_BYTES, timeout=max(0.1, deadline.remaining()))
        except paramiko.ChannelException as error:
            raise LinkError(
                f"the SSH server opens no session: {printable(error.text)}", hint="see MaxSessions in its sshd_config"
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise LinkError(f"the SSH connection is gone: {error}") from error

    def give_up_at(self, monotonic_s: float | None) -> None:
        """Until when a write that the network does not take may wait; ``None`` leaves it to the stall limit."""
        for guard in self._guards:
            guard.give_up_at = monotonic_s

    def close(self) -> None:
        for guard in self._guards:
            guard.stall_s = _CLOSE_STALL_S
        for transport in (self.transport, *self._below):
            _close_quietly(transport)


def connect(target: SshTarget, deadline: Deadline) -> Connection:
    """Connects hop by hop.

    Raises:
        LinkError: unknown name, no route, refused, no answer, not an SSH server, login refused; says at which hop.
        Untrusted: a host key is unknown, changed or revoked.
    """
    return _connect(route(target), target, deadline)


def fetch_host_key(target: SshTarget, deadline_s: float = 30.0) -> HostKey:
    """The key the board presents now, **unverified**: for showing to a person who then decides (``boards trust``).

    Jump hosts on the way are verified and logged in to as usual. Raises :class:`LinkError`, :class:`Untrusted`
    (a jump host).
    """
    deadline = Deadline(deadline_s)
    *jumps, board = route(target)
    through = _connect(jumps, target, deadline) if jumps else None
    try:
        transport, _ = _handshake(board, through, deadline, _VERIFIABLE)
        key = transport.get_remote_server_key()
        _close_quietly(transport)
        return host_key_from(key.get_name(), key.asbytes(), board.names[0])
    finally:
        if through is not None:
            through.close()


def _connect(hops: Sequence[Hop], target: SshTarget, deadline: Deadline) -> Connection:
    credentials = Credentials(target.password, target.passphrase)
    connection: Connection | None = None
    try:
        for hop in hops:
            transport, guard = _trusted_handshake(hop, connection, deadline)
            guards = (*(connection._guards if connection else ()), guard)
            below = (connection.transport, *connection._below) if connection else ()
            connection = Connection(transport, guards, below)
            log_in(transport, hop, credentials, deadline)
            if target.keepalive_s:
                transport.set_keepalive(target.keepalive_s)
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    if connection is None:
        raise ValueError("no hop to connect to")
    return connection


def _trusted_handshake(
    hop: Hop, through: Connection | None, deadline: Deadline
) -> tuple[paramiko.Transport, GuardedSocket]:
    """Handshake with a server whose key is the pinned or a known one."""
    entries = read_known_hosts(hop.known_hosts, hop.names)
    revoked = tuple(key for key in entries if key.revoked)
    known = (hop.pin,) if hop.pin is not None else tuple(key for key in entries if not key.revoked)
    if not known:
        transport, _ = _handshake(hop, through, deadline, _VERIFIABLE)
        raise _untrusted(hop, transport, known, revoked)
    # A pin without an algorithm does not tell which of the server's keys to ask for: ask for each kind in turn.
    transport, guard = _handshake(hop, through, deadline, signature_algorithms(known, _VERIFIABLE))
    if _accepted(transport, known, revoked):
        return transport, guard
    refusal = _untrusted(hop, transport, known, revoked)
    if all(key.algorithm for key in known):
        raise refusal
    shown = transport.host_key_type
    for family in families(_VERIFIABLE):
        if shown in family:
            continue
        try:
            transport, guard = _handshake(hop, through, deadline, family)
        except _NoCommonKey:
            continue
        if _accepted(transport, known, revoked):
            return transport, guard
        _close_quietly(transport)
    raise refusal


def _accepted(transport: paramiko.Transport, known: Sequence[KnownKey], revoked: Sequence[KnownKey]) -> bool:
    shown = key_fingerprint(transport.get_remote_server_key().asbytes())
    return any(key.fingerprint == shown for key in known) and not any(key.fingerprint == shown for key in revoked)


def _untrusted(
    hop: Hop, transport: paramiko.Transport, known: Sequence[KnownKey], revoked: Sequence[KnownKey]
) -> Untrusted:
    key = transport.get_remote_server_key()
    shown = host_key_from(key.get_name(), key.asbytes(), hop.names[0])
    _close_quietly(transport)
    who = f"{'' if hop.is_board else 'jump host '}{hop}"
    presented = f"presented {shown.fingerprint} ({shown.algorithm})"
    if any(entry.fingerprint == shown.fingerprint for entry in revoked):
        return Untrusted(f"the host key of {who} is marked @revoked in {revoked[0].where}; it {presented}")
    if not known:
        trust = "enrol it with: boardtune boards trust NAME" if hop.is_board else f"log in once with: ssh {hop.host}"
        return Untrusted(
            f"the host key of {who} is unknown; it {presented}",
            hint=f"compare this fingerprint with the one on the machine itself (ssh-keygen -lf "
            f"/etc/ssh/ssh_host_{_file_part(shown.algorithm)}_key.pub), then {trust}",
            detail=shown.line,
        )
    expected = "; ".join(f"{key.fingerprint} ({key.algorithm or 'pinned'}, {key.where})" for key in known)
    renew = "boardtune boards trust NAME" if hop.is_board else f"ssh-keygen -R {hop.names[0]} and ssh {hop.host}"
    return Untrusted(
        f"the host key of {who} changed: expected {expected}; it {presented}",
        hint=f"another machine has this address, or the board was reinstalled; if you know why it changed: {renew}",
        detail=shown.line,
    )


def _file_part(algorithm: str) -> str:
    return {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(algorithm, "ecdsa")


class _NoCommonKey(LinkError):
    """The server has no host key of the kinds asked for."""


def _handshake(
    hop: Hop, through: Connection | None, deadline: Deadline, host_key_types: Sequence[str]
) -> tuple[paramiko.Transport, GuardedSocket]:
    """TCP (or a tunnel) and the SSH key exchange; the host key is **not** checked here."""
    guard = GuardedSocket(_tunnel(hop, through, deadline) if through is not None else _tcp(hop, deadline))
    try:
        transport = paramiko.Transport(guard)  # type: ignore[arg-type]  # a socket-like object will do
    except BaseException:
        guard.close()
        raise
    transport.set_log_channel(wire_log())
    options = transport.get_security_options()
    options.ciphers = tuple(sorted(options.ciphers, key=lambda name: name not in _FAST_CIPHERS))
    options.key_types = tuple(host_key_types)
    patience = max(0.1, deadline.remaining())
    transport.banner_timeout = transport.handshake_timeout = patience
    transport.clear_to_send_timeout = patience
    try:
        transport.start_client(timeout=patience)
        transport.get_remote_server_key()  # raises where the exchange is not over
    except IncompatiblePeer as error:
        _close_quietly(transport)
        raise _NoCommonKey(f"{hop} and this program have no algorithm in common: {error}") from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        _close_quietly(transport)
        if deadline.passed:
            raise LinkError(
                f"{hop} took the connection but did not finish the SSH handshake within {deadline.seconds:g} s"
            ) from error
        raise _broke_off(hop, error) from error
    return transport, guard


def _tunnel(hop: Hop, through: Connection, deadline: Deadline) -> paramiko.Channel:
    try:
        return through.transport.open_channel(
            "direct-tcpip",
            dest_addr=(hop.host, hop.port),
            src_addr=("127.0.0.1", 0),
            window_size=_WINDOW_BYTES,
            timeout=max(0.1, deadline.remaining()),
        )
    except paramiko.ChannelException as error:
        hint = (
            "the jump host forbids forwarding: AllowTcpForwarding in its sshd_config"
            if error.code == 1
            else "the name and port are looked up on the jump host, not here"
        )
        raise LinkError(f"the jump host cannot reach {hop}: {printable(error.text)}", hint=hint) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise LinkError(f"the jump host opened no way to {hop}: {error}") from error


def _tcp(hop: Hop, deadline: Deadline) -> socket.socket:
    def look_up() -> list[tuple[int, int, int, str, tuple[object, ...]]]:
        return socket.getaddrinfo(hop.host, hop.port, type=socket.SOCK_STREAM)  # type: ignore[return-value]

    try:
        addresses = within(max(0.1, deadline.remaining()), look_up)
    except TimeoutError as error:
        raise LinkError(f"the name {hop.host!r} could not be looked up within {deadline.seconds:g} s") from error
    except (socket.gaierror, UnicodeError) as error:
        raise LinkError(
            f"the host name {hop.host!r} is not known: {error}",
            hint="check its spelling, or give the address; names of boards on the local network often end in .local",
        ) from error
    failure: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        link = socket.socket(family, kind, protocol)
        try:
            link.settimeout(max(0.1, min(_CONNECT_S, deadline.remaining())))
            link.connect(address)
        except OSError as error:
            link.close()
            failure = error
            continue
        _tune(link)
        return link
    raise _unreachable(hop, failure, deadline)


def _tune(link: socket.socket) -> None:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        # paramiko's keepalive asks for no answer, so only the kernel notices a peer that vanished: after this long
        # with unacknowledged data, the connection is over.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)


def _unreachable(hop: Hop, failure: OSError | None, deadline: Deadline) -> AgentError:
    if isinstance(failure, ConnectionRefusedError):
        return LinkError(
            f"{hop} refused the connection: nothing listens there",
            hint="the machine is up; is its SSH server on (sudo systemctl enable --now ssh), and on this port?",
        )
    if isinstance(failure, TimeoutError):
        return LinkError(
            f"{hop} does not answer",
            hint=f"waited {min(_CONNECT_S, deadline.seconds):g} s; is it powered, on this network, "
            "and not behind a firewall?",
        )
    if failure is not None and failure.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
        return LinkError(
            f"there is no way to {hop}: {failure.strerror}",
            hint="is the board on, and this computer on its network (cable, Wi-Fi, VPN)?",
        )
    if isinstance(failure, ConnectionResetError):
        # What hangs up at once may do so before the connection counts as made.
        return _broke_off(hop, failure)
    return LinkError(f"cannot connect to {hop}: {failure or 'no address'}")


def _broke_off(hop: Hop, error: Exception) -> LinkError:
    return LinkError(
        f"{hop} does not speak SSH, or broke off: {printable(str(error)) or type(error).__name__}",
        hint="is this the port of the SSH server? A server short of connections breaks off too (MaxStartups)",
    )


def _close_quietly(transport: paramiko.Transport) -> None:
    # paramiko leaves the handshake's timer running after a failure, and that keeps the interpreter from exiting.
    with contextlib.suppress(Exception):
        transport.packetizer.complete_handshake()
    with contextlib.suppress(Exception):
        transport.close()
