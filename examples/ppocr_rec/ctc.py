"""What PP-OCR's recognition says, and whether it is right: numbers of characters, 0 is CTC's blank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

BLANK = 0


def characters(dictionary: str) -> list[str]:
    """Character of every class: the blank, the model's metadata entry ``character`` (one a line), and a space."""
    return ["", *dictionary.splitlines(), " "]


def encode(text: str, alphabet: Sequence[str], length: int) -> npt.NDArray[np.int64]:
    """int64 [length]: the classes of ``text``, then blanks. Raises ``ValueError`` for what the classes cannot write."""
    numbers = {character: number for number, character in enumerate(alphabet)}
    missing = [character for character in text if character not in numbers]
    if missing or len(text) > length:
        raise ValueError(f"{text!r} has {missing} outside the alphabet, or more than {length} characters")
    row = np.full(length, BLANK, np.int64)
    row[: len(text)] = [numbers[character] for character in text]
    return row


def decode(best: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """Greedy CTC (Graves et al., ICML 2006): [steps] of best classes, without repetitions, then without blanks."""
    kept = best != BLANK
    kept[1:] &= best[1:] != best[:-1]
    return best[kept]


def exact_lines(
    outputs: Mapping[str, npt.NDArray[np.float32]], labels: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.bool_]:
    """Lines read without a mistake, bool [samples].

    The only output is [samples, steps, classes]; ``labels`` are int64 [samples, characters], padded with blanks.
    """
    if labels is None:
        raise ValueError("lines have no labels")
    (scores,) = outputs.values()
    # A line at a time: all scores at once are half a gigabyte.
    read = (decode(line.argmax(axis=-1)) for line in scores)
    return np.array([np.array_equal(said, line[line != BLANK]) for said, line in zip(read, labels, strict=True)])


exact_lines.proportion = True  # type: ignore[attr-defined]
exact_lines.higher_is_better = True  # type: ignore[attr-defined]
