"""Boards reached over SSH: Linux (and, untested, Windows) machines with a Python that has ONNX Runtime."""

from device_agents.ssh.agent import ssh_agent
from device_agents.ssh.connection import fetch_host_key
from device_agents.ssh.hostkeys import HostKey, enrol
from device_agents.ssh.target import SshTarget
from device_agents.ssh.transport import SshTransport

__all__ = ["HostKey", "SshTarget", "SshTransport", "enrol", "fetch_host_key", "ssh_agent"]
