"""The canary: a small pinned model that is measured between candidates to see the board drift."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from device_agents.contract import Tensors
from harness.boards.schema import COMPILED_IN, FIRMWARE_CANARY, Board
from harness.errors import ConfigError
from harness.suggest import did_you_mean

PACKAGED: Mapping[str, str] = {
    "conv-8m": "7be75573f0862ad7c2a74e17b147ba5e94f0541230dc79806a5fa7e445a045ce",
    "firmware-1": "9d1b964809c463a2f8e52fa3ce07118a026bc94e0b46614cfdda13f96e79e842",
    COMPILED_IN: "3fcd8f642615a47fe6f769622f6fa99ac8f2d7c14cd67fc8a43d54fa6ef1b97a",
}
"""Name -> sha256 of the packaged canaries; a change of one makes every earlier ratio to it meaningless."""

_FOLDER = Path(__file__).parent / "canaries"


def canary_sha256(board: Board) -> str:
    """The digest the board's canary must have.

    Raises:
        ConfigError: no packaged canary has the name, or the file states another digest for a packaged one.
    """
    canary = board.canary
    if canary.is_file:
        return str(canary.sha256)
    pinned = PACKAGED.get(canary.model)
    if pinned is None:
        raise ConfigError(
            f"board {board.name!r}: unknown canary {canary.model!r}",
            hint=did_you_mean(canary.model, PACKAGED, what="packaged canaries"),
        )
    if canary.sha256 not in (None, pinned):
        raise ConfigError(
            f"board {board.name!r}: canary.sha256 is not that of the packaged canary {canary.model!r}",
            hint=f"remove canary.sha256, or correct it to {pinned}",
        )
    return pinned


def canary_path(board: Board) -> Path:
    """The canary's model file, checked against its pinned digest.

    Raises:
        ConfigError: it is missing, or it is not the model that was pinned.
    """
    wanted = canary_sha256(board)
    suffix = ".txt" if board.canary.model in (FIRMWARE_CANARY, COMPILED_IN) else ".onnx"
    path = Path(board.canary.model) if board.canary.is_file else _FOLDER / f"{board.canary.model}{suffix}"
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"board {board.name!r}: the canary cannot be read: {error.strerror or error}",
            where=path,
            hint="correct canary.model, or remove it to use the packaged canary",
        ) from None
    if digest != wanted:
        raise ConfigError(
            f"board {board.name!r}: the canary is not the pinned model: sha256 {digest}, pinned {wanted}",
            where=path,
            hint="restore the file, or pin the new one (earlier measurements are then no longer comparable)",
        )
    return path


def canary_inputs(inputs: Sequence[tuple[str, str, tuple[int | str, ...]]], rows: int = 1) -> Tensors:
    """Fixed samples for a canary: each array is [rows, *shape without the first axis].

    Args:
        inputs: (name, dtype, shape) as a ``LoadReport`` gives them; the first axis must be 1.
        rows: number of samples.

    Raises:
        ConfigError: a shape is not fixed, or a type is not a number.
    """
    arrays = {}
    random = np.random.default_rng(0)
    for name, dtype, shape in inputs:
        sizes = [size for size in shape if isinstance(size, int)]
        if len(sizes) != len(shape) or not shape or shape[0] != 1 or np.dtype(dtype).kind not in "fiub":
            raise ConfigError(
                f"the canary's input {name!r} is {dtype} {list(shape)}",
                hint="a canary has numeric inputs of fixed shape with a first axis of 1",
            )
        unit = random.random((rows, *sizes[1:]))
        arrays[name] = unit.astype(dtype) if np.dtype(dtype).kind == "f" else (unit * 2).astype(dtype)
    return arrays
