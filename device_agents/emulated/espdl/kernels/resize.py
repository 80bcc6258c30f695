"""Resize of images: nearest (asymmetric, floor) and linear (half_pixel or align_corners), as torch's ``interpolate``
and esp-dl have them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from device_agents.emulated.espdl.arithmetic import Array, quantized
from device_agents.emulated.espdl.kernels.base import Run, Site
from device_agents.emulated.espdl.kernels.elementwise import rescale

MOST_SIZE = 1 << 15


def resize(site: Site) -> Run:
    x = site.activation(0)
    if not x.bits or not site.out_bits:
        raise site.unsupported("float input or output")
    mode = site.node.text("mode", "nearest")
    if mode not in ("nearest", "linear"):
        raise site.unsupported(f"mode {mode}")
    corners = site.node.text("coordinate_transformation_mode", "half_pixel") == "align_corners"
    scales, sizes = _given(site)
    rescaled = rescale(site, x.exponent, x.bits)
    factor = np.float32(2.0 ** (x.exponent - site.out.exponent))

    def run(inputs: Sequence[Array]) -> list[Array]:
        array = inputs[0]
        spatial = array.shape[2:-1]
        steps = []
        for index, size in enumerate(spatial):
            out, inverse = _side(site, size, scales, sizes, index, len(spatial))
            steps.append(
                (out, np.float32((size - 1) / (out - 1) if out > 1 else 0) if corners and mode == "linear" else inverse)
            )
        site.room(*array.shape[:2], *(out for out, _ in steps), array.shape[-1])
        if mode == "nearest":
            for axis, (size, (out, inverse)) in enumerate(zip(spatial, steps, strict=True), start=2):
                at = np.minimum((np.arange(out, dtype=np.float32) * inverse).astype(np.int64), size - 1)
                array = np.take(array, at, axis=axis)
            return rescaled([array])
        # width first, then height, each a sum of two float32 products
        for axis in range(len(spatial) + 1, 1, -1):
            out, inverse = steps[axis - 2]
            array = _linear(array, axis, out, inverse, corners)
        return [quantized(array * factor, 0, site.out_bits, site.target)]

    return run


def _given(site: Site) -> tuple[npt.NDArray[np.float64] | None, list[int] | None]:
    """Scales and sizes in ONNX's order of dimensions: (N, C, …)."""
    if site.optional(3) is not None and len(site.constant(3).values):
        return None, site.integers(3)
    if site.optional(2) is None or not len(site.constant(2).values):
        raise site.malformed("neither scales nor sizes")
    return site.constant(2).values.astype(np.float64), None


def _side(
    site: Site, size: int, scales: npt.NDArray[np.float64] | None, sizes: list[int] | None, index: int, dims: int
) -> tuple[int, np.float32]:
    if sizes is not None:
        if len(sizes) != dims + 2:
            raise site.malformed(f"sizes {sizes} for {dims} spatial dimensions")
        out = sizes[index + 2]
        inverse = np.float32(size) / np.float32(max(out, 1))
    else:
        if scales is None or len(scales) != dims + 2 or not 0 < scales[index + 2] < MOST_SIZE:
            raise site.malformed(f"scales {scales} for {dims} spatial dimensions")
        out = int(size * scales[index + 2])
        inverse = np.float32(1.0 / scales[index + 2])
    if not 0 < out <= MOST_SIZE:
        raise site.malformed(f"an output size of {out}")
    return out, inverse


def _linear(array: Array, axis: int, out: int, inverse: np.float32, corners: bool) -> Array:
    size = array.shape[axis]
    place = np.arange(out, dtype=np.float32)
    source = (
        place * inverse if corners else np.maximum((place + np.float32(0.5)) * inverse - np.float32(0.5), np.float32(0))
    )
    low = np.minimum(source.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    weight = np.clip(source - low.astype(np.float32), np.float32(0), np.float32(1))
    shape = [1] * array.ndim
    shape[axis] = out
    after, before = weight.reshape(shape), (np.float32(1) - weight).reshape(shape)
    mixed: Array = np.take(array, low, axis=axis) * before + np.take(array, high, axis=axis) * after
    return mixed
