"""Whether an ``.espdl`` model is for a chip at all."""

from __future__ import annotations

from collections.abc import Iterator

from device_agents.emulated.espdl.model import Model
from device_agents.emulated.espdl.target import TARGETS, target_named
from harness.audit.finding import Finding

TARGET_METADATA = "boardtune.target"
"""Metadata entry of files that boardtune made: the chip, as ESP-PPQ calls it."""


def other_target(model: Model, target: str) -> Iterator[Finding]:
    """A file says its target only in boardtune's own metadata; else the form of its filters does, as ESP-PPQ 1.3
    writes them: blocks of channels for the S3 and P4, a scale for each channel for the P4 and S31."""
    said = model.metadata.get(TARGET_METADATA, "")
    family = target_named(target).family
    reasons = []
    if said in TARGETS:
        if TARGETS[said].family != family:
            reasons.append(f"it was made for {said}")
    else:
        filters = [t for t in model.constants.values() if t.layout not in ("", "UNK")]
        channelwise = [t.name for t in filters if len(set(t.exponents)) > 1]
        blocked = [t.name for t in filters if t.layout.startswith("(N/")]
        if channelwise and family != "p4":
            reasons.append(f"filter {channelwise[0]!r} has a scale for each channel")
        if blocked and family == "c":
            reasons.append(f"filter {blocked[0]!r} is stored in blocks of channels")
        if filters and not blocked and family != "c":
            reasons.append("its filters are not stored in blocks of channels")
    for reason in reasons:
        yield Finding(
            "other-target",
            "error",
            f"The model is not for an {target}: {reason}.",
            (),
            {"target": target},
            f"Quantize it for {target}.",
        )
