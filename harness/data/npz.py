"""Reader of ``.npz`` files: one array per model input, samples on axis 0, plus ``labels``."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.data.dataset import LABELS
from harness.data.stored import Array, Stored, check_fits
from harness.errors import DataError
from harness.suggest import near_hint
from harness.tensors import TensorSpec

LABEL_ALIASES = frozenset({"label", "y", "y_test", "y_train", "target", "targets", "classes"})


def read_npz(path: Path, inputs: Sequence[TensorSpec]) -> Stored:
    """Reads the arrays of the model's inputs and the labels; others are named in a notice.

    Raises :class:`DataError`: not an ``.npz``, damaged, an input missing, pickled objects, too large.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
            names = [spec.name for spec in inputs]
            check_names(members, names, str(path))
            wanted = [*names, *([LABELS] if LABELS in members and LABELS not in names else [])]
            found = {name: _read_member(archive, name, path) for name in wanted}
    except zipfile.BadZipFile as error:
        hint = "It is a single .npy array." if _is_npy(path) else "The file may be truncated; copy it again."
        raise DataError(f"not a readable .npz file: {error}", where=path, hint=hint) from None
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror or error}", where=path) from None
    labels = found.pop(LABELS) if LABELS in wanted and LABELS not in names else None
    unused = sorted(set(members) - set(wanted))
    notices = (f"{path.name}: not used: {', '.join(map(repr, unused))}",) if unused else ()
    return Stored(arrays=found, labels=labels, notices=notices)


def check_names(found: Sequence[str], inputs: Sequence[str], origin: str) -> None:
    """Raises :class:`DataError` where an input has no array, or where labels seem to go by another name."""
    missing = [name for name in inputs if name not in found]
    spare = [name for name in found if name not in inputs and name != LABELS]
    if missing:
        rename = near_hint(missing[0], spare)
        if not rename and len(missing) == len(spare) == 1:
            rename = f"Is it {spare[0]!r}? Rename it to {missing[0]!r}."
        raise DataError(
            f"no array {missing[0]!r} for the model's input of that name; found "
            f"{', '.join(map(repr, sorted(found))) or 'no arrays'}",
            where=origin,
            hint=rename or f"The model's inputs are {', '.join(map(repr, inputs))}.",
        )
    if LABELS not in found:
        alias = next((name for name in spare if name.lower() in LABEL_ALIASES), None)
        if alias is not None:
            raise DataError(
                f"no array {LABELS!r}, but one called {alias!r}",
                where=origin,
                hint=f"Rename {alias!r} to {LABELS!r}, or remove it to go without labels.",
            )


def _read_member(archive: zipfile.ZipFile, name: str, path: Path) -> Array:
    try:
        with archive.open(f"{name}.npy") as stream:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
        refuse_objects(dtype, name, str(path))
        check_fits(shape, dtype, f"array {name!r}", str(path))
        with archive.open(f"{name}.npy") as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)
    except (ValueError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise DataError(
            f"array {name!r} cannot be read: {error}",
            where=path,
            hint="The file is damaged; write it again with numpy.savez.",
        ) from None


def refuse_objects(dtype: np.dtype[np.generic], name: str, origin: str) -> None:
    """Raises :class:`DataError` for arrays of Python objects: reading them would run pickled code."""
    if dtype.hasobject:
        raise DataError(
            f"array {name!r} holds Python objects, which are not read",
            where=origin,
            hint="Save it with a numeric dtype; samples of unequal shape must be brought to one shape first.",
        )


def _is_npy(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(6) == b"\x93NUMPY"
    except OSError:
        return False
