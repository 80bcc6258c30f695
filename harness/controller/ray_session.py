"""Starts and ends Ray the way a search wants it: on loopback, quiet, without dashboard or usage statistics."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

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

    With ``address`` an existing cluster is joined instead. Workers' output goes to ``logs``.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    for name in ("ray", "ray.tune", "ray.air", "ray.train", "ray._private"):
        logging.getLogger(name).setLevel(logging.ERROR)
    folder: Path | None = None
    if address is None:
        context = ray.init(
            num_cpus=slots,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            namespace="boardtune",
        )
        session = context.address_info.get("session_dir")
        folder = Path(session) if session else None
    else:
        ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)
    try:
        yield ray.get_runtime_context().get_node_id()
    finally:
        if folder is not None:
            _keep_logs(folder / "logs", logs)
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _keep_logs(source: Path, target: Path) -> None:
    """Copies what workers printed; Ray's own logs are of no use to anyone who reads a run directory."""
    if not target.is_dir():
        return
    for file in sorted(source.glob("worker-*")):
        with contextlib.suppress(OSError):
            if file.stat().st_size:
                shutil.copyfile(file, target / file.name)
