"""What a result is a result *of*. Two results with different keys are never mixed or reused for each other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields

from device_agents.contract import BoardFacts, RuntimeOptions
from harness.ledger.plain import canonical_json, plain


@dataclass(frozen=True)
class ResultKey:
    """model × data × preprocessing × metric × recipe × backend version × board hardware id × driver × runner ×
    runtime version and options × power state. All strings; an empty one means "there is none"."""

    model: str
    """Digest of the prepared float model."""
    data: str
    """Digest over the calibration and evaluation sets."""
    preprocess: str
    metric: str
    recipe: str
    """Recipe digest."""
    backend: str
    """Name and version of the quantizer backend."""
    hardware_id: str
    driver: str
    runner: str
    """Digest of the runner program."""
    runtime: str
    """Name, version and providers of what executes models."""
    options: str
    """Canonical JSON of the runtime options."""
    power_state: str

    @property
    def digest(self) -> str:
        """sha256 hex of the canonical JSON of all fields."""
        return hashlib.sha256(canonical_json(self).encode("ascii")).hexdigest()

    def differing(self, other: ResultKey) -> tuple[str, ...]:
        """Names of the fields in which two keys differ."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))


def result_key(
    *,
    model: str,
    data: Mapping[str, str],
    preprocess: str | None,
    metric: tuple[str, ...],
    recipe: str,
    backend: str,
    facts: BoardFacts,
    options: RuntimeOptions,
    power_state: str | None,
) -> ResultKey:
    """``data``: digest by role; ``power_state``: power mode and governor as read back from the board. The driver's
    version is ``facts.extra["driver"]``, where the board has one."""
    return ResultKey(
        model=model,
        data=canonical_json(data),
        preprocess=preprocess or "",
        metric=canonical_json(metric),
        recipe=recipe,
        backend=backend,
        hardware_id=facts.hardware_id,
        driver=facts.extra.get("driver", ""),
        runner=facts.runner_sha256,
        runtime=canonical_json([facts.runtime, facts.runtime_version, plain(facts.providers)]),
        options=canonical_json(options),
        power_state=power_state or "",
    )
