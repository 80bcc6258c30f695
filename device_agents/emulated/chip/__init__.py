"""Microcontroller boards that are not there: the wire protocol of serial boards on a pty, models executed to the bit by
the integer interpreter, latency from a cost model. Importing this package is cheap."""

from __future__ import annotations

from .spec import EmulatedChipSpec

__all__ = ["EmulatedChipSpec"]
