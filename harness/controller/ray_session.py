"""Starts and ends Ray the way a search wants it: on loopback, quiet, without dashboard or usage statistics."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from harness.errors import BoardtuneError, ConfigError

_KNOCK_S = 10.0
MINIMUM_CPUS = 3
"""Two quantizers and one trial."""

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_SYNCER": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # The ledger is the record; Tune's own snapshots would only cost time.
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
    "TUNE_RESULT_BUFFER_LENGTH": "0",
    "TUNE_MAX_PENDING_TRIALS_PG": "64",
}


@contextlib.contextmanager
def ray_session(slots: int, logs: Path, address: str | None = None) -> Iterator[str]:
    """A Ray runtime with ``slots`` logical CPUs; gives the id of this node, where boards and the ledger must stay.

    With ``address`` an existing cluster is joined instead. Workers' output goes to ``logs``. Raises
    :class:`BoardtuneError` where Ray does not start, or the cluster cannot be joined or has too few CPUs.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    for name in ("ray", "ray.tune", "ray.air", "ray.train", "ray._private"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if ray.is_initialized():
        raise BoardtuneError(
            "this program has started Ray itself", hint="call ray.shutdown() first: a search brings its own settings"
        )
    folder: Path | None = None
    if address is None:
        folder = _start(slots)
    else:
        _join(address)
    try:
        yield ray.get_runtime_context().get_node_id()
    finally:
        if folder is not None:
            _keep_logs(folder / "logs", logs)
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _start(slots: int) -> Path | None:
    """Ray on this machine; gives its session folder."""
    import ray

    try:
        context = ray.init(
            # Not what RAY_ADDRESS may name: that is asked for by --ray-address.
            address="local",
            num_cpus=slots,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            namespace="boardtune",
        )
    except (OSError, RuntimeError) as error:
        raise BoardtuneError(f"Ray does not start: {error}", hint="is there room in /tmp and in memory?") from error
    session = context.address_info.get("session_dir")
    return Path(session) if session else None


def _join(address: str) -> None:
    import ray

    try:
        _knock(address)
        ray.init(
            address=address,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
            namespace="boardtune",
        )
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"cannot join the Ray cluster at {address!r}: {str(error).partition(chr(10))[0]}",
            hint="start it with `ray start --head`, or leave out --ray-address",
        ) from error
    cpus = float(ray.cluster_resources().get("CPU", 0))
    if cpus < MINIMUM_CPUS:
        ray.shutdown()
        raise ConfigError(
            f"the Ray cluster at {address!r} has {cpus:g} CPUs, and a search needs {MINIMUM_CPUS}",
            hint="give it more (`ray start --num-cpus=…`)",
        )


def _knock(address: str) -> None:
    """Ray itself tries for minutes. Raises ``OSError`` where nothing listens at ``HOST:PORT``."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.rpartition("/")[2].strip("[]"), int(port)), timeout=_KNOCK_S).close()


def _keep_logs(source: Path, target: Path) -> None:
    """Copies what workers printed; Ray's own logs are of no use to anyone who reads a run directory."""
    if not target.is_dir():
        return
    for file in sorted(source.glob("worker-*")):
        with contextlib.suppress(OSError):
            if file.stat().st_size:
                shutil.copyfile(file, target / file.name)
