"""Whose arithmetic: rounding and accumulators of each chip.

Rounding and bias widths are those of ``EspdlQuantizer.py`` (ESP-PPQ 1.3.12) and of
``dl_tool.cpp``/``dl_define_private.hpp`` (esp-dl 3.3.9). Accumulators: the S3's int8 kernels add into 20-bit lanes
that saturate (``EE.VSMULAS.S8.QACC``), its int16 kernels and the P4's into 40-bit ones. None of it was checked on
silicon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final


class Semantics(Enum):
    """``REFERENCE``: as ESP-PPQ's executor simulates. ``DEVICE``: as esp-dl's kernels compute."""

    REFERENCE = "reference"
    DEVICE = "device"


@dataclass(frozen=True)
class Target:
    family: str
    half_even: bool
    """Half to even; otherwise half up (towards plus infinity)."""
    lane_bits_8: int
    """Width of the saturating accumulators of int8 filters; 0 where sums cannot leave them."""
    lane_bits_16: int
    lanes_8: int = 16
    """Output channels in a block; those past the last whole block are summed in a wide scalar accumulator."""
    lanes_16: int = 8


_C = Target("c", half_even=False, lane_bits_8=0, lane_bits_16=0)
_S3 = Target("s3", half_even=False, lane_bits_8=20, lane_bits_16=40)
_P4 = Target("p4", half_even=True, lane_bits_8=0, lane_bits_16=40)

TARGETS: Final[Mapping[str, Target]] = MappingProxyType(
    {
        **dict.fromkeys(("esp32", "esp32s2", "esp32c2", "esp32c3", "esp32c5", "esp32c6", "c"), _C),
        "esp32s3": _S3,
        "esp32p4": _P4,
        "esp32s31": _P4,
    }
)
"""By the names ESP-PPQ takes."""


def target_named(name: str) -> Target:
    """Raises :class:`KeyError` with the known names."""
    found = TARGETS.get(name)
    if found is None:
        raise KeyError(f"unknown target {name!r}: one of {', '.join(TARGETS)}")
    return found
