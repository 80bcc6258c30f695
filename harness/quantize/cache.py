"""Named arrays on disk that any process may find again: whole or not at all, checked, bounded, least used first out."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import fcntl
except ImportError:  # Windows: two processes may then compute the same thing twice.
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

LIMIT_BYTES = 2 << 30
"""All entries together; the least recently used go first."""
LARGEST_BYTES = 256 << 20
"""Entries beyond this are not kept: computing them again costs less than the others they would push out."""
WAIT_S = 900.0
"""For another process that computes the same entry. Then it is computed here too, which is safe and only costs time."""
_POLL_S = 0.02
_STALE_S = 3600.0
_META = "meta"

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Entry:
    meta: Any
    """Plain JSON."""
    arrays: Arrays


class Cache:
    """Entries in one folder, shared between processes. Nothing it does raises: what cannot be kept is not kept."""

    def __init__(self, folder: Path | None, *, limit_bytes: int = LIMIT_BYTES) -> None:
        """``folder`` is made when needed; ``None`` keeps nothing."""
        self.folder = folder
        self._limit = limit_bytes

    def read(self, key: str) -> Entry | None:
        """The entry, or ``None`` if there is none. A damaged one is removed."""
        path = self._path(key)
        if path is None:
            return None
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            meta = json.loads(arrays.pop(_META).tobytes())
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
            logger.warning("cache entry %s is damaged (%s): it is made again", path, error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return Entry(meta, arrays)

    def write(self, key: str, meta: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Keeps an entry. ``meta`` is plain JSON."""
        path = self._path(key)
        size = sum(array.nbytes for array in arrays.values())
        if path is None or size > min(LARGEST_BYTES, self._limit):
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            members: Any = {**arrays, _META: np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)}
            # Without fsync: what a power failure leaves half written fails its checksum and is made again.
            with temporary.open("wb") as file:
                np.savez(file, **members)
            temporary.replace(path)
            self._trim()
        except OSError as error:
            logger.warning("cannot keep a cache entry in %s: %s", path.parent, error)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, key: str, breathe: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Held by one process at a time, so that what is expensive is computed once; ``breathe`` is called while
        waiting. Freed by the system when its holder dies."""
        with contextlib.ExitStack() as stack:
            if self.folder is not None and fcntl is not None:
                self._take_lock(key, stack, breathe)
            yield

    def _take_lock(self, key: str, stack: contextlib.ExitStack, breathe: Callable[[], None]) -> None:
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = stack.enter_context(path.with_suffix(".lock").open("ab"))
        except OSError as error:
            logger.warning("cannot lock %s: %s", path, error)
            return
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                breathe()
                time.sleep(_POLL_S)
        logger.warning("another process has held %s for %g s; going on without it", path, WAIT_S)

    def _path(self, key: str) -> Path | None:
        return self.folder / f"{key}.npz" if self.folder is not None else None

    def _trim(self) -> None:
        """Removes the least recently used entries beyond the limit, and what killed processes left half written."""
        if self.folder is None:
            return
        now = time.time()
        entries = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                info = path.stat()
                if path.suffix == ".npz":
                    entries.append((info.st_mtime, info.st_size, path))
                elif now - info.st_mtime > _STALE_S and path.suffix == ".tmp":
                    path.unlink()
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._limit:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                path.with_suffix(".lock").unlink(missing_ok=True)
            total -= size
