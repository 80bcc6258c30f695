"""From the order in which esp-dl's kernels read a filter back to output channel, height, width, input channel.

ESP-PPQ writes filters of the S3 and the P4 in blocks of 16 output channels (8 when values have 16 bits) whose
channels are innermost, ``(N/16)HWC16``, and what does not fill a block after them: plain ``NHWC``, or ``CHWN`` when
the convolution has groups. The C targets have ``NHWC``, with groups ``HWCN``. ``dims`` says ``HWCN`` (with groups
``HWNC``) whatever the order of the bytes.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from device_agents.emulated.espdl.errors import MalformedModel
from device_agents.emulated.espdl.model import Tensor

_BLOCKED: Final = re.compile(r"\(N/(8|16)\)H?WC(8|16)(_UNALIGNED)?")
_PLAIN: Final = ("NHWC", "NWC")
_GROUPED: Final = ("HWCN", "WCN")


def filter_ohwi(tensor: Tensor, groups: int) -> npt.NDArray[np.generic]:
    """The filter of a convolution as (N, H, W, C / groups); H is 1 for one-dimensional ones.

    Raises :class:`MalformedModel` for a layout or a shape that no filter has.
    """
    if len(tensor.dims) not in (3, 4):
        raise MalformedModel(f"filter {tensor.name!r} has {len(tensor.dims)} dimensions instead of 3 or 4")
    height = 1 if len(tensor.dims) == 3 else tensor.dims[0]
    width, first, second = tensor.dims[-3:]
    inner, outer = (first, second) if groups == 1 else (second, first)
    return unblocked(tensor, (outer, height, width, inner), groups)


def unblocked(tensor: Tensor, shape: tuple[int, int, int, int], groups: int = 1) -> npt.NDArray[np.generic]:
    """The bytes of one filter, (N, H, W, C) ``shape``, put back in order."""
    return _unblocked(tensor.values, tensor.layout, tensor.name, shape, groups)


def matrices(tensor: Tensor) -> npt.NDArray[np.generic]:
    """The constant right side of a MatMul, packed like a 1x1 filter matrix by matrix, as (…, C, N)."""
    if len(tensor.dims) < 2:
        raise MalformedModel(f"matrix {tensor.name!r} has {len(tensor.dims)} dimensions, at least 2 are needed")
    *batch, inner, outer = tensor.dims
    stacked = tensor.values.reshape(-1, inner * outer)
    rows = [
        _unblocked(flat, tensor.layout, tensor.name, (outer, 1, 1, inner), 1).reshape(outer, inner).T
        for flat in stacked
    ]
    return np.stack(rows).reshape(*batch, inner, outer) if rows else tensor.values.reshape(tensor.dims)


def unpacked(stacked: npt.NDArray[np.generic], lanes: int) -> npt.NDArray[np.generic]:
    """Matrices (…, C, N) of an activation that nodes before have packed like 1x1 filters, put back in order.

    ``lanes`` is 0 for the C targets, whose filters are plain NHWC: there the bytes are the transposed matrix.
    """
    *lead, inner, outer = stacked.shape
    layout = f"(N/{lanes})WC{lanes}_UNALIGNED" if lanes else "NWC"
    flat = stacked.reshape(-1, inner * outer)
    rows = [_unblocked(one, layout, "packed", (outer, 1, 1, inner), 1).reshape(outer, inner).T for one in flat]
    return np.stack(rows).reshape(*lead, inner, outer) if rows else stacked


def _unblocked(
    values: npt.NDArray[np.generic], layout: str, name: str, shape: tuple[int, int, int, int], groups: int
) -> npt.NDArray[np.generic]:
    outer, height, width, inner = shape
    if layout in _PLAIN:
        return values.reshape(shape)
    if layout in _GROUPED:
        return values.reshape(height, width, inner, outer).transpose(3, 0, 1, 2)
    found = _BLOCKED.fullmatch(layout)
    if found is None or found[1] != found[2]:
        raise MalformedModel(
            f"filter {name!r} has the unknown layout {layout!r}", hint="written by another version of ESP-PPQ?"
        )
    lanes = int(found[1])
    whole = outer // lanes * lanes
    if whole != outer and found[3] is None:
        raise MalformedModel(f"filter {name!r}: {outer} output channels do not fill the blocks of layout {layout!r}")
    head = values[: whole * height * width * inner].reshape(-1, height, width, inner, lanes)
    ordered = head.transpose(0, 4, 1, 2, 3).reshape(whole, height, width, inner)
    if whole == outer:
        return ordered
    rest = values[whole * height * width * inner :]
    if groups == 1:
        tail = rest.reshape(outer - whole, height, width, inner)
    else:
        tail = rest.reshape(inner, height, width, outer - whole).transpose(3, 1, 2, 0)
    return np.concatenate([ordered, tail])
