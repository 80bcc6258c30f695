"""Files on the board: deployed models and data by digest, and results by request id."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from typing import Iterable, List, NamedTuple, Optional, Sequence, Set

from .errors import RunnerError
from .frames import Buffer

_DIGEST = re.compile(r"[0-9a-f]{64}")
_REQUEST = re.compile(r"[0-9a-f]{8,64}")
_DISK_RESERVE = 32 << 20
"""Left free on the disk, for results and the system."""
_STALE_PART_S = 24 * 3600
_KEPT_RESULTS = 8
_KEPT_RESULT_BYTES = 512 << 20


def write_atomically(path: str, parts: Iterable[Buffer]) -> None:
    """The file appears whole or not at all, and survives a power cut once there."""
    temporary = "{}.{}.tmp".format(path, os.getpid())
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        _remove(temporary)
        raise


class _Entry(NamedTuple):
    path: str
    size: int
    used: float


class ModelStore:
    """``models/<sha256>``: a cache of bounded size, least recently used first out."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "models")
        os.makedirs(self._folder, exist_ok=True)

    def path(self, sha256: str) -> str:
        """Of a deployed file, touched as used now.

        Raises:
            RunnerError: ``BadData`` if it is not there.
        """
        path = self._path(sha256)
        try:
            os.utime(path)
        except OSError:
            raise RunnerError(
                "BadData", "no file with sha256 {} is on the board".format(sha256), hint="deploy it first"
            ) from None
        return path

    def has(self, sha256: str) -> bool:
        path = self._path(sha256)
        if not os.path.isfile(path):
            return False
        os.utime(path)
        return True

    def part_size(self, sha256: str) -> Optional[int]:
        """Bytes of a broken upload, if there is one."""
        try:
            return os.path.getsize(self._path(sha256) + ".part")
        except OSError:
            return None

    def commit(self, sha256: str, size: int) -> None:
        """Turns ``<sha256>.part`` into the file, if it holds what it says; otherwise it is deleted (``BadData``)."""
        part = self._path(sha256) + ".part"
        try:
            with open(part, "rb+") as file:
                actual_size = os.fstat(file.fileno()).st_size
                digest = hashlib.sha256()
                while True:
                    chunk = file.read(1 << 20)
                    if not chunk:
                        break
                    digest.update(chunk)
                os.fsync(file.fileno())
        except FileNotFoundError:
            raise RunnerError("BadData", "nothing was uploaded for sha256 {}".format(sha256)) from None
        if actual_size != size or digest.hexdigest() != sha256:
            _remove(part)
            raise RunnerError(
                "BadData",
                "the upload does not verify: {} bytes with sha256 {}, expected {} bytes with {}".format(
                    actual_size, digest.hexdigest(), size, sha256
                ),
            )
        os.replace(part, self._path(sha256))
        _sync_folder(self._folder)

    def make_room(self, sha256: str, size: int, cache_bytes: int, in_use: Set[str]) -> List[str]:
        """Deletes what was used least recently until ``size`` bytes fit under the limit and on the disk.

        ``in_use``: digests that must stay. Returns the digests deleted.

        Raises:
            RunnerError: ``BoardUnfit`` with the numbers if it cannot fit.
        """
        if size > cache_bytes:
            raise RunnerError(
                "BoardUnfit",
                "the file has {} bytes; the board's cache may hold {}".format(size, cache_bytes),
                hint="raise the board file's cache limit",
            )
        keep = {self._path(digest) for digest in in_use} | {self._path(sha256), self._path(sha256) + ".part"}
        present = self.part_size(sha256) or 0
        entries = sorted(self._entries(), key=lambda entry: entry.used)
        total = sum(entry.size for entry in entries) - present
        free = shutil.disk_usage(self._folder).free + present
        gone: List[str] = []
        for entry in entries:
            stale = entry.path.endswith(".part") and time.time() - entry.used > _STALE_PART_S
            full = total + size > cache_bytes or free < size + _DISK_RESERVE
            if entry.path in keep or not (stale or full):
                continue
            _remove(entry.path)
            total -= entry.size
            free += entry.size
            gone.append(os.path.basename(entry.path))
        free = shutil.disk_usage(self._folder).free + present
        if free < size + _DISK_RESERVE:
            raise RunnerError(
                "BoardUnfit",
                "the board's disk is full: {} bytes free in {}, {} needed (with {} to spare)".format(
                    free, self._folder, size, _DISK_RESERVE
                ),
                hint="make room on the board, or put the board file's workdir on another disk",
            )
        if total + size > cache_bytes:
            raise RunnerError(
                "BoardUnfit",
                "models in use fill the board's cache: {} of {} bytes, {} needed".format(total, cache_bytes, size),
                hint="unload sessions or raise the cache limit",
            )
        return gone

    def _entries(self) -> List[_Entry]:
        out = []
        with os.scandir(self._folder) as files:
            for file in files:
                status = file.stat()
                out.append(_Entry(file.path, status.st_size, status.st_mtime))
        return out

    def _path(self, sha256: str) -> str:
        if not _DIGEST.fullmatch(sha256):
            raise RunnerError("BadData", "not a sha256: {!r}".format(sha256[:80]))
        return os.path.join(self._folder, sha256)


