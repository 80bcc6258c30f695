"""The shipped boards reproduce what was published of their hardware, within the error their files state."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from device_agents.emulated import EmulatedSpec
from device_agents.emulated.chip.spec import EmulatedChipSpec
from device_agents.emulated.cost_model.figures import Check, check
from device_agents.emulated.spec import Figure

BOARDS = Path(__file__).parents[2] / "boards"
FILES = [BOARDS / "rpi5-emulated.yaml", BOARDS / "ryzen-ai-emulated.yaml"]
"""Machines that run ONNX models; tests/serial has the chips."""


def spec_of(path: Path) -> EmulatedSpec:
    return EmulatedSpec.model_validate(yaml.safe_load(path.read_text())["emulated"])


def test_no_emulated_board_is_forgotten() -> None:
    chips = {"esp32p4-emulated", "esp32s3-emulated"}
    assert {path.stem for path in BOARDS.glob("*-emulated.yaml")} == {path.stem for path in FILES} | chips


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_at_least_three_published_figures_hold_within_the_stated_error(path: Path) -> None:
    checks = list(check(spec_of(path).cost_model))
    # Of the runtime that the board stands for.
    assert sum(c.figure.runtime == "ONNX Runtime" and c.figure.max_error <= 0.2 for c in checks) >= 3
    assert {c.figure.network: f"{c.error:+.1%}" for c in checks if not c.within} == {}
    assert all(c.figure.source.startswith("https://") for c in checks)


def test_figures_that_nothing_was_fitted_to_hold_within_a_quarter() -> None:
    checks = [c for c in check(spec_of(FILES[0]).cost_model) if not c.figure.fitted]
    assert len(checks) >= 3
    assert all(c.within and c.figure.max_error <= 0.25 for c in checks)


def test_an_error_is_relative_and_signed() -> None:
    figure = Figure(
        network="resnet18", precision="int8", threads=1, latency_ms=10.0, max_error=0.1, runtime="-", source="https://x"
    )
    assert Check(figure, 10.9).error == pytest.approx(0.09)
    assert Check(figure, 10.9).within
    assert not Check(figure, 8.9).within


@pytest.mark.parametrize("name", ["esp32s3", "esp32p4"])
def test_chips_reproduce_published_figures_within_the_stated_error(name: str) -> None:
    spec = yaml.safe_load((BOARDS / f"{name}-emulated.yaml").read_text())["emulated"]
    costs = EmulatedChipSpec.model_validate(spec).cost_model
    errors = {}
    for figure in costs.figures:
        predicted = costs.ms_per_mmac * figure.mmac + costs.ms_per_mactivation * figure.activations_m
        errors[figure.model] = predicted / figure.latency_ms - 1
        assert abs(errors[figure.model]) <= figure.max_error, figure.model
        assert figure.source.startswith("https://")
    assert sum(abs(error) <= 0.2 for error in errors.values()) >= 3, errors
    assert costs.leave_one_out_error >= sum(map(abs, errors.values())) / len(errors) - 0.01, "in-sample is no worse"
