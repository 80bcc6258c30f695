"""Frames: against COBS's published examples, and back from everything that may be between them."""

from __future__ import annotations

import binascii

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agents.serial.codes import MAX_PAYLOAD, dictionary_span
from device_agents.serial.frames import Decoder, Frame, cobs_decode, cobs_encode, decode, encode

# From the table in Wikipedia's "Consistent Overhead Byte Stuffing".
EXAMPLES = [
    ("00", "0101"),
    ("0000", "010101"),
    ("00110 0".replace(" ", ""), "01021101"),
    ("11220033", "0311220233"),
    ("11223344", "0511223344"),
    ("11000000", "0211010101"),
    (bytes(range(1, 255)).hex(), "ff" + bytes(range(1, 255)).hex()),
    ("00" + bytes(range(1, 255)).hex(), "01ff" + bytes(range(1, 255)).hex()),
    (bytes(range(1, 256)).hex(), "ff" + bytes(range(1, 255)).hex() + "02ff"),
    ((bytes(range(2, 256)) + b"\0").hex(), "ff" + bytes(range(2, 256)).hex() + "0101"),
]


@pytest.mark.parametrize(("plain", "encoded"), EXAMPLES)
def test_cobs_is_that_of_the_published_examples(plain: str, encoded: str) -> None:
    assert cobs_encode(binascii.unhexlify(plain)).hex() == encoded
    assert cobs_decode(binascii.unhexlify(encoded)).hex() == plain


@given(st.binary(max_size=1200))
def test_cobs_round_trip_without_zeros_and_within_its_bound(data: bytes) -> None:
    encoded = cobs_encode(data)
    assert 0 not in encoded
    assert len(encoded) <= len(data) + len(data) // 254 + 1
    assert cobs_decode(encoded) == data


@given(st.binary(max_size=300))
def test_decoding_anything_is_a_value_or_an_error(data: bytes) -> None:
    decode(data.replace(b"\0", b""))


def frame(payload: bytes = b"abc") -> Frame:
    return Frame(0x08, 7, 0xDEADBEEF, 0x0123456789ABCDEF, payload)


def test_frames_come_out_of_log_and_noise_in_any_pieces() -> None:
    line = b"I (312) main: hello\n" + encode(frame()) + b"\xff\x03noise" + encode(frame(b"\0" * 4000)) + b"bye\n"
    for size in (1, 7, len(line)):
        decoder = Decoder()
        items = [item for at in range(0, len(line), size) for item in decoder.feed(line[at : at + size])]
        assert [item for item in items if isinstance(item, Frame)] == [frame(), frame(b"\0" * 4000)]
        between = b"".join(item for item in items if isinstance(item, bytes))
        assert between == b"I (312) main: hello\n\xff\x03noisebye\n"
        assert decoder.damaged == 1


def test_every_damaged_byte_is_noticed() -> None:
    encoded = encode(frame(bytes(range(60))))
    for at in range(1, len(encoded) - 1):
        for flip in (0x01, 0x80):
            spoilt = bytearray(encoded)
            spoilt[at] ^= flip
            items = [*Decoder().feed(bytes(spoilt) + b"\0")]
            assert not any(isinstance(item, Frame) for item in items)


def test_a_payload_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match=str(MAX_PAYLOAD)):
        encode(frame(bytes(MAX_PAYLOAD + 1)))


@pytest.mark.parametrize(
    ("offset", "length", "base", "span"),
    [
        (0, 4096, 100, (0, 100)),
        (0, 4096, 10**6, (0, 18432)),
        (500_000, 4096, 10**6, (485_664, 518_432)),
        (996_000, 4000, 10**6, (967_232, 10**6)),
        (2_000_000, 4096, 10**6, (967_232, 10**6)),
    ],
)
def test_the_dictionary_is_around_the_chunk(offset: int, length: int, base: int, span: tuple[int, int]) -> None:
    assert dictionary_span(offset, length, base) == span
    assert span[1] - span[0] <= 32768
