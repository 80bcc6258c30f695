"""Bias correction: what quantized weights add to an output's mean is taken off the bias.

Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section 4.2, with
the inputs' means observed in calibration instead of derived from batch norm.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from harness.quantize.algorithms.gram import Moments
from harness.quantize.algorithms.layers import Array, Layer
from harness.quantize.statistics import ActivationStatistics


def mean_error(
    layer: Layer, made: Array, statistics: Mapping[str, ActivationStatistics]
) -> npt.NDArray[np.float64] | None:
    """``E[Ŵ·x] − E[W·x]`` of each output, ``made`` being the quantized weights as the model will see them; ``None`` if
    the input's means are not known. Zeros that a convolution pads with are not told apart from inputs."""
    stats = statistics.get(layer.input)
    channels = stats.channels if stats else None
    if channels is None or len(channels.lowest) != layer.inputs or not np.isfinite(channels.mean).all():
        return None
    change = layer.matrix(made).astype(np.float64) - layer.matrix()
    means = channels.mean.reshape(layer.groups, -1)
    # [groups, outputs of a group, inputs of a group]: a channel's mean is the same at each place of the kernel.
    per_input = change.reshape(layer.groups, -1, means.shape[1], change.shape[1] // means.shape[1]).sum(axis=3)
    return np.asarray(np.einsum("goi,gi->go", per_input, means).ravel())


def mean_error_of_moments(layer: Layer, made: Array, moments: Moments) -> npt.NDArray[np.float64]:
    """``E[Ŵ·q] − E[W·x]`` of each output: with the error of quantized inputs, and padding as it is."""
    shape = (layer.groups, -1, moments.x.shape[1])
    new = layer.matrix(made).astype(np.float64).reshape(shape)
    old = layer.matrix().astype(np.float64).reshape(shape)
    q, x = moments.q / moments.count, moments.x / moments.count
    return np.asarray((np.einsum("goi,gi->go", new, q) - np.einsum("goi,gi->go", old, x)).ravel())
