"""How close a candidate's outputs are to the float model's: signal-to-noise ratio and cosine similarity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_agents.contract import Tensors
from harness.data.metric import MetricFailed
from harness.data.outputs import flat, take
from harness.data.score import MetricFacts, Score
from harness.data.stored import Array

FIDELITY = ("cosine", "snr")
SNR_LIMIT_DB = 300.0
"""Reported for equal outputs, and with a minus for a float output that is all zero: float64's own floor, 20·log10(2⁵²)
is 313 dB, so no larger value means anything, and infinity has no JSON form."""

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fidelity:
    """``snr`` or ``cosine`` against the float model, on the worst of ``outputs``.

    - ``snr``: 10·log10(sum of squares of float / sum of squares of the difference), in dB, both sums over all samples
      and values: the definition of the acceptance test and of ONNX Runtime's ``qdq_loss_debug``. A pooled ratio is no
      mean over samples, so ``per_sample`` holds its linearisation (infinitesimal jackknife: value plus each sample's
      influence), whose mean is the value and whose standard error is the delta method's.
    - ``cosine``: mean over samples of the cosine of the angle between the two outputs; two zero outputs agree (1), one
      zero output does not (0).
    """

    name: str
    kind: str
    outputs: tuple[str, ...]
    higher_is_better: bool = True

    @property
    def unit(self) -> str:
        return "dB" if self.kind == "snr" else ""

    @property
    def facts(self) -> MetricFacts:
        return MetricFacts(self.name, self.unit, True, "mean", versus_float=True)

    def score(self, outputs: Tensors, labels: Array | None, float_outputs: Tensors) -> Score:
        """``extras["output"]`` names the worst output where there are several."""
        scores = {name: self._one(outputs, float_outputs, name) for name in self.outputs}
        worst = min(scores, key=lambda name: scores[name][0])
        value, per_sample = scores[worst]
        extras = {"output": worst} if len(scores) > 1 else {}
        return Score(value=value, n=len(per_sample), per_sample=per_sample, extras=extras)

    def _one(self, outputs: Tensors, float_outputs: Tensors, name: str) -> tuple[float, _Floats]:
        reference = flat(take(float_outputs, name, self.name))
        ours = flat(take(outputs, name, self.name, samples=len(reference)))
        if ours.shape != reference.shape:
            raise MetricFailed(
                f"metric {self.name!r}: output {name!r} has {ours.shape[1]} values a sample, float's "
                f"{reference.shape[1]}"
            )
        if self.kind == "snr":
            return pooled_snr_db(reference, ours)
        per_sample = cosines(reference, ours)
        return float(per_sample.mean()), per_sample


def pooled_snr_db(reference: _Floats, ours: _Floats) -> tuple[float, _Floats]:
    """Pooled signal-to-noise ratio in dB, and its linearised contributions float64 [samples], of [samples, values]."""
    signal = np.square(reference).sum(axis=1)
    noise = np.square(ours - reference).sum(axis=1)
    total_signal, total_noise = float(signal.sum()), float(noise.sum())
    if total_noise == 0:
        return SNR_LIMIT_DB, np.full(len(signal), SNR_LIMIT_DB)
    if total_signal == 0:
        return -SNR_LIMIT_DB, np.full(len(signal), -SNR_LIMIT_DB)
    value = 10 * float(np.log10(total_signal) - np.log10(total_noise))
    value = min(SNR_LIMIT_DB, max(-SNR_LIMIT_DB, value))
    influence = 10 / np.log(10) * (signal / signal.mean() - noise / noise.mean())
    return value, value + influence


def cosines(reference: _Floats, ours: _Floats) -> _Floats:
    """float64 [samples] in -1..1, of [samples, values]."""
    lengths = np.linalg.norm(reference, axis=1), np.linalg.norm(ours, axis=1)
    # Scaled before the product: norms of 1e-200 must not underflow to zero.
    unit = [
        np.divide(x, n[:, np.newaxis], out=np.zeros_like(x), where=n[:, np.newaxis] > 0)
        for x, n in zip((reference, ours), lengths, strict=True)
    ]
    cosine = np.clip((unit[0] * unit[1]).sum(axis=1), -1.0, 1.0)
    both_zero = (lengths[0] == 0) & (lengths[1] == 0)
    return np.asarray(np.where(both_zero, 1.0, cosine), dtype=np.float64)
