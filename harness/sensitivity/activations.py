"""Values of one model's tensors over all samples, kept as far as a cap on memory allows and computed again beyond."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from harness.quantize.calibration_data import CalibrationSet, Feeds, nested_order
from harness.quantize.sessions import open_session
from harness.sensitivity.same_values import inverse, value_keys
from harness.sensitivity.slices import Slice, Slicer

Array = npt.NDArray[np.generic]


class Samples:
    """The first ``count`` samples of a set, as model inputs, one inference after the other."""

    def __init__(self, data: CalibrationSet, count: int | None) -> None:
        """``None`` takes all."""
        self._data = data
        self.rows = nested_order(len(data))[: data.taken(count)]
        """Places of the samples in the set, in the order they are run in."""

    def __len__(self) -> int:
        """Inferences."""
        return len(self.rows) // self.batch

    def __iter__(self) -> Iterator[Feeds]:
        return self._data.feeds(len(self.rows))

    @property
    def batch(self) -> int:
        """Samples in each inference."""
        return self._data.batch


class Activations:
    """What a model computes over ``samples``: its outputs, and any tensor on request.

    Requests go best from the model's beginning to its end: each is computed from what is kept of those before.
    """

    def __init__(self, model: ModelProto, samples: Samples, cap_bytes: int, breathe: Callable[[], None]) -> None:
        """``model`` has its nodes in order and is not changed. Raises what ONNX Runtime raises."""
        self.keys = value_keys(model)
        """Tensor -> key of its values, see :mod:`harness.sensitivity.same_values`."""
        self.names = inverse(self.keys)
        self._slicer = Slicer(model)
        self._samples = samples
        self._cap = cap_bytes
        self._breathe = breathe
        self._kept: OrderedDict[str, list[Array]] = OrderedDict()
        self.outputs = self.run(Slicer(model).towards([value.name for value in model.graph.output], lambda name: False))
        """Output -> one array per inference."""

    @property
    def kept_bytes(self) -> int:
        return sum(array.nbytes for arrays in self._kept.values() for array in arrays)

    def has(self, name: str) -> bool:
        return name in self._kept

    def keep(self, wanted: Collection[str]) -> None:
        """Makes ``wanted`` (tensors of the model) the ones that are kept, smallest first as far as they fit under the
        cap; of the others, those used last stay while there is room."""
        wanted = [name for name in wanted if name not in self._slicer.inputs]
        for name in wanted:
            if name in self._kept:
                self._kept.move_to_end(name)
        missing = [name for name in wanted if name not in self._kept]
        if not missing:
            return
        part = self._slicer.towards(missing, self.has)
        runner = _Runner(part)
        rows = self._rows(part, {})
        first = runner.run(next(rows))
        room = self._cap - sum(self._bytes(name) for name in wanted if name in self._kept)
        chosen: list[str] = []
        for name in sorted(missing, key=lambda name: (first[name].nbytes, name)):
            size = first[name].nbytes * len(self._samples)
            if size > room:
                break
            room -= size
            chosen.append(name)
        if not chosen:
            return
        leaving = self._leaving(set(wanted), room)
        made: dict[str, list[Array]] = {name: [first[name]] for name in chosen}
        for index, row in enumerate(rows, start=1):
            for name, array in runner.run(row, chosen).items():
                made[name].append(array)
            for name in leaving:
                # Makes room as it goes: what follows needs later samples only.
                self._kept[name][index] = np.empty(0, np.uint8)
            self._breathe()
        for name in leaving:
            del self._kept[name]
        self._kept.update(made)

    def _bytes(self, name: str) -> int:
        return sum(array.nbytes for array in self._kept[name])

    def _leaving(self, wanted: set[str], room: int) -> list[str]:
        """Kept tensors, least recently used first, that must go for the others to fit."""
        others = [name for name in self._kept if name not in wanted]
        held = sum(self._bytes(name) for name in others)
        leaving = []
        for name in others:
            if held <= room:
                break
            held -= self._bytes(name)
            leaving.append(name)
        return leaving

    def run(self, part: Slice, names: Mapping[str, str] | None = None) -> dict[str, list[Array]]:
        """Outputs of a slice of this model, or of another whose tensors ``names`` says this model's names of: one array
        per inference. Raises what ONNX Runtime raises."""
        runner = _Runner(part)
        found: dict[str, list[Array]] = {name: [] for name in part.outputs}
        for row in self._rows(part, names or {}):
            for name, array in runner.run(row).items():
                found[name].append(array)
            self._breathe()
        return found

    def _rows(self, part: Slice, names: Mapping[str, str]) -> Iterator[dict[str, Array]]:
        kept = {name: self._kept[names.get(name, name)] for name in part.known if names.get(name, name) in self._kept}
        fed = [name for name in part.known if name not in kept]
        for index, feed in enumerate(self._samples if fed else ({} for _ in range(len(self._samples)))):
            yield {**{name: arrays[index] for name, arrays in kept.items()}, **{name: feed[name] for name in fed}}


class _Runner:
    """A slice in a session, made for the types and shapes that come in."""

    def __init__(self, part: Slice) -> None:
        self._part = part
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._session: Any = None

    def run(self, row: Mapping[str, Array], names: Sequence[str] | None = None) -> dict[str, Array]:
        shapes = {name: array.shape for name, array in row.items()}
        if shapes != self._shapes:
            # ONNX Runtime optimises better where it knows shapes, and a model may compute one from its values.
            self._session = open_session(self._part.build(row).SerializeToString())
            self._shapes = shapes
        wanted = list(names or self._part.outputs)
        return dict(zip(wanted, self._session.run(wanted, dict(row)), strict=True))
