"""From a board file to the agent that drives the board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from device_agents.contract import Agent
from device_agents.emulated.chip.spec import EmulatedChipSpec
from device_agents.emulated.spec import EmulatedSpec
from device_agents.ssh.target import SshTarget
from harness.boards.folders import config_folder, runtime_folder
from harness.boards.host_lock import host_lock_folder
from harness.boards.schema import Board
from harness.boards.transports import (
    EmulatedSerialTransport,
    LocalTransport,
    MlperfTinyTransport,
    SerialTransport,
    SshTransport,
)
from harness.errors import ConfigError

if TYPE_CHECKING:
    from device_agents.serial.port import SerialTarget


def known_hosts_path() -> Path:
    """boardtune's own known_hosts file, written by ``boards trust``."""
    return config_folder() / "known_hosts"


def open_agent(board: Board) -> Agent:
    """An agent for the board, not yet connected. Secrets are read now, and not before.

    Raises:
        ConfigError: a secret cannot be read, or the board cannot be driven as described.
    """
    transport = board.transport
    if isinstance(transport, LocalTransport):
        return _local(board, transport)
    if isinstance(transport, SshTransport):
        return _ssh(board, transport)
    if isinstance(transport, SerialTransport):
        return _serial(board)
    if isinstance(transport, EmulatedSerialTransport):
        return _emulated_chip(board, transport)
    if isinstance(transport, MlperfTinyTransport):
        return _mlperf_tiny(board)
    return _emulated(board)


def ssh_target(board: Board) -> SshTarget:
    """Where an SSH board is and how to log in, secrets included.

    Raises:
        ConfigError: it is no SSH board, a secret cannot be read, or a value is refused.
    """
    transport = board.transport
    if not isinstance(transport, SshTransport):
        raise ConfigError(
            f"board {board.name!r} is not reached over ssh but by {transport.kind}",
            hint="name a board with transport ssh",
        )
    if transport.key is not None and not transport.key.is_file():
        raise ConfigError(
            f"board {board.name!r}: the private key {transport.key} does not exist",
            hint="correct transport.key, or make one: ssh-keygen -t ed25519",
        )
    password, passphrase = transport.password, transport.passphrase
    try:
        return SshTarget(
            host=transport.host,
            lock_dir=runtime_folder() / "boards",
            port=transport.port,
            user=transport.user,
            key_file=transport.key,
            password=password.resolve(board.name, "transport.password") if password else None,
            passphrase=passphrase.resolve(board.name, "transport.passphrase") if passphrase else None,
            host_key=transport.host_key,
            known_hosts=known_hosts_path(),
            proxy_jump=transport.proxy_jump,
            config_file=transport.config,
            use_agent=transport.use_agent,
            python=transport.python,
            workdir=transport.workdir,
            keepalive_s=max(1, round(transport.keepalive_s)),
        )
    except ValueError as error:
        raise ConfigError(f"board {board.name!r}: transport.{error}", hint="correct the board file") from None


def _local(board: Board, transport: LocalTransport) -> Agent:
    from device_agents.local import local_agent

    return local_agent(
        board.name,
        python=transport.python,
        workdir=transport.workdir,
        cache_bytes=board.cache_bytes,
        exclusive_sessions=board.runtime.exclusive_session,
    )


def _ssh(board: Board, transport: SshTransport) -> Agent:
    from device_agents.ssh import ssh_agent

    return ssh_agent(
        board.name,
        ssh_target(board),
        cache_bytes=board.cache_bytes,
        exclusive_sessions=board.runtime.exclusive_session,
    )


def serial_target(board: Board) -> SerialTarget:
    """Where a serial board is.

    Raises:
        ConfigError: it is no serial board.
    """
    from device_agents.serial.port import SerialTarget

    transport = board.transport
    if isinstance(transport, MlperfTinyTransport):
        return SerialTarget(
            lock_dir=runtime_folder() / "boards",
            port=transport.port,
            usb_serial=transport.usb_serial,
            baud=transport.baud,
            max_baud=transport.baud,
            reset=transport.reset,
        )
    if not isinstance(transport, SerialTransport):
        raise ConfigError(
            f"board {board.name!r} is not reached over a serial line but by {transport.kind}",
            hint="name a board with transport serial",
        )
    return SerialTarget(
        lock_dir=runtime_folder() / "boards",
        port=transport.port,
        mac=transport.mac,
        usb_serial=transport.usb_serial,
        baud=transport.baud,
        max_baud=transport.max_baud,
        reset=transport.reset,
        chip=transport.target,
    )


def _serial(board: Board) -> Agent:
    from device_agents.serial.agent import SerialAgent

    return SerialAgent(board.name, serial_target(board))


def _mlperf_tiny(board: Board) -> Agent:
    from device_agents.serial.mlperf_tiny import MlperfTinyAgent

    return MlperfTinyAgent(board.name, serial_target(board))


def _emulated_chip(board: Board, transport: EmulatedSerialTransport) -> Agent:
    from device_agents.emulated.chip.power import chip_agent

    if not isinstance(board.emulated, EmulatedChipSpec):
        raise ConfigError(f"board {board.name!r} has no section emulated: with a chip", hint="add one")
    return chip_agent(board.name, board.emulated, max_baud=transport.max_baud)


def _emulated(board: Board) -> Agent:
    from device_agents.emulated import emulated_agent

    if not isinstance(board.emulated, EmulatedSpec):
        raise ConfigError(f"board {board.name!r} has no section emulated:", hint="add one, or use transport kind ssh")
    return emulated_agent(
        board.name,
        board.emulated,
        cache_bytes=board.cache_bytes,
        exclusive_sessions=board.runtime.exclusive_session,
        host_lock=host_lock_folder(),
    )
