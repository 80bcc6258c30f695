"""The first line of a run: what it is a run of, and what must not differ when it is resumed."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.ledger.plain import canonical_json, plain

PATHS_OF_PLAN = frozenset({"model", "calib", "eval", "preprocess", "candidates"})
"""Plan fields that only say where something is; what is there counts by its digest."""

_BOARD_IDENTITY = ("hardware_id", "emulated", "machine", "runtime", "runtime_version", "providers", "runner_sha256")


@dataclass(frozen=True)
class Difference:
    field: str
    """Dotted path, e.g. ``plan.objective``."""
    recorded: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.field}: the run has {_short(self.recorded)}, now {_short(self.now)}"


def run_header(
    *,
    version: str,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    preprocess: str | None,
    metric: Sequence[str],
    plan: Mapping[str, Any],
    seed: int,
    versions: Mapping[str, str],
    metric_units: Mapping[str, str] | None = None,
    candidates: Sequence[Mapping[str, str]] = (),
    mixed_precision: tuple[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """``model``: at least ``digest`` (also path, parameters, opset, inputs); ``data``: by role (``calib``, ``eval``),
    at least ``digest`` each; ``preprocess``: digest; ``plan``: its JSON with defaults explicit; ``versions``: backends
    and libraries; ``metric_units``: ``fraction``, ``dB`` or empty by metric, for the report;
    ``candidates``: models made elsewhere, ``identity``, ``sha256`` and ``path`` of each; ``mixed_precision``: digest
    and JSON of the ranking of groups that the search space was made with.

    Paths are no part of the key, the digests of what is there are.
    """
    header: dict[str, Any] = {
        "boardtune": version,
        "key": {
            "model": model["digest"],
            "data": {role: _digest(value) for role, value in data.items()},
            "preprocess": preprocess,
            "metric": list(metric),
            "plan": {name: value for name, value in plan.items() if name not in PATHS_OF_PLAN},
            "seed": seed,
            "versions": versions,
        },
        "model": model,
        "data": data,
        "plan": plan,
        "metric_units": metric_units or {},
    }
    if candidates:
        # By place: what differs is named alone.
        header["key"]["candidates"] = {str(n): candidate["identity"] for n, candidate in enumerate(candidates, 1)}
        header["candidates"] = candidates
    if mixed_precision is not None:
        header["key"]["mixed_precision"], header["mixed_precision"] = mixed_precision
    return plain(header)  # type: ignore[no-any-return]


def differences(
    recorded: Mapping[str, Any], now: Mapping[str, Any], ignore: Sequence[str] = ()
) -> tuple[Difference, ...]:
    """Field by field over the ``key`` of two headers; ``ignore``: glob patterns of dotted paths."""
    return tuple(
        difference
        for difference in _walk("", plain(recorded.get("key", {})), plain(now.get("key", {})))
        if not any(fnmatch.fnmatchcase(difference.field, pattern) for pattern in ignore)
    )


def board_differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Difference, ...]:
    """What makes results of one board two different boards' results (boot id, free memory and the like do not)."""
    return tuple(
        Difference(name, recorded.get(name), now.get(name))
        for name in _BOARD_IDENTITY
        if plain(recorded.get(name)) != plain(now.get(name))
    )


def _walk(path: str, recorded: Any, now: Any) -> Iterator[Difference]:
    if isinstance(recorded, dict) and isinstance(now, dict):
        for name in sorted(recorded.keys() | now.keys()):
            yield from _walk(f"{path}.{name}" if path else name, recorded.get(name), now.get(name))
    elif recorded != now:
        yield Difference(path, recorded, now)


def _digest(value: Any) -> Any:
    return value.get("digest") if isinstance(value, Mapping) else value


def _short(value: Any) -> str:
    text = canonical_json(value)
    return text if len(text) <= 60 else text[:57] + "..."
