"""Geometry and arithmetic of a preprocessing, vectorised over samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from harness.errors import ConfigError

if TYPE_CHECKING:
    from harness.data.preprocess import InputPreprocess

Array = np.ndarray[Any, Any]

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
}
_CHANNELS = (1, 3)
_CHUNK_BYTES = 64 << 20
"""Samples go through float32 in pieces of about this size, so that the peak stays near the result's size."""
_LUMA = np.array([19595, 38470, 7471], dtype=np.uint32)
"""ITU-R 601 luma in 16-bit fixed point, Pillow's "L" conversion: (R*19595 + G*38470 + B*7471 + 0x8000) >> 16."""


@dataclass(frozen=True)
class Steps:
    """How the axes of one raw sample become the model's."""

    reverse_channels: bool
    expand_axis: int | None
    transpose: tuple[int, ...]


def transform_input(name: str, array: Array, declared: InputPreprocess, model_dtype: str) -> tuple[Array, Array]:
    """``array`` [samples, ...] to (raw, ready); see :meth:`harness.data.preprocess.Preprocess.apply`."""
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"input {name!r}: {array.dtype.name} cannot be preprocessed", hint="Store numbers.")
    if 0 in array.shape:
        raise ConfigError(f"input {name!r}: stored samples of shape {array.shape[1:]} are empty")
    raw = array if declared.layout is None else geometry(name, array, declared)
    return raw, arithmetic(name, raw, declared, declared.dtype or model_dtype)


def geometry(name: str, array: Array, declared: InputPreprocess) -> Array:
    """Stored images to [samples, H, W] or [samples, H, W, C] in the stored dtype, resized and cropped.

    Colour is stored as RGB; ``channel_order: GRAY`` makes it luma here, RGB and BGR repeat a grey sample.
    """
    images = _channels_last(name, array, declared)
    if declared.channel_order == "GRAY" or declared.layout == "NHW":
        images = _grey(name, images)
    elif declared.channel_order in {"RGB", "BGR"} and images.ndim == 3:
        images = np.repeat(images[..., np.newaxis], 3, axis=-1)
    if declared.size is not None and images.shape[1:3] != declared.size:
        images = np.stack([resize_image(image, declared) for image in images])
    return images


