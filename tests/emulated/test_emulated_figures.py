"""The shipped boards reproduce what was published of their hardware, within the error their files state."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from device_agents.emulated import EmulatedSpec
from device_agents.emulated.cost_model.figures import Check, check
from device_agents.emulated.spec import Figure

FILES = sorted((Path(__file__).parents[2] / "boards").glob("*-emulated.yaml"))


def spec_of(path: Path) -> EmulatedSpec:
    return EmulatedSpec.model_validate(yaml.safe_load(path.read_text())["emulated"])


def test_both_boards_are_shipped() -> None:
    assert [path.stem for path in FILES] == ["rpi5-emulated", "ryzen-ai-emulated"]


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
