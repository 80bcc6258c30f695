"""Named arrays as blobs of a frame. Needs numpy; plain data only, never pickle."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from .frames import Buffer

Array = npt.NDArray[Any]
Arrays = Dict[str, Array]


def to_wire(arrays: Mapping[str, Array]) -> Tuple[List[Dict[str, Any]], List[Buffer]]:
    """(description for the header, blobs): little-endian, C order.

    Raises:
        ValueError: an array of objects or of a structured type.
    """
    described: List[Dict[str, Any]] = []
    blobs: List[Buffer] = []
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc":
            raise ValueError("array {!r} has dtype {}; only numbers and booleans travel".format(name, array.dtype))
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
        described.append({"name": name, "dtype": plain.dtype.str, "shape": list(plain.shape)})
        # A view as bytes: half floats and booleans have no buffer format every reader knows.
        blobs.append(plain.reshape(-1).view(np.uint8).data)
    return described, blobs


def from_wire(described: Sequence[Mapping[str, Any]], blobs: Sequence[Buffer]) -> Arrays:
    """Back to arrays, without copying; read-only where the blob is.

    Raises:
        ValueError: description and blobs do not fit each other.
    """
    if len(described) != len(blobs):
        raise ValueError("{} arrays described, {} sent".format(len(described), len(blobs)))
    out: Arrays = {}
    for entry, blob in zip(described, blobs):
        dtype = np.dtype(str(entry["dtype"]))
        if dtype.kind not in "biufc":
            raise ValueError("array {!r} has dtype {}".format(entry.get("name"), dtype))
        shape = tuple(int(size) for size in entry["shape"])
        count = 1
        for size in shape:
            if size < 0:
                raise ValueError("array {!r} has shape {}".format(entry.get("name"), shape))
            count *= size
        if count * dtype.itemsize != memoryview(blob).nbytes:
            raise ValueError("array {!r}: shape and blob size do not fit".format(entry.get("name")))
        flat = np.frombuffer(blob, dtype=dtype) if count else np.zeros(0, dtype=dtype)
        # The native byte order again, so that consumers see e.g. float32, not <f4 by another name.
        out[str(entry["name"])] = flat.astype(dtype.newbyteorder("="), copy=False).reshape(shape)
    return out
