"""Log files of a run: one per process, in the run directory."""

from __future__ import annotations

import logging
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_file(path: Path, *, level: int = logging.INFO) -> logging.Handler:
    """Sends this process's log records to ``path`` (appended); returns the handler, to be removed at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter(_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    if root.level == logging.NOTSET or root.level > level:
        root.setLevel(level)
    # paramiko tells every packet at this level.
    logging.getLogger("paramiko").setLevel(logging.WARNING)
    return handler


def stop_log_to_file(handler: logging.Handler) -> None:
    logging.getLogger().removeHandler(handler)
    handler.close()
