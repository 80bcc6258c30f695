"""A model for one chip does not run on another, and is told apart though files do not say what they are for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from device_agents.emulated.espdl.reader import read_model
from harness.lints.espdl import lint
from harness.lints.target import TARGET_METADATA

GOLDEN = Path(__file__).parent / "golden"
CHIPS = ("esp32", "esp32s3", "esp32p4")


@pytest.mark.parametrize("network", ["tiny_images", "tiny_detector", "tiny_sequence"])
@pytest.mark.parametrize("made_for", CHIPS)
@pytest.mark.parametrize("board", CHIPS)
def test_files_of_esp_ppq(network: str, made_for: str, board: str) -> None:
    model = read_model(GOLDEN / f"{network}-{made_for}-w8a8.espdl")
    found = [finding.what for finding in lint(model, board) if finding.code == "other-target"]
    # What an S3 cannot do of a P4's file is a scale for each channel; the other way round nothing shows.
    hidden = made_for == "esp32s3" and board == "esp32p4"
    assert bool(found) == (made_for != board and not hidden), found


@pytest.mark.parametrize("board", CHIPS)
@pytest.mark.parametrize("made_for", CHIPS)
def test_files_that_say_it(made_for: str, board: str) -> None:
    model = read_model(GOLDEN / f"tiny_images-{made_for}-w8a8.espdl")
    model = replace(model, metadata={TARGET_METADATA: made_for})
    found = [finding.what for finding in lint(model, board) if finding.code == "other-target"]
    assert found == ([] if made_for == board else [f"The model is not for an {board}: it was made for {made_for}."])
