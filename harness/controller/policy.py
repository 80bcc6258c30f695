"""How long each candidate is measured, and from which seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.measure.intervals import MIN_BLOCKS
from harness.measure.settings import MeasurementSettings, NoiseClass, Profile, settings_for
from harness.plan import Effort

_FINAL: Mapping[Effort, Mapping[str, Any]] = {
    "quick": {"scale": 0.2, "max_blocks": 6, "target_half_width": 0.02},
    "standard": {},
}
"""A quick search spends about 4 s on each finalist, a fifth of the whole protocol."""
_SHORTER = (1.0, 0.5, 0.25, 0.125)
"""Of the lengths of blocks and warm-up. At an eighth, blocks of the whole protocol are as long as those of a search."""


@dataclass(frozen=True)
class MeasurementPolicy:
    seed: int
    effort: Effort
    noise: Mapping[str, NoiseClass]
    """By board."""

    def screening(
        self, trial: int, board: str, futility_ns: float | None = None, *, device_budget_ns: int | None = None
    ) -> MeasurementSettings:
        """Of one candidate during the search."""
        profile: Profile = "quick" if self.effort == "quick" else "screening"
        return settings_for(
            profile,
            noise=self.noise[board],
            seed=seed_of(self.seed, trial, board, "search"),
            futility_ns=futility_ns,
            device_budget_ns=device_budget_ns,
        )

    def final(self, trial: int, board: str) -> MeasurementSettings:
        """Of a finalist, and of single models: the whole protocol."""
        return settings_for(
            "final",
            noise=self.noise[board],
            seed=seed_of(self.seed, trial, board, "final"),
            **_FINAL[self.effort],
        )

    def shorter_finals(self, trial: int, board: str) -> Iterator[MeasurementSettings]:
        """The whole protocol, then with the fewest blocks that an interval needs, then those ever shorter."""
        whole = self.final(trial, board)
        yield whole
        values = {**_FINAL[self.effort], "min_blocks": MIN_BLOCKS, "max_blocks": MIN_BLOCKS}
        scale = values.pop("scale", 1.0)
        for share in _SHORTER:
            yield settings_for(
                "final",
                noise=whole.noise,
                seed=whole.seed,
                scale=scale * share,
                **values,
            )


def seed_of(*parts: object) -> int:
    """A seed of 63 bits from anything printable, the same in every process."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
