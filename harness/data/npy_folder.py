"""Reader of folders of ``.npy`` files: one per model input, or one per sample for models of one input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.data.dataset import LABELS
from harness.data.npz import check_names, refuse_objects
from harness.data.stored import Array, Stored, check_fits
from harness.errors import DataError
from harness.tensors import TensorSpec


def read_npy_folder(folder: Path, inputs: Sequence[TensorSpec]) -> Stored:
    """``INPUT.npy`` per input ([samples, ...], mapped from disk), or any names with one sample each in natural order.

    Characters of an input's name other than letters, digits, ``.``, ``_`` and ``-`` are ``_`` in the file name.
    ``labels.npy`` is optional. Raises :class:`DataError`.
    """
    files = {path.stem: path for path in folder.glob("*.npy") if not path.name.startswith(".")}
    by_input = {spec.name: re.sub(r"[^A-Za-z0-9._\-]", "_", spec.name) for spec in inputs}
    labels = None
    if LABELS in files and LABELS not in by_input:
        labels = np.array(_open(files.pop(LABELS), LABELS))
    if any(stem in files for stem in by_input.values()) or len(inputs) > 1:
        check_names([*files, *([LABELS] if labels is not None else [])], list(by_input.values()), str(folder))
        arrays = {name: _open(files[stem], name) for name, stem in by_input.items()}
        unused = sorted(set(files) - set(by_input.values()))
        notices = (f"{folder.name}: not used: {', '.join(f'{u}.npy' for u in unused)}",) if unused else ()
        return Stored(arrays, labels, notices)
    return Stored({inputs[0].name: _stack(folder, files, inputs[0])}, labels)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key in which ``2`` comes before ``10``."""
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"([0-9]+)", name) if p)


def _stack(folder: Path, files: dict[str, Path], spec: TensorSpec) -> Array:
    paths = [files[stem] for stem in sorted(files, key=natural_key)]
    if not paths:
        raise DataError("no samples: the folder has no .npy file besides the labels", where=folder)
    first = _open(paths[0], paths[0].name)
    if len(paths) == 1 and first.ndim == len(spec.shape) and first.shape[0] > 1:
        raise DataError(
            f"{paths[0].name} holds {first.shape[0]} samples, but is not named after the model's input",
            where=folder,
            hint=f"Rename it to {spec.name}.npy.",
        )
    check_fits((len(paths), *first.shape), first.dtype, "the folder", str(folder))
    stacked = np.empty((len(paths), *first.shape), dtype=first.dtype)
    for row, path in enumerate(paths):
        sample = _open(path, path.name)
        if sample.shape != first.shape or sample.dtype != first.dtype:
            raise DataError(
                f"a sample of {list(sample.shape)} {sample.dtype.name}; {paths[0].name} is "
                f"{list(first.shape)} {first.dtype.name}",
                where=path,
                hint="All samples of a folder have one shape and dtype.",
            )
        stacked[row] = sample
    return stacked


def _open(path: Path, name: str) -> Array:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        if "Python objects" in str(error) or "pickle" in str(error):
            refuse_objects(np.dtype(object), name, str(path))
        raise DataError(f"not a readable .npy file: {error}", where=path) from None
    except (OSError, EOFError) as error:
        raise DataError(f"not a readable .npy file: {error}", where=path) from None
    return np.asarray(array)
