"""Packs ``device_agents.runner`` into the zipapp that is uploaded to boards."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

import device_agents.runner

_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest a zip file can hold: the same sources give the same bytes whenever they are packed."""


@cache
def build_runner() -> tuple[bytes, str]:
    """(bytes of the ``.pyz``, their sha256 in hex). The same sources always give the same bytes."""
    folder = Path(device_agents.runner.__file__).parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for source in sorted(folder.glob("*.py")):
            name = "__main__.py" if source.name == "boot.py" else f"runner/{source.name}"
            entry = zipfile.ZipInfo(name, _FIXED_TIME)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            # Stored, not deflated: compressors differ between zlib builds, and the file is small.
            archive.writestr(entry, source.read_bytes())
    data = buffer.getvalue()
    return data, hashlib.sha256(data).hexdigest()
