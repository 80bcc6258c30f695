"""Where samples come from: ``.npz``, a folder of ``.npy``, an image folder, ``module:function``, or a generator."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.data.callables import is_callable_spec
from harness.data.conform import conform
from harness.data.dataset import Dataset
from harness.data.function_source import read_function
from harness.data.image_folder import read_image_folder
from harness.data.npy_folder import read_npy_folder
from harness.data.npz import read_npz
from harness.data.preprocess import Preprocess
from harness.data.stored import Array, Stored, check_fits
from harness.errors import ConfigError, DataError
from harness.suggest import near_hint
from harness.tensors import TensorSpec

FORMS = "Give an .npz file, a folder of .npy files, a folder of images, or module:function."


def open_dataset(
    spec: str | Path,
    inputs: Sequence[TensorSpec],
    preprocess: Preprocess | None,
    *,
    allow_code: bool = True,
    whole: bool = False,
) -> Dataset:
    """Reads samples for a model with ``inputs`` (shapes with the batch axis first).

    ``spec`` is a path or ``module:function``; the latter is imported only with ``allow_code`` (specifications from the
    command line or the user's own plan). ``whole`` also takes arrays each element of which is a whole input (recurrent
    networks with time on the first axis, inputs of different first axes, single numbers). Raises :class:`DataError`
    that names the file, the input, what was expected, what was found, and the way out.
    """
    if not inputs:
        raise DataError("the model has no inputs", where=str(spec))
    for each in inputs:
        if not each.shape and not whole:
            raise DataError(
                f"input {each.name!r} is a scalar: it has no sample axis",
                where=str(spec),
                hint="Only quantize, audit and sensitivity take such inputs.",
            )
    text = str(spec)
    path = Path(text).expanduser()
    if path.is_dir():
        return _open_folder(path, inputs, preprocess, whole)
    if path.is_file():
        if path.suffix.lower() != ".npz":
            raise DataError(f"unknown kind of data file {path.suffix or path.name!r}", where=path, hint=FORMS)
        return conform(read_npz(path, inputs), inputs, preprocess, text, whole=whole)
    if is_callable_spec(text):
        if not allow_code:
            raise DataError("code is not run from here", where=text, hint="Give it on the command line.")
        try:
            return conform(read_function(text, inputs), inputs, preprocess, text, whole=whole)
        except DataError:
            raise
        except ConfigError as error:
            raise DataError(error.message, hint=error.hint, where=error.where) from error
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    raise DataError("no such file or folder", where=text, hint=near_hint(path.name, siblings) or FORMS)


def _open_folder(folder: Path, inputs: Sequence[TensorSpec], preprocess: Preprocess | None, whole: bool) -> Dataset:
    try:
        if any(folder.glob("*.npy")):
            return conform(read_npy_folder(folder, inputs), inputs, preprocess, str(folder), whole=whole)
        if len(inputs) > 1:
            raise DataError(
                f"an image folder gives one input; the model has {len(inputs)}",
                where=folder,
                hint="Give an .npz file with one array per input.",
            )
        try:
            declared = preprocess.by_input(inputs).get(inputs[0].name) if preprocess else None
        except ConfigError as error:
            raise DataError(error.message, hint=error.hint, where=folder) from None
        stored, complete = read_image_folder(folder, inputs[0], declared)
        return conform(stored, inputs, Preprocess(inputs={inputs[0].name: complete}), str(folder))
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror or error}", where=error.filename or folder) from None


def random_dataset(inputs: Sequence[TensorSpec], n: int, seed: int) -> Dataset:
    """``n`` seeded random samples, for measuring without data; its notice says so.

    Floats are uniform in 0..1; 8-bit integers and booleans uniform over their range; wider integers 0 or 1, which are
    valid as token ids, masks and segment ids whatever the vocabulary. Raises :class:`DataError` while a dimension is
    free.
    """
    if n < 1:
        raise DataError(f"{n} samples asked for; at least 1 is needed")
    if not inputs:
        raise DataError("the model has no inputs")
    arrays = {spec.name: _random_array(spec, n, seed) for spec in inputs}
    notice = f"no data given: {n} random sample(s) from seed {seed}; times may differ from real data's"
    return conform(Stored(arrays, None, (notice,)), inputs, None, f"random (seed {seed})")


def _random_array(spec: TensorSpec, n: int, seed: int) -> Array:
    free = [size for size in spec.shape[1:] if isinstance(size, str)]
    if free or not spec.shape:
        raise DataError(
            f"input {spec.name!r} has the free dimension {free[0]!r}" if free else f"input {spec.name!r} is a scalar",
            hint=f"Set it with --set-dim {free[0]}=N, or give data." if free else "Give data.",
        )
    shape = (n, *(int(size) for size in spec.shape[1:]))
    # Seeded by name, so that the samples do not depend on the order of the inputs.
    word = int.from_bytes(hashlib.sha256(spec.name.encode()).digest()[:8], "big")
    generator = np.random.default_rng([seed, word])
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError:
        raise DataError(f"input {spec.name!r} has dtype {spec.dtype}: give data for it") from None
    check_fits(shape, dtype, f"input {spec.name!r}", f"random (seed {seed})")
    if dtype.kind == "f":
        return generator.random(shape, dtype=np.float32).astype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = (limits.min, limits.max) if dtype.itemsize == 1 else (0, 1)
        return generator.integers(low, high, shape, dtype=dtype, endpoint=True)
    raise DataError(f"input {spec.name!r} has dtype {spec.dtype}: give data for it")
