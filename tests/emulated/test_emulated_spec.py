"""What the ``emulated:`` section of a board file may say."""

from __future__ import annotations

from typing import Any

import pytest
from emulated_boards import NPU, cost_model, make_spec
from pydantic import ValidationError

from device_agents.emulated import EmulatedSpec


def refused(message: str, **changes: Any) -> None:
    with pytest.raises(ValidationError, match=message):
        make_spec(**changes)


def test_survives_json() -> None:
    spec = make_spec(
        cost_model=cost_model(accelerator=NPU),
        throttling={"ambient_c": 30, "rise_c": 50, "time_constant_s": 60, "threshold_c": 75, "slow_down": 1.4},
        faults=[{"kind": "drop", "after_bytes": 5, "times": 2}],
    )
    assert EmulatedSpec.model_validate_json(spec.model_dump_json()) == spec


def test_unknown_keys_and_values_are_refused() -> None:
    refused("Extra inputs are not permitted", speed=3)
    refused("Extra inputs are not permitted", noise={"sigmaa": 0.1})
    refused("Input should be 'virtual' or 'real'", pace="fast")
    refused("kind", faults=[{"kind": "explode"}])
    refused("memory_gb_s", cost_model=cost_model(processor={"memory_gb_s": 0}))


def test_operators_need_a_rate_for_their_data_types() -> None:
    refused("data types int16 have no rate", cost_model=cost_model(processor={"operators": {"Conv": ["int16"]}}))
    refused("needs a float32 rate", cost_model=cost_model(processor={"gmac_per_s": {"int8": 1}, "operators": {}}))


def test_a_throttling_that_cannot_happen_is_refused() -> None:
    heat = {"ambient_c": 30, "rise_c": 20, "time_constant_s": 60, "threshold_c": 75, "slow_down": 1.4}
    refused("above the hottest", throttling=heat)


def test_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make_spec().seed = 3  # type: ignore[misc]