def arithmetic(name: str, raw: Array, declared: InputPreprocess, dtype: str) -> Array:
    """Raw samples to the model's layout and ``dtype``: ``(x * scale - mean) / std`` in float32, then the cast."""
    steps = axis_steps(name, raw, declared)
    target = np.dtype(dtype)
    if target.kind in "iu" and (declared.arithmetic or raw.dtype.kind == "f"):
        raise ConfigError(
            f"input {name!r}: {dtype} cannot hold the result of the preprocessing",
            hint="Integer inputs take stored integers as they are: leave out scale, mean and std.",
        )
    channels = raw.shape[-1] if raw.ndim > 1 else 1
    for what, values in (("mean", declared.mean), ("std", declared.std)):
        if len(values) > 1 and (len(values) != channels or (declared.layout is not None and raw.ndim == 3)):
            count = 1 if declared.layout is not None and raw.ndim == 3 else channels
            raise ConfigError(
                f"input {name!r}: {what} has {len(values)} numbers for {count} channel(s)",
                hint=f"Give one number, or one per channel ({count}).",
            )
    first = _one_piece(raw[:1], steps, declared, target)
    ready = np.empty((len(raw), *first.shape[1:]), dtype=target)
    step = max(1, _CHUNK_BYTES // max(1, first.size * 4))
    for start in range(0, len(raw), step):
        piece = raw[start : start + step]
        _check_integers(name, piece, target)
        ready[start : start + step] = _one_piece(piece, steps, declared, target)
    return ready


def axis_steps(name: str, raw: Array, declared: InputPreprocess) -> Steps:
    """How one raw sample (``raw`` is [samples, ...] after geometry) becomes ``declared.layout``."""
    if declared.layout is None:
        return Steps(reverse_channels=False, expand_axis=None, transpose=())
    has_channels = raw.ndim == 4
    reverse = declared.channel_order == "BGR"
    if reverse and (not has_channels or raw.shape[-1] != 3):
        raise ConfigError(f"input {name!r}: channel_order BGR needs samples of three channels")
    if declared.layout == "NHW":
        return Steps(reverse_channels=False, expand_axis=None, transpose=())
    if not has_channels:
        return Steps(False, expand_axis=0 if declared.layout == "NCHW" else 2, transpose=())
    return Steps(reverse, None, transpose=(2, 0, 1) if declared.layout == "NCHW" else ())


def resize_image(image: Array, declared: InputPreprocess) -> Array:
    """One image [H, W] or [H, W, C] to ``declared.size``, in its own dtype for uint8 and in float32 otherwise."""
    if declared.size is None:
        return image
    height, width = declared.size
    old_height, old_width = image.shape[:2]
    target, box = (height, width), (0, 0)
    if declared.fit == "center-crop":
        # As timm and torchvision do: the crop covers crop_fraction of what the resized image shows.
        factor = max(height / old_height, width / old_width) / declared.crop_fraction
        target = (max(height, round(old_height * factor)), max(width, round(old_width * factor)))
        box = ((target[0] - height) // 2, (target[1] - width) // 2)
    resized = _resample(image, target, declared.resize)
    return resized[box[0] : box[0] + height, box[1] : box[1] + width]


def _resample(image: Array, target: tuple[int, int], method: str) -> Array:
    resample = _FILTERS[method]
    size = (target[1], target[0])
    if image.dtype == np.uint8 and (image.ndim == 2 or image.shape[2] == 3):
        return np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize(size, resample))
    planes = image[..., np.newaxis] if image.ndim == 2 else image
    resized = [
        np.asarray(Image.fromarray(np.ascontiguousarray(planes[..., c], dtype=np.float32)).resize(size, resample))
        for c in range(planes.shape[-1])
    ]
    result = resized[0] if image.ndim == 2 else np.stack(resized, axis=-1)
    return np.clip(np.rint(result), 0, 255).astype(np.uint8) if image.dtype == np.uint8 else result


def _channels_last(name: str, array: Array, declared: InputPreprocess) -> Array:
    layout = declared.raw_layout or _guess_layout(name, array)
    axes = {"HW": 3, "HWC": 4, "CHW": 4}[layout]
    if array.ndim != axes:
        raise ConfigError(
            f"input {name!r}: raw_layout {layout} needs samples of {axes - 1} axes, found shape {array.shape[1:]}"
        )
    if layout == "CHW":
        return np.moveaxis(array, 1, -1)
    return array


def _guess_layout(name: str, array: Array) -> str:
    if array.ndim == 3:
        return "HW"
    if array.ndim == 4:
        last, first = array.shape[-1] in _CHANNELS, array.shape[1] in _CHANNELS
        if last != first:
            return "HWC" if last else "CHW"
    raise ConfigError(
        f"input {name!r}: cannot tell which axis of the stored samples {array.shape[1:]} is the channel",
        hint="Add raw_layout: HWC, CHW or HW to the preprocessing."
        if array.ndim == 4
        else "Images are stored as [samples, H, W], [samples, H, W, C] or [samples, C, H, W].",
    )


def _grey(name: str, images: Array) -> Array:
    if images.ndim == 3:
        return images
    channels = images.shape[-1]
    if channels == 1:
        return images[..., 0]
    if channels != 3:
        raise ConfigError(f"input {name!r}: cannot make grey of {channels} channels")
    if images.dtype == np.uint8:
        fixed = (images.astype(np.uint32) * _LUMA).sum(axis=-1, dtype=np.uint32)
        return np.asarray((fixed + 0x8000) >> 16, dtype=np.uint8)
    weights = (_LUMA / 65_536).astype(np.float32)
    return np.asarray(images.astype(np.float32) @ weights)


def _one_piece(raw: Array, steps: Steps, declared: InputPreprocess, dtype: np.dtype[Any]) -> Array:
    piece = raw[..., ::-1] if steps.reverse_channels else raw
    if declared.arithmetic:
        piece = normalise(piece.astype(np.float32), declared)
    if steps.expand_axis is not None:
        piece = np.expand_dims(piece, steps.expand_axis + 1)
    if steps.transpose:
        piece = piece.transpose(0, *(axis + 1 for axis in steps.transpose))
    return piece.astype(dtype)


def normalise(values: npt.NDArray[np.float32], declared: InputPreprocess) -> Array:
    """``(x * scale - mean) / std`` in float32, per channel on the last axis; the board's runner does the same."""
    result: Array = values * np.float32(declared.scale)
    if declared.mean:
        result = np.subtract(result, np.asarray(declared.mean, dtype=np.float32))
    if declared.std:
        result = np.divide(result, np.asarray(declared.std, dtype=np.float32))
    return result


def _check_integers(name: str, raw: Array, dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iu" or not raw.size:
        return
    limits = np.iinfo(dtype)
    low, high = int(raw.min()), int(raw.max())
    if low < limits.min or high > limits.max:
        raise ConfigError(
            f"input {name!r}: stored values {low}..{high} do not fit {dtype.name} ({limits.min}..{limits.max})"
        )
