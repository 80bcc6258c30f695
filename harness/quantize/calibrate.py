"""Calibrate once: statistics of a float model's activations, found again by what they are statistics of.

One pass over the calibration set gives what every recipe needs. It leaves snapshots on its way, so that recipes which
use fewer samples find theirs, those which use more go on from there, and a killed pass is not lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import ModelProto

from harness.quantize.cache import Cache, Entry
from harness.quantize.calibration_data import CalibrationSet
from harness.quantize.identity import file_sha256
from harness.quantize.model_file import load_model
from harness.quantize.observe import Observer, fresh_accumulators, gather, results_of
from harness.quantize.outputs import data_of
from harness.quantize.ranges import RANGES_VERSION, ranges_for, takes_long
from harness.quantize.shapes import model_inputs, tensor_specs
from harness.quantize.statistics import Accumulator, ActivationStatistics, ChannelStatistics, observed_tensors
from harness.recipes.axes import BITS
from harness.recipes.recipe import Recipe

VERSION = 1
"""Raised when what is gathered, or the order of the samples, changes."""
FIRST_SNAPSHOT = 16
"""Samples after which the first snapshot is kept; then after twice as many, and so on."""

Breathe = Callable[[], None]


@dataclass(frozen=True, eq=False)
class Subject:
    """A float model with its calibration samples, and the digests by which what is computed from them is kept."""

    model: ModelProto
    data: CalibrationSet
    model_digest: str
    data_digest: str
    cache: Cache

    @classmethod
    def of(
        cls, proto: ModelProto, model: Path, calibration: Path, cache: Cache, digests: Mapping[str, str] | None = None
    ) -> Subject:
        """``proto`` is what the file ``model`` holds. ``digests`` may hold the sha256 of the ``model`` and the
        ``calibration`` file where they are known. Raises DataError."""
        known = digests or {}
        data = CalibrationSet.read(calibration, tensor_specs(model_inputs(proto)))
        return cls(
            proto,
            data,
            known.get("model") or _model_digest(model),
            known.get("calibration") or file_sha256(calibration),
            cache,
        )

    @classmethod
    def read(cls, model: Path, calibration: Path, cache: Cache, digests: Mapping[str, str] | None = None) -> Subject:
        """As :meth:`of`, of a file to be read. Raises ModelError too."""
        return cls.of(load_model(model), model, calibration, cache, digests)

    def changed(self, what: str) -> Subject:
        """After ``model`` was changed in place in the way that ``what`` describes wholly."""
        digest = hashlib.sha256(f"{self.model_digest}:{what}".encode()).hexdigest()
        return replace(self, model_digest=digest)

    def key(self, what: str) -> str:
        """Of something computed from the model, the samples, and the runtime of this host."""
        text = f"{what}:{VERSION}:{onnxruntime.__version__}:{self.model_digest}:{self.data_digest}"
        return hashlib.sha256(text.encode()).hexdigest()


def calibrated(
    subject: Subject, samples: int | None = None, breathe: Breathe = lambda: None
) -> dict[str, ActivationStatistics]:
    """Statistics of every float activation over ``samples`` samples (all if ``None``); empty activations left out.

    Raises what ONNX Runtime raises.
    """
    wanted = subject.data.taken(samples)
    found = subject.cache.read(_key(subject, wanted))
    if found is None:
        with subject.cache.lock(subject.key("statistics"), breathe):
            # Another process may have made it while this one waited.
            found = subject.cache.read(_key(subject, wanted))
            accumulators = _restored(found) if found else _pass(subject, wanted, breathe)
    else:
        accumulators = _restored(found)
    return results_of(accumulators)


def ranges(
    subject: Subject, recipe: Recipe, statistics: Mapping[str, ActivationStatistics]
) -> dict[str, tuple[float, float]]:
    """(lowest, highest) of each activation for a static recipe; what takes long to find is found once."""
    calibration = recipe.calibration
    if not takes_long(recipe):
        return ranges_for(recipe, statistics)
    samples = subject.data.taken(calibration.samples)
    bits, symmetric = BITS[recipe.activation], recipe.activation_symmetric
    key = subject.key(f"ranges:{RANGES_VERSION}:{samples}:{calibration.method}:{bits}:{symmetric}:{recipe.scale}")
    found = subject.cache.read(key)
    if found:
        known = dict(zip(found.meta, map(tuple, found.arrays["ranges"].tolist()), strict=True))
        if statistics.keys() <= known.keys():
            return {name: known[name] for name in statistics}
    made = ranges_for(recipe, statistics)
    subject.cache.write(key, list(made), {"ranges": np.array(list(made.values()), np.float64).reshape(-1, 2)})
    return made


def _key(subject: Subject, samples: int) -> str:
    return subject.key(f"statistics:{samples}")


def _pass(subject: Subject, wanted: int, breathe: Breathe) -> dict[str, Accumulator]:
    tensors = observed_tensors(subject.model, {node.op_type for node in subject.model.graph.node})
    observer = Observer(subject.model, tensors)
    stops = [*_snapshots(subject.data.batch, wanted), wanted]
    accumulators, done = fresh_accumulators(subject.model, tensors), 0
    for stop in reversed(stops[:-1]):
        found = subject.cache.read(_key(subject, stop))
        if found:
            accumulators, done = _restored(found), stop
            break
    for stop in stops:
        if stop > done:
            gather(observer, accumulators, subject.data.feeds(stop, skip=done), breathe)
            done = stop
            meta, arrays = _stored(accumulators)
            subject.cache.write(_key(subject, stop), meta, arrays)
    return accumulators


def _snapshots(batch: int, wanted: int) -> Iterator[int]:
    stop = batch
    while stop < wanted:
        if stop >= FIRST_SNAPSHOT:
            yield stop
        stop *= 2


def _stored(accumulators: Mapping[str, Accumulator]) -> tuple[Any, dict[str, npt.NDArray[Any]]]:
    """Plain JSON and arrays from which :func:`_restored` makes the same accumulators again."""
    meta = [
        {
            "name": name,
            "dtype": a.dtype,
            "axis": a.axis,
            "channels": len(a.channels.lowest) if a.channels else 0,
            "per_channel": a.channels.count if a.channels else 0,
        }
        for name, a in accumulators.items()
    ]
    every = list(accumulators.values())
    channels = [a.channels for a in every if a.channels]
    counts = np.stack([a.counts for a in every]) if every else np.zeros((0, 0), np.int64)
    small = counts.max(initial=0) <= np.iinfo(np.uint32).max
    arrays = {
        "range": np.array([(a.lowest, a.highest, a.half_width) for a in every], np.float64).reshape(-1, 3),
        "counted": np.array([(a.count, a.non_finite) for a in every], np.int64).reshape(-1, 2),
        "counts": counts.astype(np.uint32) if small else counts,
        "channel_lowest": np.concatenate([np.zeros(0, np.float32), *(c.lowest for c in channels)]),
        "channel_highest": np.concatenate([np.zeros(0, np.float32), *(c.highest for c in channels)]),
        "channel_total": np.concatenate([np.zeros(0, np.float64), *(c.total for c in channels)]),
    }
    return meta, arrays


def _restored(entry: Entry) -> dict[str, Accumulator]:
    arrays = entry.arrays
    accumulators: dict[str, Accumulator] = {}
    start = 0
    for index, item in enumerate(entry.meta):
        accumulator = Accumulator(histogram=True, axis=item["axis"])
        lowest, highest, half_width = arrays["range"][index].tolist()
        count, non_finite = arrays["counted"][index].tolist()
        accumulator.lowest, accumulator.highest, accumulator.half_width = lowest, highest, half_width
        accumulator.count, accumulator.non_finite = count, non_finite
        accumulator.counts = arrays["counts"][index].astype(np.int64)
        accumulator.dtype = item["dtype"]
        if item["channels"]:
            part = slice(start, start + item["channels"])
            start = part.stop
            accumulator.channels = ChannelStatistics(
                item["axis"],
                arrays["channel_lowest"][part],
                arrays["channel_highest"][part],
                arrays["channel_total"][part],
                item["per_channel"],
            )
        accumulators[item["name"]] = accumulator
    return accumulators


def _model_digest(path: Path) -> str:
    data = data_of(path)
    return file_sha256(path) + (file_sha256(data) if data.exists() else "")
