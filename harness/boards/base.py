"""What every model of a board file shares: frozen, no unknown keys, no input values in error texts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Strict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """One mapping of a board file."""

    # Input values stay out of pydantic's own error text: one of them may be a password put in the wrong place.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True)


Text = Annotated[str, Strict()]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]


def invalid(kind: str, message: str, *, hint: str = "", **context: Any) -> PydanticCustomError:
    """An error for a validator to raise; ``hint`` (the way out) and ``at`` (a field below) are read by ``problems``."""
    # Braces would be read as placeholders by pydantic's templates.
    safe = message.replace("{", "(").replace("}", ")")
    return PydanticCustomError(kind, safe, {"hint": hint, **context})
