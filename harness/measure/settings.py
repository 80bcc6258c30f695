"""How long and how exactly to measure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from device_agents.contract import BlockRequest

Profile = Literal["quick", "screening", "final"]
NoiseClass = Literal["dedicated", "shared"]

SECOND = 1_000_000_000
"""Nanoseconds."""


@dataclass(frozen=True)
class MeasurementSettings:
    """Parameters of one measurement; make them with :func:`settings_for`.

    Times are nanoseconds on the device's clock unless the name says seconds. Shares are 0..1.
    """

    profile: Profile
    block: BlockRequest
    """One candidate block: both minima hold, or ``max_ns`` is reached."""
    canary_block: BlockRequest
    min_blocks: int
    """Candidate blocks before the interval may end the measurement; at least 3, as the interval needs them."""
    max_blocks: int
    target_half_width: float
    """Stop when the 99 % interval's half-width is at most this share of the estimate."""
    warmup_min_count: int
    warmup_min_ns: int
    warmup_window_ns: int
    """Length of the first window; windows double from the third on."""
    warmup_cap_ns: int
    steady_tolerance: float
    """Largest relative difference between the medians of the last two warm-up windows."""
    blocks_per_session: int | None
    """A new session after so many blocks; ``None``: one session for all.

    One session may be a per cent faster than the next for good (memory layout), and blocks in it share that: only with
    1 is the interval about the model. With 2, and sessions twice as noisy as blocks, it covers 91 % (simulated)."""
    cool_s: float
    """Longest pause before a set is redone."""
    noise: NoiseClass = "dedicated"
    seed: int = 0
    rows: int = 8
    """Input samples to cycle through."""
    futility_ns: float | None = None
    """The candidate cannot enter the top-K if it is certainly slower than this; ``None``: never futile."""
    device_budget_ns: int | None = None
    """Device time this measurement may use, canary and warm-up included; three blocks are taken all the same."""
    canary: bool = True
    """``False``: the board has no canary; block medians are used as they are."""
    exclusive: bool = False
    """Canary and candidate must not be loaded at once: each change of target starts a fresh session and warms it."""
    drift_threshold: float = 0.03
    """Canary's first against its last block median."""
    slope_threshold: float = 0.01
    """Change across one block by the Theil-Sen slope."""
    severe_outlier_share: float = 0.05
    redo_limit: int = 2
    cool_margin_c: float = 2.0
    """Cool to the starting temperature plus this."""
    min_frequency_khz: int | None = None
    """Clock asked for; a lower reading after a block is drift."""
    look_confidence: float = 0.99
    """Confidence at each look at the interval, to pay for looking repeatedly."""


_PROFILES: dict[Profile, dict[str, Any]] = {
    "quick": {
        "block": (5, SECOND * 15 // 100, SECOND * 2),
        "canary_block": (5, SECOND * 5 // 100, SECOND),
        "min_blocks": 3, "max_blocks": 5, "target_half_width": 0.05,
        "warmup_min_count": 5, "warmup_min_ns": SECOND // 5, "warmup_window_ns": SECOND // 20,
        "warmup_cap_ns": SECOND * 5, "blocks_per_session": None, "cool_s": 5.0,
    },
    "screening": {
        "block": (10, SECOND // 2, SECOND * 5),
        "canary_block": (10, SECOND * 15 // 100, SECOND * 2),
        "min_blocks": 3, "max_blocks": 6, "target_half_width": 0.03,
        "warmup_min_count": 10, "warmup_min_ns": SECOND, "warmup_window_ns": SECOND // 4,
        "warmup_cap_ns": SECOND * 30, "blocks_per_session": None, "cool_s": 30.0,
    },
    "final": {
        "block": (20, SECOND * 2, SECOND * 10),
        "canary_block": (20, SECOND // 2, SECOND * 5),
        "min_blocks": 5, "max_blocks": 12, "target_half_width": 0.01,
        "warmup_min_count": 10, "warmup_min_ns": SECOND, "warmup_window_ns": SECOND // 4,
        "warmup_cap_ns": SECOND * 30, "blocks_per_session": 1, "cool_s": 300.0,
    },
}  # fmt: skip


def settings_for(
    profile: Profile, *, noise: NoiseClass = "dedicated", scale: float = 1.0, rows: int = 8, **changes: Any
) -> MeasurementSettings:
    """Settings of a profile: ``quick`` about 1 s of device time, ``screening`` about 3 s, ``final`` 20-50 s.

    ``scale`` stretches every duration (not the counts), e.g. 0.25 for finals in a small budget; ``changes`` replace
    fields. Raises ``ValueError`` on an unknown profile, a scale that is not positive or fewer than 3 blocks,
    ``TypeError`` on an unknown field.
    """
    if profile not in _PROFILES:
        raise ValueError(f"unknown measurement profile {profile!r}: use one of {', '.join(_PROFILES)}")
    if not scale > 0:
        raise ValueError(f"scale is {scale}: must be positive")
    values = dict(_PROFILES[profile])
    for name in ("block", "canary_block"):
        count, min_ns, max_ns = values[name]
        values[name] = BlockRequest(count, int(min_ns * scale), max(1, int(max_ns * scale)), rows)
    for name in ("warmup_min_ns", "warmup_window_ns", "warmup_cap_ns"):
        values[name] = int(values[name] * scale)
    # On a machine others use, window medians wander by more than 1 % without any warm-up going on.
    tolerance = 0.01 if noise == "dedicated" else 0.03
    made = MeasurementSettings(profile=profile, noise=noise, rows=rows, steady_tolerance=tolerance, **values)
    made = replace(made, **changes)
    if made.min_blocks < 3 or made.max_blocks < made.min_blocks:
        raise ValueError(
            f"blocks {made.min_blocks}..{made.max_blocks}: at least 3 are needed and the maximum must not be lower"
        )
    return made
