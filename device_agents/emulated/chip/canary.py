"""The firmware's canary, computed with numpy: a second implementation of ``bt_canary.c``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from device_agents.serial.messages import TensorInfo

SIDE, INPUT, OUTPUT, SHIFT = 16, 8, 16, 8
SHA256 = bytes.fromhex("9d1b964809c463a2f8e52fa3ce07118a026bc94e0b46614cfdda13f96e79e842")
INPUT_INFO = TensorInfo("picture", "int8", -5, (1, SIDE, SIDE, INPUT), SIDE * SIDE * INPUT)
OUTPUT_INFO = TensorInfo("sums", "int8", 0, (1, OUTPUT), OUTPUT)


def _weights() -> npt.NDArray[np.float64]:
    state = 1
    values = bytearray()
    for _ in range(OUTPUT * 9 * INPUT):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        values.append(state >> 24)
    return np.frombuffer(bytes(values), np.int8).reshape(OUTPUT, 3, 3, INPUT).astype(np.float64)


_WEIGHTS = _weights()


def run(picture: bytes) -> bytes:
    """int8 [16, 16, 8] to int8 [16]. Sums stay below 2**53, so float64 is exact."""
    image = np.frombuffer(picture, np.int8).reshape(SIDE, SIDE, INPUT).astype(np.float64)
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    total = np.zeros((SIDE, SIDE, OUTPUT))
    for dy in range(3):
        for dx in range(3):
            total += padded[dy : dy + SIDE, dx : dx + SIDE] @ _WEIGHTS[:, dy, dx].T
    pixels = np.clip(np.floor((total + 128) / 256), -128, 127)
    sums = np.floor((pixels.sum((0, 1)) + 128) / 256)
    output: bytes = np.clip(sums, -128, 127).astype(np.int8).tobytes()
    return output
