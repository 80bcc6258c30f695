"""Frames and arrays on the wire."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from device_agents.runner import arrays, frames

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
HEADERS = st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda key: key != "blobs"), JSON, max_size=5)


def reader(data: bytes):
    rest = memoryview(data)

    def read_exact(size: int) -> bytes:
        nonlocal rest
        if size > len(rest):
            raise EOFError
        head, rest = rest[:size], rest[size:]
        return bytes(head)

    return read_exact


@given(st.lists(st.tuples(HEADERS, st.lists(st.binary(max_size=200), max_size=4)), min_size=1, max_size=3))
def test_frames_come_back_as_sent(sent) -> None:
    stream = b"".join(bytes(part) for header, blobs in sent for part in frames.encode(header, blobs))
    read = reader(stream)
    for header, blobs in sent:
        got, out = frames.read_frame(read)
        assert got == header
        assert [bytes(blob) for blob in out] == blobs
    with pytest.raises(EOFError):
        read(1)


def test_layout_is_what_the_page_says() -> None:
    stream = b"".join(bytes(part) for part in frames.encode({"id": "a"}, [b"xyz"]))
    (length,) = struct.unpack(">I", stream[:4])
    assert json.loads(stream[4 : 4 + length]) == {"id": "a", "blobs": [3]}
    assert stream[4 + length :] == b"xyz"


def raw(header: bytes, length: int | None = None) -> bytes:
    return struct.pack(">I", len(header) if length is None else length) + header


@pytest.mark.parametrize(
    "stream",
    [
        raw(b"{}", length=2**32 - 1),
        raw(b"{}", length=0),
        raw(b"[]"),
        raw(b"\xff\xfe"),
        raw(b'{"blobs":[-1]}'),
        raw(b'{"blobs":[true]}'),
        raw(b'{"blobs":["1"]}'),
        raw(b'{"blobs":7}'),
        raw(b'{"blobs":[2000000000,2000000000]}'),
        raw(json.dumps({"blobs": [0] * (frames.MAX_BLOBS + 1)}).encode()),
    ],
)
def test_what_is_no_frame_is_refused_before_anything_is_allocated(stream: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.read_frame(reader(stream))


def test_a_frame_the_other_end_would_refuse_is_not_made() -> None:
    with pytest.raises(frames.FrameError):
        frames.encode({"text": "x" * (frames.MAX_HEADER + 1)})
    with pytest.raises(ValueError):
        frames.encode({"number": float("nan")})


DTYPES = st.sampled_from(["?", "i1", "<i2", ">i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", ">f4", "<f8", "<c8"])


@given(
    st.dictionaries(
        st.text(max_size=6),
        DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_dims=4, max_side=4))),
        max_size=3,
    )
)
def test_arrays_come_back_bit_for_bit(sent) -> None:
    described, blobs = arrays.to_wire(sent)
    got = arrays.from_wire(json.loads(json.dumps(described)), [bytes(blob) for blob in blobs])
    assert list(got) == list(sent)
    for name, array in sent.items():
        assert got[name].dtype == array.dtype.newbyteorder("=")
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.astype(got[name].dtype).tobytes()


def test_views_travel_by_value() -> None:
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    described, blobs = arrays.to_wire({"a": base[::2, ::-1].T})
    np.testing.assert_array_equal(arrays.from_wire(described, blobs)["a"], base[::2, ::-1].T)


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "a", "dtype": "<f4", "shape": [3]},
        {"name": "a", "dtype": "<f4", "shape": [-2, -1]},
        {"name": "a", "dtype": "|O", "shape": [1]},
        {"name": "a", "dtype": "|S8", "shape": [1]},
    ],
)
def test_descriptions_that_do_not_fit_are_refused(entry) -> None:
    with pytest.raises(ValueError):
        arrays.from_wire([entry], [bytes(8)])


def test_objects_do_not_travel() -> None:
    with pytest.raises(ValueError, match="'a'"):
        arrays.to_wire({"a": np.array([None])})