class ResultStore:
    """``results/<request id>``: whole reply frames of finished work, for a controller that lost the link.

    ``results/<request id>.running`` stands while the work is going on.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "results")
        os.makedirs(self._folder, exist_ok=True)

    def begin(self, request: str) -> None:
        with open(self._path(request) + ".running", "wb"):
            pass

    def finish(self, request: str, parts: Sequence[Buffer]) -> None:
        """Keeps the result, and of older ones only a few."""
        write_atomically(self._path(request), parts)
        _remove(self._path(request) + ".running")
        self._prune(self._path(request))

    def forget(self, request: str) -> None:
        _remove(self._path(request) + ".running")

    def running(self, request: str) -> bool:
        return os.path.exists(self._path(request) + ".running")

    def stored(self, request: str) -> Optional[str]:
        """Path of the kept reply."""
        path = self._path(request)
        return path if os.path.exists(path) else None

    def _prune(self, newest: str) -> None:
        with os.scandir(self._folder) as files:
            entries = [_Entry(file.path, file.stat().st_size, file.stat().st_mtime) for file in files]
        entries.sort(key=lambda entry: entry.used, reverse=True)
        total = kept = 0
        for entry in entries:
            total += entry.size
            kept += 1
            if entry.path != newest and (kept > _KEPT_RESULTS or total > _KEPT_RESULT_BYTES):
                _remove(entry.path)

    def _path(self, request: str) -> str:
        if not _REQUEST.fullmatch(request):
            raise RunnerError("BadData", "not a request id: {!r}".format(request[:80]))
        return os.path.join(self._folder, request)


def clean(folder: str) -> List[str]:
    """Removes all the runner and its controller put into the work folder, and the folder too if it is then empty.

    Returns paths relative to the folder.
    """
    gone: List[str] = []
    for name in ("models", "results", "tmp", "runner"):
        for parent, _, files in os.walk(os.path.join(folder, name), topdown=False):
            for file in files:
                path = os.path.join(parent, file)
                if _remove(path):
                    gone.append(os.path.relpath(path, folder).replace(os.sep, "/"))
            try:
                os.rmdir(parent)
            except OSError:
                pass
    for name in ("lease.json", "lease.lock"):
        if _remove(os.path.join(folder, name)):
            gone.append(name)
    try:
        os.rmdir(folder)
    except OSError:
        pass  # someone else's files are in it
    return sorted(gone)


def _remove(path: str) -> bool:
    try:
        os.remove(path)
    except OSError:
        return False
    return True


def _sync_folder(path: str) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
