"""Integers of weights chosen for what the layer gives, not for each weight alone.

The task of AdaRound (Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML 2020) and of
AdaQuant (Hubara et al., "Accurate Post Training Quantization With Small Calibration Sets", ICML 2021), layer by layer.
Theirs relax it to gradients; here the same square error is brought down by coordinate descent on the integers
themselves, whose every step lowers it, from the nearest integers on. Deterministic, with a bounded number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.quantize.algorithms.gram import Moments

SWEEPS = 6
"""Over all inputs of a layer; most of the gain is in the first."""
_DAMPING = 1e-3
"""Added to the diagonal, relative to its mean: inputs that never occurred keep their nearest integers."""
LARGEST_WORK = 1 << 34
"""Multiplications of one sweep (outputs × inputs²) beyond which a layer keeps its nearest integers."""

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Grid:
    """What the integers of a layer mean: ``(integer − zero) · scale`` with a row for each output."""

    scale: Matrix
    """[outputs, 1]."""
    zero: Matrix
    """[outputs, 1]."""
    lowest: int
    highest: int

    def nearest(self, weights: Matrix) -> Matrix:
        return np.asarray(np.clip(np.round(weights / self.scale) + self.zero, self.lowest, self.highest))

    def values(self, integers: Matrix) -> Matrix:
        return np.asarray((integers - self.zero) * self.scale)


def rounded(weights: Matrix, grid: Grid, moments: Moments, *, either_way: bool, centered: bool) -> Matrix:
    """Integers [outputs, inputs] of ``weights`` [outputs, inputs of a group].

    ``either_way``: each is one of the two around its weight (AdaRound); otherwise any (AdaQuant). ``centered``: errors
    of an output's mean do not count, since the bias will take them.
    """
    groups = len(moments.qq)
    inputs = weights.shape[1]
    integers = grid.nearest(weights)
    if len(weights) * inputs**2 > LARGEST_WORK:
        return integers
    rows = len(weights) // groups
    for group in range(groups):
        part = slice(group * rows, (group + 1) * rows)
        qq, xq = second_moments(moments, group, centered)
        own = Grid(grid.scale[part], grid.zero[part], grid.lowest, grid.highest)
        integers[part] = _descend(weights[part], integers[part], own, qq, xq, either_way)
    return integers


def second_moments(moments: Moments, group: int, centered: bool) -> tuple[Matrix, Matrix]:
    """``E[q·qᵀ]`` (damped) and ``E[x·qᵀ]`` of a group, about the mean if ``centered``."""
    qq, xq = moments.qq[group] / moments.count, moments.xq[group] / moments.count
    if centered:
        x, q = moments.x[group] / moments.count, moments.q[group] / moments.count
        qq, xq = qq - np.outer(q, q), xq - np.outer(x, q)
    damping = _DAMPING * max(float(np.trace(qq)) / len(qq), 1e-30) * np.eye(len(qq))
    return qq + damping, xq + damping


def reconstruction_error(weights: Matrix, made: Matrix, qq: Matrix, xq: Matrix, xx: Matrix | None = None) -> float:
    """``E‖W·x − Ŵ·q‖²`` summed over outputs, without the constant ``tr(W·E[x·xᵀ]·Wᵀ)`` unless ``xx`` is given."""
    error = float(np.sum((made @ qq) * made) - 2.0 * np.sum((weights @ xq) * made))
    return error + (float(np.sum((weights @ xx) * weights)) if xx is not None else 0.0)


def _descend(weights: Matrix, integers: Matrix, grid: Grid, qq: Matrix, xq: Matrix, either_way: bool) -> Matrix:
    integers = integers.copy()
    scale = grid.scale[:, 0]
    exact = weights / grid.scale + grid.zero
    below, above = np.full_like(exact, grid.lowest), np.full_like(exact, grid.highest)
    if either_way:
        below = np.clip(np.floor(exact), grid.lowest, grid.highest)
        above = np.clip(np.ceil(exact), grid.lowest, grid.highest)
    # Half the gradient of the error in the made weights.
    slope = grid.values(integers) @ qq - weights @ xq
    order = np.argsort(-np.diag(qq), kind="stable")
    for _ in range(SWEEPS):
        moved = False
        for k in order:
            curvature = qq[k, k]
            if curvature <= 0.0:
                continue
            # The best real step, to the nearest integer one: the error is a parabola in each integer.
            step = np.round(-slope[:, k] / (curvature * scale))
            step = np.clip(integers[:, k] + step, below[:, k], above[:, k]) - integers[:, k]
            change = step * scale
            gain = change * (2.0 * slope[:, k] + change * curvature)
            rows = np.flatnonzero((step != 0.0) & (gain < 0.0))
            if len(rows):
                moved = True
                integers[rows, k] += step[rows]
                slope[rows] += change[rows, None] * qq[k]
        if not moved:
            break
    return integers
