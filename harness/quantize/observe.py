"""Runs the float model and shows every activation, batch by batch, without ever holding more than one batch's."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto

from harness.quantize.model_file import save_model
from harness.quantize.sessions import open_session
from harness.quantize.statistics import Accumulator, ActivationStatistics, channel_axes
from harness.scratch import scratch_prefix

SHOWN_BYTES = 128 << 20
"""Activations taken out of one run of the model. What is larger is taken out in several runs of the same batch."""

Feed = Mapping[str, npt.NDArray[np.generic]]


class Observer:
    """A float model all of whose ``tensors`` can be seen. Holds one session."""

    def __init__(self, model: ModelProto, tensors: Iterable[str], *, shown_bytes: int = SHOWN_BYTES) -> None:
        """``tensors`` are inputs or typed values of ``model``, which is not changed. Raises what ONNX Runtime does."""
        inputs = {value.name for value in model.graph.input}
        names = list(dict.fromkeys(tensors))
        self._fed = [name for name in names if name in inputs]
        computed = [name for name in names if name not in inputs]
        self._groups = grouped(model, computed, shown_bytes)
        with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
            path = Path(folder) / "observed.onnx"
            save_model(_with_outputs(model, computed), path)
            # Optimised, an intermediate value may be computed fused and differ from what the quantizer will see.
            self._session = open_session(path, "disabled")

    def observe(self, feed: Feed) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        """Every tensor's name and array for one batch."""
        for name in self._fed:
            yield name, feed[name]
        for group in self._groups:
            arrays = self._session.run(group, dict(feed))
            for index, name in enumerate(group):
                array, arrays[index] = arrays[index], None
                yield name, array


def collect(
    model: ModelProto,
    tensors: Iterable[str],
    feeds: Iterable[Feed],
    *,
    histogram: bool = True,
    breathe: Callable[[], None] = lambda: None,
) -> dict[str, ActivationStatistics]:
    """Runs the float model over ``feeds`` and gathers the statistics of ``tensors``.

    ``breathe`` is called between batches. Tensors without a finite value are left out. Raises what ONNX Runtime raises.
    """
    names = list(tensors)
    accumulators = fresh_accumulators(model, names, histogram=histogram)
    gather(Observer(model, names), accumulators, feeds, breathe)
    return results_of(accumulators)


def fresh_accumulators(model: ModelProto, tensors: Iterable[str], *, histogram: bool = True) -> dict[str, Accumulator]:
    """One empty accumulator per tensor."""
    axes = channel_axes(model)
    return {name: Accumulator(histogram=histogram, axis=axes.get(name)) for name in tensors}


def gather(
    observer: Observer,
    accumulators: Mapping[str, Accumulator],
    feeds: Iterable[Feed],
    breathe: Callable[[], None] = lambda: None,
) -> None:
    """Adds what ``observer`` shows over ``feeds``."""
    for feed in feeds:
        for name, array in observer.observe(feed):
            accumulators[name].add(array)
        breathe()


def results_of(accumulators: Mapping[str, Accumulator]) -> dict[str, ActivationStatistics]:
    """Statistics of the tensors that had a finite value."""
    results = {name: accumulator.result() for name, accumulator in accumulators.items()}
    return {name: result for name, result in results.items() if result is not None}


def grouped(model: ModelProto, names: list[str], limit: int) -> list[list[str]]:
    """``names`` in groups of at most ``limit`` bytes by their inferred shapes; unknown sizes count as 1."""
    sizes: dict[str, int] = {}
    for value in (*model.graph.value_info, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        sizes[value.name] = 4 * math.prod(max(int(dim.dim_value), 1) for dim in dims)
    groups: list[list[str]] = []
    held = limit + 1
    for name in names:
        size = sizes.get(name, 4)
        if held + size > limit:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return groups


def _with_outputs(model: ModelProto, names: Iterable[str]) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    present = {value.name for value in copy.graph.output}
    types = {value.name: value.type.tensor_type.elem_type for value in copy.graph.value_info}
    copy.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, types[name], None) for name in names if name not in present
    )
    return copy
