"""A vendor's quantizer as a backend: asks its warm process, from inside a quantize child."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.quantize.cache import Cache
from harness.quantize.contract import Cause
from harness.quantize.identity import file_sha256
from harness.recipes.recipe import Recipe

_CONNECT_S = 120.0
"""Until the warm process listens: starting an interpreter; the imports come after."""
_REFUSED_S = 2.0
"""Between binding its socket and listening the warm process refuses; after this long it is dead."""
_LOOK_S = 0.2
"""Between offers of the processors to a waiting clock."""


class VendorFailed(Exception):
    """The vendor's quantizer did not make the recipe."""

    def __init__(self, cause: Cause, message: str, detail: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.detail = detail


class VendorBackend:
    """See :class:`harness.quantize.contract.Backend`.

    Args:
        name: The backend's.
        listening: Unix socket of its warm process.
        memory_bytes: What the vendor's process may hold.
        breathe: Lets a waiting clock in; the vendor's process is stopped meanwhile.
        phase: Told what is being done.
        cache: What any recipe of the model needs is kept there.
        digests: sha256 of the ``model`` and the ``calibration`` file, where known.
    """

    def __init__(
        self,
        name: str,
        listening: Path,
        memory_bytes: int,
        breathe: Callable[[], None],
        phase: Callable[[str], None],
        cache: Cache,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._socket = listening
        self._memory_bytes = memory_bytes
        self._breathe = breathe
        self._phase = phase
        self._cache = cache
        self._digests = dict(digests or {})
        self._versions: Mapping[str, str] = {}
        self._pid: int | None = None
        self.settings: Mapping[str, Any] = {}
        """The vendor's resolved settings of the last recipe, as JSON."""

    def version(self) -> str:
        return " ".join(f"{name} {version}" for name, version in sorted(self._versions.items()))

    def quantize(self, model: Path, calibration: Path, recipe: Recipe, out: Path) -> tuple[str, ...]:
        """Writes ``out``; returns notices. Raises :class:`VendorFailed`."""
        digests = {
            "model": self._digests.get("model") or file_sha256(model),
            "calibration": self._digests.get("calibration") or file_sha256(calibration),
        }
        folder = self._cache.folder
        request = {
            "model": str(model.absolute()),
            "calibration": str(calibration.absolute()),
            "options": recipe.to_dict()["options"],
            "out": str(out.absolute()),
            "cache": str(folder.absolute() / "vendors") if folder else None,
            "digests": digests,
            "memory_bytes": self._memory_bytes,
        }
        self._phase(f"starting {self.name}")
        with self._connected() as connection:
            connection.sendall(json.dumps(request).encode() + b"\n")
            return self._listen(connection)

    def _listen(self, connection: socket.socket) -> tuple[str, ...]:
        for message in _messages(connection, self._let_clocks_in):
            if "pid" in message:
                self._pid = int(message["pid"])
                self._versions = message["versions"]
            elif "phase" in message:
                self._phase(f"{self.name}: {message['phase']}")
            elif "done" in message:
                self.settings = message["done"]["settings"]
                return tuple(message["done"]["notices"])
            elif "failed" in message:
                text = f"the {self.name} quantizer: {message['failed']}"
                raise VendorFailed(Cause(message["cause"]), text, str(message.get("detail", "")))
        raise VendorFailed(Cause.CRASHED, f"the {self.name} quantizer's process ended", self._log())

    def _let_clocks_in(self) -> None:
        if self._pid is None:
            self._breathe()
            return
        # While a clock runs, nothing of ours may compute.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGSTOP)
        try:
            self._breathe()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGCONT)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        until = time.monotonic() + _CONNECT_S
        connection = socket.socket(socket.AF_UNIX)
        try:
            while True:
                try:
                    connection.connect(str(self._socket))
                    break
                except ConnectionRefusedError:
                    until = min(until, time.monotonic() + _REFUSED_S)
                except FileNotFoundError:
                    pass
                if time.monotonic() > until:
                    message = f"the {self.name} quantizer's process does not start"
                    raise VendorFailed(Cause.CRASHED, message, self._log())
                time.sleep(0.02)
                self._breathe()
            yield connection
        finally:
            connection.close()

    def _log(self) -> str:
        """The end of what its process printed."""
        for name in ("log", "start.log"):
            with contextlib.suppress(OSError):
                text = (self._socket.parent / name).read_bytes()[-8192:].decode("utf-8", "replace")
                if text.strip():
                    return text
        return ""


def _messages(connection: socket.socket, meanwhile: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Lines of JSON until the other end hangs up."""
    data = b""
    while True:
        readable, _, _ = select.select([connection], [], [], _LOOK_S)
        if not readable:
            meanwhile()
            continue
        part = connection.recv(1 << 16)
        if not part:
            return
        data += part
        while b"\n" in data:
            line, _, data = data.partition(b"\n")
            yield json.loads(line)
