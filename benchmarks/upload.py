"""Upload speed over SSH: boardtune's transport against scp, both to one OpenSSH server on loopback, in one run.

Each round times, in alternating order, ``scp FILE`` and boardtune's open + upload + close: both connect, log in, write
and end. The bare transfer (connections already made) is told apart by subtracting what each needs for an empty file.
boardtune moreover syncs the file to the board's disk, which scp does not; its time is included. Then one
file is deployed twice through the agent, to show that the second time sends none of it.

Exit code 0 if the ratio of medians is at least --floor, else 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from device_agents.ssh import SshTransport, ssh_agent
from tests.ssh.openssh import OpenSshServer, missing_openssh, running_sshd

_DEADLINE_S = 600.0


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def scp(server: OpenSshServer, known_hosts: Path, local: Path, remote: Path) -> None:
    options = [f"UserKnownHostsFile={known_hosts}", "StrictHostKeyChecking=yes", "IdentityAgent=none"]
    command = ["scp", "-q", "-F", "none", "-i", str(server.user_key), "-P", str(server.port)]
    for option in options:
        command += ["-o", option]
    subprocess.run([*command, str(local), f"{server.user}@{server.host}:{remote}"], check=True, timeout=_DEADLINE_S)


def boardtune(server: OpenSshServer, board: Path, local: Path) -> None:
    transport = SshTransport(server.target(board))
    try:
        transport.open(_DEADLINE_S)
        transport.upload(local, "models/upload.part", 0, _DEADLINE_S)
    finally:
        transport.close()


def check_same(local: Path, remote: Path) -> None:
    if digest(local) != digest(remote):
        raise RuntimeError(f"{remote} is not what was sent")


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def race(server: OpenSshServer, folder: Path, local: Path, rounds: int) -> tuple[list[float], list[float]]:
    known_hosts, copy, board = folder / "known_hosts", folder / "scp.out", folder / "board"
    known_hosts.write_text(server.known_hosts_line() + "\n")
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        calls = [
            (times[0], lambda: scp(server, known_hosts, local, copy)),
            (times[1], lambda: boardtune(server, board, local)),
        ]
        for found, call in calls if number % 2 else reversed(calls):
            copy.unlink(missing_ok=True)
            (board / "models/upload.part").unlink(missing_ok=True)
            taken = seconds(call)
            if number:  # the first round warms caches up
                found.append(taken)
    boardtune(server, board, local)
    check_same(local, board / "models/upload.part")
    return times


def deploy_twice(server: OpenSshServer, folder: Path, local: Path) -> list[dict[str, Any]]:
    agent = ssh_agent("bench", server.target(folder / "deploy"), cache_bytes=4 << 30)
    sha256 = digest(local)
    reports = []
    try:
        agent.connect()
        for _ in range(2):
            start = time.perf_counter()
            report = agent.deploy(local, sha256)
            reports.append({"sent_bytes": report.sent_bytes, "seconds": time.perf_counter() - start})
    finally:
        agent.close()
    return reports


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100_000_000, help="bytes of random data (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="alternating rounds (default: %(default)s)")
    parser.add_argument("--floor", type=float, default=0.75, help="least ratio (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    reason = missing_openssh()
    if reason is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        local, empty = folder / "model", folder / "empty"
        local.write_bytes(os.urandom(options.size))
        empty.write_bytes(b"")
        with running_sshd(folder / "sshd") as server:
            theirs, ours = race(server, folder, local, options.rounds)
            their_rest, our_rest = race(server, folder, empty, max(3, options.rounds // 2))
            deploys = deploy_twice(server, folder, local)
    transfer = (median(theirs) - median(their_rest), median(ours) - median(our_rest))
    result = {
        "size_bytes": options.size,
        "rounds": options.rounds,
        "scp_s": theirs,
        "boardtune_s": ours,
        "ratio": median(theirs) / median(ours),
        "transfer_s": {"scp": transfer[0], "boardtune": transfer[1]},
        "transfer_ratio": transfer[0] / transfer[1],
        "deploys": deploys,
        "python": platform.python_version(),
        "openssh": subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False).stderr.strip(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(result) if options.json else table(result))
    good = result["ratio"] >= options.floor and deploys[1]["sent_bytes"] == 0
    return 0 if good else 1


def table(result: dict[str, Any]) -> str:
    megabytes = result["size_bytes"] / 1e6
    lines = [f"{megabytes:.0f} MB over loopback SSH, {result['rounds']} alternating rounds ({result['openssh']})", ""]
    for label, key, transfer in (("scp", "scp_s", "scp"), ("boardtune", "boardtune_s", "boardtune")):
        times = result[key]
        lines.append(
            f"  {label:<10} median {median(times):6.3f} s  (min {min(times):.3f}, max {max(times):.3f})  "
            f"transfer alone {megabytes / result['transfer_s'][transfer]:5.0f} MB/s"
        )
    lines += [
        "",
        f"  ratio of medians, scp : boardtune = {result['ratio']:.2f} (transfer alone {result['transfer_ratio']:.2f})",
    ]
    for number, deploy in enumerate(result["deploys"], 1):
        lines.append(f"  deploy {number}: {deploy['sent_bytes']:>11,} bytes sent in {deploy['seconds']:.3f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
