"""A string that must not be shown."""

from __future__ import annotations

import hmac
from typing import NoReturn

_SHOWN = "********"


class Secret:
    """Wraps a password or passphrase so that logs, tracebacks, reports and ledgers never carry it.

    ``str``, ``repr`` and formatting show asterisks; it refuses to be pickled and is not JSON-serialisable, so that it
    stays in the process that resolved it. :meth:`reveal` is the only way to the value.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"Secret('{_SHOWN}')"

    def __str__(self) -> str:
        return _SHOWN

    def __format__(self, spec: str) -> str:
        return format(_SHOWN, spec)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Secret is not pickled: send its reference (env:NAME, file:PATH) and resolve it where it is used"
        )
