"""The measurement protocol as ask and tell: it says what to run next and is told what came of it.

It does no I/O and knows no board. A driver's whole loop::

    measurement = Measurement(settings)
    while (step := measurement.next()) is not None:
        if isinstance(step, Cool):
            measurement.cooled(step, wait_until_cool(step))
        else:
            measurement.tell(step, run(step))
    result = measurement.result()

Order of one set, with one candidate A and the canary R: warm-up of R and A, then ``R A R A R …``; each block of A is
compared with the canary blocks beside it. Several candidates share the fences, in random order between them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from device_agents.contract import Block, BlockRequest, BoardState
from harness.measure.findings import Finding, Level, judge, notices
from harness.measure.intervals import (
    MIN_BLOCKS,
    REPORT_CONFIDENCE,
    SEQUENTIAL_CONFIDENCE,
    VAGUE_HALF_WIDTH,
    Interval,
)
from harness.measure.record import BlockRecord, DriftRecord, MeasurementResult, StopReason
from harness.measure.settings import MeasurementSettings
from harness.measure.steady import CANARY_WARMUP, SteadyState
from harness.measure.steps import CANARY, CANDIDATE, Cool, Step, TimedBlock, Warmup
from harness.measure.summary import Fenced, canary_level, fence, latency_of, look
from harness.measure.trouble import (
    SetCheck,
    check_set,
    outlier_trouble,
    outliers_of,
    physical_trouble,
    sample_trouble,
)
from harness.results import LatencyResult

_Script = Generator[Step, None, None]


class Measurement:
    """One measurement of one or more models on one board.

    ``targets`` name the models besides the canary. ``rng`` orders the blocks; without one it is seeded from the
    settings. Calls out of turn raise ``ValueError``; nothing a board answers does.
    """

    def __init__(
        self,
        settings: MeasurementSettings,
        *,
        targets: Sequence[str] = (CANDIDATE,),
        rng: np.random.Generator | None = None,
    ) -> None:
        if not targets or len(set(targets)) != len(targets) or CANARY in targets:
            raise ValueError(f"targets are {list(targets)}: at least one, all different, none called {CANARY!r}")
        self.settings = settings
        self.targets = tuple(targets)
        self._rng = np.random.default_rng(settings.seed) if rng is None else rng
        self._records: list[BlockRecord] = []
        self._findings: dict[str | None, list[Finding]] = {None: []}
        self._stops: dict[str, StopReason] = {}
        self._sessions: dict[str, int] = {}
        self._round = 0
        self._redone_for_drift = 0
        self._quarantine = False
        self._boot_id: str | None = None
        self._start_c: float | None = None
        self._loaded: str | None = None
        self._over: StopReason | None = None
        self._pending: Step | None = None
        self._script: _Script = self._run()

    def next(self) -> Step | None:
        """The step to take now (the same until it is told); ``None`` when the measurement is over."""
        if self._over is not None:
            return None
        if self._pending is None:
            self._pending = next(self._script, None)
        return self._pending

    def tell(self, step: Step, block: Block) -> None:
        """What a :class:`Warmup` or :class:`TimedBlock` gave. Data that cannot be true end the measurement."""
        self._take(step, (Warmup, TimedBlock))
        boots = {b for b in (block.boot_id, block.before.boot_id, block.after.boot_id) if b}
        if self._boot_id is None and boots:
            self._boot_id = sorted(boots)[0]
        if boots - {self._boot_id}:
            self._end(
                "void", Finding("invalid", "rebooted", "the board started anew: what was measured before is void")
            )
            return
        problem = sample_trouble(block.samples_ns)
        if problem:
            self._end("void", Finding("invalid", "bad_samples", problem))
            return
        if self._start_c is None:
            self._start_c = block.before.temperature_c
        self._records.append(self._record(step, block))

    def cooled(self, step: Step, state: BoardState) -> None:
        """The pause is over; ``state`` is the reading at its end."""
        self._take(step, (Cool,))
        if state.boot_id and self._boot_id and state.boot_id != self._boot_id:
            self._end("void", Finding("invalid", "rebooted", "the board started anew during the pause"))

    def fail(self, text: str) -> None:
        """The driver could not take the step (the board crashed, the link broke): ends the measurement, ``invalid``."""
        self._end("failed", Finding("invalid", "failed", text))

    def result(self, target: str | None = None) -> MeasurementResult:
        """The result of one target (the only one by default), whether or not the measurement is over."""
        if target is None:
            target = self.targets[0]
        if target not in self.targets:
            raise ValueError(f"no target {target!r}: there are {', '.join(self.targets)}")
        return self._result(target)

    # What follows is in the order of the protocol.

    def _run(self) -> _Script:
        outliers_redone = False
        while True:
            yield from self._set()
            check = self._check()
            redo = check.physical or (check.statistical and self.settings.noise == "dedicated")
            if self._budget_used():
                return
            if redo and self._redone_for_drift < self.settings.redo_limit:
                self._redone_for_drift += 1
                yield self._cool(check)
            elif redo:
                self._quarantine = self.settings.noise == "dedicated"
                return
            elif self._outliers_to_redo() and not outliers_redone:
                outliers_redone = True
            else:
                return
            self._round += 1
            self._stops.clear()
            # What was noticed in a dropped set says nothing about the one that counts.
            self._findings = {None: self._findings[None]}

    def _set(self) -> _Script:
        """One whole set: warm-up, then blocks until every target has its stop reason or the board is in trouble."""
        for target in (CANARY, *self.targets) if self.settings.canary else self.targets:
            if not self.settings.exclusive:
                yield from self._warm(target, fresh=self._round > 0)
        yield from self._fence()
        while active := [t for t in self.targets if t not in self._stops]:
            yield from self._renew(active)
            for position in self._rng.permutation(len(active)):
                yield from self._block(active[int(position)])
            yield from self._fence()
            if self._physical_trouble():
                return
            for target in active:
                self._consider(target)

    def _fence(self) -> _Script:
        if self.settings.canary:
            yield from self._block(CANARY)

    def _renew(self, active: Sequence[str]) -> _Script:
        """New sessions where they are due, and a new fence after them so that every block has a near one."""
        limit = self.settings.blocks_per_session
        if limit is None or self.settings.exclusive:
            return
        due = [t for t in active if len(self._session_blocks(t)) >= limit]
        for target in due:
            yield from self._warm(target, fresh=True)
        if due:
            yield from self._fence()

    def _block(self, target: str) -> _Script:
        if self.settings.exclusive and self._loaded != target:
            yield from self._warm(target, fresh=True)
        self._loaded = target
        yield TimedBlock(target, self._request(target), fresh=not self._session_blocks(target))

    def _request(self, target: str) -> BlockRequest:
        return self.settings.canary_block if target == CANARY else self.settings.block

    def _warm(self, target: str, *, fresh: bool) -> _Script:
        if fresh or target not in self._sessions:
            self._sessions[target] = self._sessions.get(target, -1) + 1
        self._loaded = target
        steady = SteadyState(self.settings, self._request(target), CANARY_WARMUP if target == CANARY else 1.0)
        while not steady.over:
            yield Warmup(target, steady.request(), fresh=fresh and not steady.medians)
            steady.add(self._records[-1].samples_ns)
            if self._budget_used():
                break
        if not steady.steady:
            text = (
                f"{target} was still changing after {steady.elapsed_ns / 1e9:.1f} s of warm-up (last windows "
                f"{steady.medians[-2] / 1e6:.3f} and {steady.medians[-1] / 1e6:.3f} ms)"
                if len(steady.medians) > 1
                else f"one warm-up window of {target} took {steady.elapsed_ns / 1e9:.1f} s"
            )
            # The canary is only a reference: its wandering is judged as drift.
            level: Level = "notice" if target == CANARY or self.settings.noise == "shared" else "suspect"
            self._findings.setdefault(target, []).append(Finding(level, "no_steady_state", text))

    def _consider(self, target: str) -> None:
        """Looks at the target's interval after a whole block and decides whether more blocks are worth taking."""
        settings = self.settings
        fenced, level = self._fenced(target), self._level()
        interval = look(fenced, settings.look_confidence, self._reference())
        if interval is not None:
            futile = settings.futility_ns is not None and interval.low * level > settings.futility_ns
            if len(fenced) >= settings.min_blocks and interval.half_width <= settings.target_half_width:
                self._stops[target] = "interval"
            elif futile:
                self._stops[target] = "futility"
        if target in self._stops:
            return
        if len(fenced) >= settings.max_blocks:
            self._stops[target] = "max_blocks"
        elif self._budget_used() and len(fenced) >= MIN_BLOCKS:
            # With fewer there is no interval, and what was spent would be for nothing.
            self._stops[target] = "device_budget"

    def _cool(self, check: SetCheck) -> Cool:
        below = None if self._start_c is None else self._start_c + self.settings.cool_margin_c
        return Cool(self.settings.cool_s, below, "; ".join(f.text for f in check.findings))

    # State.

    def _take(self, step: Step, kinds: tuple[type, ...]) -> None:
        if self._over is not None:
            raise ValueError(f"the measurement is over ({self._over}): nothing can be told any more")
        if self._pending is None or step != self._pending or not isinstance(step, kinds):
            raise ValueError(f"told {step}, but the step in hand is {self._pending}")
        self._pending = None

    def _record(self, step: Step, block: Block) -> BlockRecord:
        if isinstance(step, Cool):
            raise ValueError("a pause has no samples")
        return BlockRecord(
            index=len(self._records),
            round=self._round,
            kind="warmup" if isinstance(step, Warmup) else "block",
            target=step.target,
            session=self._sessions.get(step.target, 0),
            samples_ns=np.asarray(block.samples_ns).astype(np.int64),
            first_ns=block.first_ns,
            before=block.before,
            after=block.after,
            peak_memory_bytes=block.peak_memory_bytes,
        )

    def _end(self, reason: StopReason, finding: Finding) -> None:
        self._findings[None].append(finding)
        self._over = reason
        self._pending = None

    def _set_records(self) -> list[BlockRecord]:
        return [r for r in self._records if r.round == self._round and r.kind == "block"]

    def _session_blocks(self, target: str) -> list[BlockRecord]:
        session = self._sessions.get(target, 0)
        return [r for r in self._records if r.kind == "block" and r.target == target and r.session == session]

    def _fenced(self, target: str) -> list[Fenced]:
        return fence(self._set_records(), target, CANARY)

    def _level(self) -> float:
        return canary_level(self._set_records(), CANARY)

    def _canary_medians(self) -> list[float]:
        return [r.median_ns for r in self._set_records() if r.target == CANARY]

    def _reference(self) -> list[float]:
        """Canary medians whose spread the interval must carry: none on a board of one's own."""
        return self._canary_medians() if self.settings.noise == "shared" else []

    def _physical_trouble(self) -> bool:
        return any(physical_trouble(r, self.settings) is not None for r in self._set_records())

    def _check(self, target: str | None = None) -> SetCheck:
        fence_target = CANARY if self.settings.canary else target or self.targets[0]
        records = self._set_records()
        if target is not None:
            records = [r for r in records if r.target in (target, CANARY)]
        return check_set(records, self.settings, fence_target)

    def _outliers_to_redo(self) -> bool:
        if self.settings.noise == "shared":
            return False
        counts = [outliers_of(self._set_records(), t) for t in self.targets]
        return any(outlier_trouble(c, self.settings) is not None for c in counts)

    def _device_ns(self) -> int:
        return sum(r.device_ns for r in self._records)

    def _budget_used(self) -> bool:
        budget = self.settings.device_budget_ns
        return budget is not None and self._device_ns() >= budget

    def _result(self, target: str) -> MeasurementResult:
        records = self._set_records()
        fenced, level, check = self._fenced(target), self._level(), self._check(target)
        stop = self._over or self._stops.get(target, "unfinished")
        adaptive = self.settings.max_blocks > self.settings.min_blocks
        confidence = SEQUENTIAL_CONFIDENCE if adaptive else REPORT_CONFIDENCE
        interval = look(fenced, confidence, self._reference())
        counts = outliers_of(records, target)
        found = [*self._findings[None], *self._findings.get(target, []), *self._findings.get(CANARY, [])]
        found += check.findings
        outliers = outlier_trouble(counts, self.settings)
        if outliers is not None:
            found.append(outliers)
        found += self._remarks(stop, interval, len(fenced))
        verdict, reasons = judge(found)
        latency: LatencyResult | None = None
        bounds: dict[str, float] = {}
        if interval is not None and verdict != "invalid":
            latency, bounds = latency_of(fenced, level, interval)
        with_ratio = interval is not None and self.settings.canary and verdict != "invalid"
        own = [r for r in self._records if r.target == target]
        return MeasurementResult(
            target=target,
            verdict=verdict,
            reasons=reasons,
            notices=notices(found),
            stop_reason=stop,
            latency=latency,
            ratio_to_canary=interval.estimate if interval is not None and with_ratio else None,
            ratio_ci95=(interval.low, interval.high) if interval is not None and with_ratio else None,
            percentile_bounds=bounds,
            canary_ns=tuple(self._canary_medians()),
            drift=check.drift if records else DriftRecord(None, None, False),
            outliers=counts,
            quarantine=self._quarantine,
            redone=self._round,
            first_ns=next((r.first_ns for r in own if r.first_ns is not None), None),
            peak_memory_bytes=max((r.peak_memory_bytes for r in own if r.peak_memory_bytes is not None), default=None),
            device_ns=self._device_ns(),
            settings=replace(self.settings),
            records=tuple(self._records),
        )

    def _remarks(self, stop: StopReason, interval: Interval | None, blocks: int) -> list[Finding]:
        remarks = []
        if interval is None and self._over is None:
            text = f"{blocks} blocks measured ({stop}), an interval needs 3"
            remarks.append(Finding("invalid", "too_few_blocks", text))
        if interval is not None and interval.half_width > VAGUE_HALF_WIDTH:
            text = f"the interval is ±{interval.half_width:.0%} after {blocks} blocks (limit {VAGUE_HALF_WIDTH:.0%})"
            remarks.append(Finding("suspect", "wide_interval", text))
        elif stop in ("max_blocks", "device_budget"):
            text = f"the interval was still wider than asked after {blocks} blocks"
            remarks.append(Finding("notice", "wide_interval", text))
        if not self.settings.canary:
            remarks.append(Finding("notice", "no_canary", "the board has no canary: drift can hide in the result"))
        if self._quarantine:
            remarks.append(Finding("suspect", "quarantine", f"drift in {self._round + 1} sets: look at the board"))
        if self._round:
            remarks.append(Finding("notice", "redone", f"{self._round} sets were dropped whole and measured again"))
        return remarks
