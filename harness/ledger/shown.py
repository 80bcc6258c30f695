"""A model file with what boardtune stamped into it, for ``boardtune show``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.ledger.provenance import read_stamp
from harness.quantize.describe import ModelDescription, describe_model
from harness.quantize.describe_espdl import describe_espdl


@dataclass(frozen=True)
class ShownModel:
    description: ModelDescription
    provenance: Mapping[str, str]
    """As stamped; empty where there is none."""

    @property
    def intact(self) -> bool | None:
        """Whether the content still is what was measured; ``None`` where nothing says what that was."""
        stamped = self.provenance.get("artifact_identity")
        return None if stamped is None else stamped == self.description.identity

    def to_json(self) -> dict[str, Any]:
        """The value ``boardtune show --json`` prints."""
        return {**self.description.to_json(), "provenance": dict(self.provenance) or None, "intact": self.intact}


def show_model(path: Path) -> ShownModel:
    """Reads any ONNX or ``.espdl`` file. Raises ModelError."""
    if path.suffix == ".espdl":
        # Its provenance is in the recipe's file beside it.
        return ShownModel(describe_espdl(path), {})
    description, model = describe_model(path)
    return ShownModel(description, read_stamp(model))
