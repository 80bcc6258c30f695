"""Accumulators that saturate: the S3's 20-bit lanes for int8, 40-bit lanes for int16 on the S3 and the P4.

After every multiplication the sum is clipped to the lane, so what comes out depends on the order of the terms: the
bias, then height, width, input channel. Output channels past the last whole block use a wide accumulator. Whether a
sum can clip is decided by bounds, first from the filter alone, then from the data; only sums that might are added up
term by term.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_agents.emulated.espdl.arithmetic import Array, limits
from device_agents.emulated.espdl.kernels.base import Site

MOST_TERMS_AT_A_TIME = 1 << 22
TERMS_OF_A_PIECE = 32
"""Sums that the bound of the whole filter cannot clear are looked at in pieces of so many terms."""


def lane_reach(matrix: Array, bias: Array | None, input_bits: int) -> tuple[Array, Array]:
    """The least and the greatest value any partial sum of each output channel can have, exactly: attained by some
    input.

    ``matrix`` is (K, N) of integers. A prefix of the sum is extreme when each of its terms is, and grows with every
    term.
    """
    low, high = limits(input_bits)
    wide = matrix.astype(np.float64)
    start = np.zeros(matrix.shape[1]) if bias is None else bias.astype(np.float64)
    least = np.minimum(wide * low, wide * high).sum(axis=0) + np.minimum(start, 0)
    greatest = np.maximum(wide * low, wide * high).sum(axis=0) + np.maximum(start, 0)
    return least, greatest


def whole_lanes(outputs: int, lanes: int) -> int:
    return outputs // lanes * lanes


def lane_bits(site: Site, input_bits: int) -> tuple[int, int]:
    """Width of the accumulators and channels in a block."""
    target = site.target
    return (target.lane_bits_8, target.lanes_8) if input_bits == 8 else (target.lane_bits_16, target.lanes_16)


@dataclass(frozen=True)
class Lanes:
    """Those of one filter that can saturate at all."""

    matrix: Array
    """float64 (K, N)."""
    start: Array
    """float64 (N,): the bias."""
    columns: npt.NDArray[np.intp]
    """Output channels whose sums can leave the lane."""
    low: int
    high: int

    @classmethod
    def of(cls, site: Site, matrix: Array, bias: Array | None, input_bits: int) -> Lanes | None:
        """``None`` when no input can saturate a lane of this filter."""
        bits, block = lane_bits(site, input_bits)
        if not bits:
            return None
        low, high = limits(bits)
        least, greatest = lane_reach(matrix, bias, input_bits)
        risky = (least < low) | (greatest > high)
        risky[whole_lanes(matrix.shape[1], block) :] = False
        if not risky.any():
            return None
        start = np.zeros(matrix.shape[1]) if bias is None else bias.astype(np.float64)
        return cls(matrix, start, np.flatnonzero(risky), low, high)

    def correct(self, acc: Array, rows: Array) -> None:
        """In place: sums (M, N) without the bias, of ``rows`` (M, K), that pass a lane's end become what the lane
        holds."""
        self._correct(acc, rows, self.columns)

    def correct_grouped(self, acc: Array, ordered: Array) -> None:
        """``ordered`` is (groups, M, K)."""
        each = self.matrix.shape[1] // len(ordered)
        for group, rows in enumerate(ordered):
            self._correct(acc, rows, self.columns[self.columns // each == group])

    def correct_depthwise(self, acc: Array, patches: Array) -> None:
        """``patches`` is (M, K, N)."""
        for column in self.columns:
            self._correct(acc, patches[:, :, column], np.asarray([column]))

    def _correct(self, acc: Array, rows: Array, columns: npt.NDArray[np.intp]) -> None:
        if not len(columns):
            return
        wide, matrix = rows.astype(np.float64), self.matrix[:, columns]
        risky = self._risky(wide, matrix, self.start[columns], len(matrix))
        if risky.any() and len(matrix) > TERMS_OF_A_PIECE:
            some = np.flatnonzero(risky.any(axis=1))
            risky[some] &= self._risky(wide[some], matrix, self.start[columns], TERMS_OF_A_PIECE)
        step = max(1, MOST_TERMS_AT_A_TIME // max(1, len(self.matrix)))
        for column, chosen in zip(columns.tolist(), risky.T, strict=True):
            places = np.flatnonzero(chosen)
            for at in range(0, len(places), step):
                some = places[at : at + step]
                terms = wide[some] * self.matrix[:, column]
                begin = float(self.start[column])
                acc[some, column] = saturated(terms, begin, self.low, self.high) - begin

    def _risky(self, wide: Array, matrix: Array, start: Array, piece: int) -> npt.NDArray[np.bool_]:
        """Which sums (M, N) might pass an end: those before a piece are known, inside it positive terms add up to
        (magnitudes + sum) / 2, and no prefix is above that."""
        before = np.broadcast_to(start, (len(wide), len(start))).copy()
        risky = (before > self.high) | (before < self.low)
        for at in range(0, len(matrix), piece):
            x, w = wide[:, at : at + piece], matrix[at : at + piece]
            total, reach = x @ w, np.abs(x) @ np.abs(w)
            risky |= (before + (reach + total) / 2 > self.high) | (before - (reach - total) / 2 < self.low)
            before += total
        return risky

    @staticmethod
    def correct_matmul(site: Site, acc: Array, a: Array, b: Array, input_bits: int) -> None:
        """Of two activations: the right one is the filter."""
        bits, block = lane_bits(site, input_bits)
        if not bits or a.shape[-1] << (2 * input_bits - 2) <= limits(bits)[1]:
            return
        low, high = limits(bits)
        columns = np.arange(whole_lanes(b.shape[-1], block))
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        left, right = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
        for index in np.ndindex(lead):
            matrix = right[index].astype(np.float64)
            Lanes(matrix, np.zeros(matrix.shape[1]), columns, low, high)._correct(acc[index], left[index], columns)


def saturated(terms: Array, start: float, low: int, high: int) -> Array:
    """Rows of ``terms`` (M, K) added up from ``start``, clipped after every term."""
    total = np.full(len(terms), float(np.clip(start, low, high)))
    for term in terms.T:
        total += term
        np.clip(total, low, high, out=total)
    return total
