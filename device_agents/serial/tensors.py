"""Between the caller's arrays and the board's integers: ``value = integer * 2 ** exponent``.

Rounding to the nearest integer, then clipping; halves as ESP-PPQ rounds for the chip: to even for ESP32-P4 and S31, up
for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from device_agents.contract import BadData, Tensors
from device_agents.emulated.espdl.axes import Axes

from .messages import Loaded, TensorInfo

Array = npt.NDArray[np.generic]


HALF_EVEN = frozenset({"esp32p4", "esp32s31"})
"""Targets that round halves to even."""


def rows_to_bytes(model: Loaded, samples: Tensors, target: str, axes: Axes | None = None) -> tuple[bytes, int]:
    """(rows of all inputs one after the other as the board takes them, number of rows).

    Each array is [n, *shape of the input without its first axis], of a float type, or of the input's own integer type
    and then taken as it is. ``axes`` says in which order the float model has them; without it, an image may also come
    channels first, as ONNX has it.

    Raises:
        BadData: names, shapes, types or numbers of samples that do not fit the model.
    """
    wanted = {info.name: info for info in model.inputs}
    _check_names(wanted, samples)
    parts: list[npt.NDArray[np.uint8]] = []
    count: int | None = None
    for info in model.inputs:
        array = np.asarray(samples[info.name])
        if axes is not None and array.ndim == len(info.shape):
            array = axes.stored(info.name, array)
        elif array.ndim == len(info.shape) and array.shape[1:] != info.shape[1:]:
            array = _channels_last(array, info.shape[1:])
        rows = _integers(info, array, half_even=target in HALF_EVEN)
        if count is not None and len(rows) != count:
            raise BadData(f"input {info.name!r} has {len(rows)} samples, the others {count}")
        count = len(rows)
        parts.append(np.ascontiguousarray(rows).reshape(count, -1).view(np.uint8))
    if count is None:
        raise BadData("the model has no inputs")
    return np.concatenate(parts, axis=1).tobytes(), count


def _check_names(wanted: Mapping[str, TensorInfo], samples: Tensors) -> None:
    for name, info in wanted.items():
        if name not in samples:
            raise BadData(f"input {name!r} ({described(info)}) is missing; there are {sorted(samples)}")
    extra = sorted(set(samples) - set(wanted))
    if extra:
        raise BadData(f"the model has no input {extra[0]!r}; it has {', '.join(sorted(wanted))}")


def described(info: TensorInfo) -> str:
    """As error messages name it: ``float32 [n, 28, 28, 1]``."""
    return f"float32 [{', '.join(['n', *map(str, info.shape[1:])])}]"


def _integers(info: TensorInfo, array: Array, *, half_even: bool) -> Array:
    shape = info.shape[1:]
    fits = array.ndim == len(info.shape) and len(array) > 0 and array.dtype.kind in "fiu"
    is_float = array.dtype in (np.float32, np.float16)
    if not fits or array.shape[1:] != shape or not (is_float or array.dtype == np.dtype(info.dtype)):
        raise BadData(
            f"input {info.name!r} takes {described(info)} (or {info.dtype}, as quantized); "
            f"got {array.dtype} {list(array.shape)}"
        )
    if info.dtype == "float32" or not is_float:
        return array.astype(info.dtype)
    limits = np.iinfo(info.dtype)
    scaled = np.ldexp(array.astype(np.float64), -info.exponent)
    if not np.isfinite(scaled).all():
        raise BadData(f"input {info.name!r} has NaN or infinite values")
    rounded = np.rint(scaled) if half_even else np.floor(scaled + 0.5)
    return np.clip(rounded, limits.min, limits.max).astype(info.dtype)


def _channels_last(array: Array, shape: Sequence[int]) -> Array:
    """[n, C, …] as [n, …, C] where that is the shape wanted."""
    turned = np.moveaxis(array, 1, -1)
    return turned if turned.shape[1:] == tuple(shape) else array


def outputs_from_bytes(model: Loaded, data: bytes, rows: int, axes: Axes | None = None) -> dict[str, Array]:
    """Each output as float32 [rows, *shape without its first axis], in the order of axes of the float model where
    ``axes`` says it; exact for up to 24 bits.

    Raises:
        BadData: not ``rows`` times the outputs' bytes.
    """
    if len(data) != rows * model.output_bytes:
        raise BadData(f"{len(data)} bytes of outputs for {rows} rows of {model.output_bytes}")
    whole = np.frombuffer(data, np.uint8).reshape(rows, model.output_bytes)
    outputs: dict[str, Array] = {}
    at = 0
    for info in model.outputs:
        raw = np.ascontiguousarray(whole[:, at : at + info.size_bytes]).view(np.dtype(info.dtype).newbyteorder("<"))
        at += info.size_bytes
        values = raw.astype(np.float32) if info.dtype == "float32" else np.ldexp(raw.astype(np.float64), info.exponent)
        real = values.astype(np.float32).reshape(rows, *info.shape[1:])
        outputs[info.name] = real if axes is None else axes.restored(info.name, real)
    return outputs
