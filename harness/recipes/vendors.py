"""Vendors' quantizers that recipes can name, by backend."""

from __future__ import annotations

from collections.abc import Mapping

from harness.errors import ConfigError
from harness.recipes import amct, esp_ppq, quark
from harness.recipes.options import OptionTable
from harness.suggest import did_you_mean

VENDOR_TABLES: Mapping[str, OptionTable] = {table.backend: table for table in (esp_ppq.TABLE, quark.TABLE, amct.TABLE)}


def vendor_table(backend: str) -> OptionTable:
    """Raises :class:`ConfigError` if ``backend`` is no vendor's quantizer."""
    table = VENDOR_TABLES.get(backend)
    if table is None:
        hint = did_you_mean(backend, VENDOR_TABLES, what="vendors' quantizers")
        raise ConfigError(f"recipe field 'backend' is {backend!r}, which is no vendor's quantizer", hint=hint)
    return table
