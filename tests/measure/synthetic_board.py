"""A board with known truth, for the statistics to be tested on: answers steps with generated samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from device_agents.contract import Block, BoardState
from harness.measure.protocol import Measurement
from harness.measure.record import MeasurementResult
from harness.measure.steps import CANARY, Cool, Step, TimedBlock, Warmup


def STEADY(now_ns: float) -> float:  # noqa: N802 -- a constant that happens to be a function
    return 1.0


@dataclass
class SyntheticBoard:
    """Latency of a sample: level(target) x environment(now) x block effect x lognormal noise, in nanoseconds."""

    rng: np.random.Generator
    levels: dict[str, float] = field(default_factory=lambda: {CANARY: 1e6, "candidate": 5e6})
    noise: float = 0.01
    block_noise: float = 0.0
    canary_noise: float = 1.0
    """Share of the block noise the canary has."""
    session_noise: float = 0.0
    autocorrelation: float = 0.0
    warmup_amount: float = 0.0
    warmup_ns: float = 3e8
    environment: Callable[[float], float] = STEADY
    throttled: Callable[[float], bool] = lambda now_ns: False
    spike_share: float = 0.0
    spike_factor: float = 3.0
    temperature: Callable[[float], float] = lambda now_ns: 50.0
    frequency_khz: int | None = None
    boot_id: Callable[[float], str] = lambda now_ns: "boot"
    max_samples: int = 200
    """Fewer samples than the request's duration asks for keep the tests fast; their median is what matters."""
    now_ns: float = 0.0
    session_age: dict[str, float] = field(default_factory=dict)
    session_level: dict[str, float] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def state(self) -> BoardState:
        return BoardState(
            boot_id=self.boot_id(self.now_ns),
            temperature_c=self.temperature(self.now_ns),
            throttled=self.throttled(self.now_ns),
            frequency_khz=self.frequency_khz,
            clock_ns=int(self.now_ns),
        )

    def run(self, step: Warmup | TimedBlock) -> Block:
        first = None
        if step.target not in self.session_age or (isinstance(step, Warmup) and step.fresh):
            self.loads.append(step.target)
            self.session_age[step.target] = 0.0
            self.session_level[step.target] = float(np.exp(self.rng.normal(0, self.session_noise)))
            first = int(self.levels[step.target] * 4)
        before = self.state()
        level = self.levels[step.target] * self.session_level[step.target]
        block_noise = self.block_noise * (self.canary_noise if step.target == CANARY else 1.0)
        level *= float(np.exp(self.rng.normal(0, block_noise)))
        wanted = max(step.request.min_count, int(np.ceil(step.request.min_ns / level)))
        n = max(1, min(wanted, self.max_samples, int(np.ceil(step.request.max_ns / level))))
        stretch = max(1.0, wanted / n)  # time each kept sample stands for
        noise = self.rng.normal(0, self.noise, n)
        if self.autocorrelation:
            for i in range(1, n):
                noise[i] = self.autocorrelation * noise[i - 1] + noise[i] * np.sqrt(1 - self.autocorrelation**2)
        values = level * np.exp(noise)
        if self.spike_share:
            values = np.where(self.rng.random(n) < self.spike_share, values * self.spike_factor, values)
        if self.environment is STEADY and not self.warmup_amount:
            self._pass(step.target, float(values.sum()) * stretch)
            return self._block(values, first, before)
        samples = np.empty(n)
        for i in range(n):
            cold = self.warmup_amount * np.exp(-self.session_age[step.target] / self.warmup_ns)
            samples[i] = values[i] * (1 + cold) * self.environment(self.now_ns)
            self._pass(step.target, samples[i] * stretch)
        return self._block(samples, first, before)

    def _pass(self, target: str, duration_ns: float) -> None:
        self.now_ns += duration_ns
        self.session_age[target] += duration_ns

    def _block(self, samples: np.ndarray, first: int | None, before: BoardState) -> Block:
        return Block(
            boot_id=self.boot_id(self.now_ns),
            samples_ns=np.maximum(1, samples).astype(np.int64),
            first_ns=first,
            before=before,
            after=self.state(),
        )

    def measure(self, measurement: Measurement, limit: int = 2000) -> MeasurementResult:
        for _ in range(limit):
            step = measurement.next()
            if step is None:
                return measurement.result()
            self.steps.append(step)
            if isinstance(step, Cool):
                self.now_ns += step.seconds * 1e9
                measurement.cooled(step, self.state())
            else:
                measurement.tell(step, self.run(step))
        raise RuntimeError("the measurement does not end")
