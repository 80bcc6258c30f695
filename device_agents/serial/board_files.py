"""What was deployed: models in the board's slots, samples on this side until a model says how to quantize them."""

from __future__ import annotations

import hashlib
import itertools
import zipfile
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_agents.contract import AgentError, BadData, DataRef, DeployReport
from device_agents.emulated.espdl.axes import METADATA, Axes
from device_agents.emulated.espdl.reader import read_model
from device_agents.transport import Deadline

from .codes import Caps, Kind, SlotState, Type
from .link import SerialLink
from .messages import Hello, Slot
from .samples import read_rows
from .slots import choose_base, choose_slot
from .upload import Upload, has

_KNOWN = 4
"""Models whose bytes are remembered as dictionaries."""


class BoardFiles:
    """Objects of one board by digest."""

    def __init__(self, link: SerialLink, *, pack: bool = True) -> None:
        self._link = link
        self._pack = pack
        self._known: OrderedDict[bytes, bytes] = OrderedDict()
        self._samples: dict[str, Path] = {}
        self._axes: dict[str, Axes] = {}
        self._used: dict[bytes, int] = {}
        self._clock = itertools.count(1)

    def has(self, sha256: str, deadline: Deadline) -> bool:
        return sha256 in self._samples or self.slot_of(sha256, deadline) is not None

    def slot_of(self, sha256: str, deadline: Deadline) -> int | None:
        """The slot that holds the model; a use of it."""
        digest = bytes.fromhex(sha256)
        slot = has(self._link, digest, deadline)
        if slot is not None:
            self._used[digest] = next(self._clock)
        return slot

    def deploy(self, path: Path, sha256: str, keep: Collection[str], deadline: Deadline) -> DeployReport:
        """Samples (``.npz``) are checked and remembered: what the board gets of them depends on the model.

        Raises:
            BadData: the file has another digest.
            BoardUnfit: it does not fit.
            Others: as :meth:`Upload.run`.
        """
        size = path.stat().st_size
        self._note_axes(path, sha256)
        hello = self._link.hello(deadline)
        if sha256 in self._samples or _resident(hello, bytes.fromhex(sha256)):
            self._used[bytes.fromhex(sha256)] = next(self._clock)
            return DeployReport(sha256, size, 0)
        data = path.read_bytes()
        actual = hashlib.sha256(data).hexdigest()
        if actual != sha256:
            raise BadData(f"{path} has the sha256 {actual}, not {sha256}", hint="the file changed; quantize it again")
        if zipfile.is_zipfile(path):
            self._samples[sha256] = path
            return DeployReport(sha256, size, 0)
        if not data:
            raise BadData(f"{path} is empty", hint="a model file is wanted")
        sent, resumed = self.put(data, Kind.MODEL, {bytes.fromhex(digest) for digest in keep}, deadline, hello)
        return DeployReport(sha256, size, sent, resumed)

    def axes(self, sha256: str) -> Axes | None:
        """In which order the deployed model has the axes of its inputs and outputs; ``None`` where its file does not
        tell."""
        return self._axes.get(sha256)

    def _note_axes(self, path: Path, sha256: str) -> None:
        if sha256 in self._axes or zipfile.is_zipfile(path):
            return
        with suppress(AgentError):  # the board says what is wrong with it
            model = read_model(path)
            if METADATA in model.metadata:
                self._axes[sha256] = Axes.of(model)

    def put(
        self, data: bytes, kind: Kind, keep: Collection[bytes], deadline: Deadline, hello: Hello | None = None
    ) -> tuple[int, bool]:
        """Sends what is not there: (bytes sent, whether an upload went on). ``hello``: if it was just asked for."""
        digest = hashlib.sha256(data).digest()
        self._used[digest] = next(self._clock)
        hello = hello or self._link.hello(deadline)
        slot = _unfinished(hello, digest) or choose_slot(hello.slots, len(data), kind, keep, self._used)
        pack = self._pack and bool(hello.caps & Caps.DEFLATE)
        base = None
        if pack and kind == Kind.MODEL and hello.caps & Caps.DEFLATE_BASE:
            base = choose_base(hello.slots, slot, self._known, self._used)
        upload = Upload(self._link, data, digest, slot.id, kind, base, pack=pack)
        uploaded = upload.run(deadline)
        if kind == Kind.MODEL:
            self._known[digest] = data
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return uploaded.sent_bytes, uploaded.resumed

    def clean(self, deadline: Deadline) -> list[str]:
        """Empties all slots; names of what was in them."""
        hello = self._link.hello(deadline)
        there = [f"models/{slot.sha256.hex()}" for slot in hello.slots if slot.state != SlotState.EMPTY]
        if there:
            self._link.ask(Type.ERASE, b"\xff", deadline)
        self._samples.clear()
        return there

    def samples(self, ref: DataRef) -> dict[str, npt.NDArray[np.generic]]:
        """The rows of deployed samples, each array [n, ...].

        Raises:
            BadData: never deployed, not an ``.npz`` of plain arrays, or there are no such rows.
        """
        return read_rows(self._samples.get(ref.sha256), ref)


def _resident(hello: Hello, sha256: bytes) -> bool:
    committed = (slot.sha256 for slot in hello.slots if slot.state == SlotState.COMMITTED)
    return sha256 == hello.canary_sha256 or sha256 in committed


def _unfinished(hello: Hello, sha256: bytes) -> Slot | None:
    """The slot in which an upload of this object stopped."""
    return next((s for s in hello.slots if s.state == SlotState.RECEIVING and s.sha256 == sha256), None)
