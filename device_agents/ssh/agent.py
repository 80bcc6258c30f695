"""The agent of a board behind SSH: the runner's agent over the SSH transport."""

from __future__ import annotations

from device_agents.runner_agent import RunnerAgent
from device_agents.ssh.target import SshTarget
from device_agents.ssh.transport import SshTransport


def ssh_agent(
    name: str, target: SshTarget, *, cache_bytes: int = 4 << 30, exclusive_sessions: bool = False
) -> RunnerAgent:
    """An agent, not yet connected, for the board at ``target``.

    ``cache_bytes`` limits what deployed files may take on the board; ``exclusive_sessions`` keeps one model in memory
    at a time. Connecting raises what :meth:`SshTransport.open` does.
    """
    return RunnerAgent(name, SshTransport(target), cache_bytes=cache_bytes, exclusive_sessions=exclusive_sessions)
