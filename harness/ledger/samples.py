"""``samples.parquet``: every raw latency sample of a trial, on all its boards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import BoardtuneError
from harness.ledger.files import build_atomic

SCHEMA = pa.schema(
    [
        ("board", pa.string()),
        ("phase", pa.string()),
        ("target", pa.string()),
        ("block", pa.int32()),
        ("index", pa.int32()),
        ("latency_ns", pa.int64()),
        ("emulated", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class SampleBlock:
    """Raw samples of one block, in the order taken."""

    target: Literal["candidate", "canary"]
    order: int
    """Position of the block in the measurement."""
    samples_ns: npt.NDArray[np.int64]
    """int64 [n]."""


def write_samples(path: Path, board: str, phase: str, blocks: Sequence[SampleBlock], *, emulated: bool) -> None:
    """Replaces the rows of ``board`` and ``phase`` and leaves the others as they are; atomic."""
    table = _table(board, phase, blocks, emulated)
    if path.exists():
        others = read_samples(path)
        same = pc.and_(pc.equal(others["board"], board), pc.equal(others["phase"], phase))
        table = pa.concat_tables([others.filter(pc.invert(same)), table])
    build_atomic(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def read_samples(path: Path) -> pa.Table:
    """All rows, with the columns of :data:`SCHEMA`. Raises :class:`BoardtuneError` if the file is damaged."""
    try:
        return pq.read_table(path, schema=SCHEMA)
    except (pa.ArrowException, OSError) as error:
        raise BoardtuneError(f"cannot read the samples: {error}", where=path) from error


def _table(board: str, phase: str, blocks: Sequence[SampleBlock], emulated: bool) -> pa.Table:
    counts = np.array([len(block.samples_ns) for block in blocks], dtype=np.int64)
    total = int(counts.sum())
    latency = (
        np.concatenate([np.asarray(b.samples_ns, dtype=np.int64) for b in blocks]) if blocks else np.empty(0, np.int64)
    )
    index = np.concatenate([np.arange(n, dtype=np.int32) for n in counts]) if blocks else np.empty(0, np.int32)
    columns = [
        pa.array([board] * total, pa.string()),
        pa.array([phase] * total, pa.string()),
        pa.array(np.repeat([block.target for block in blocks], counts) if blocks else [], pa.string()),
        pa.array(np.repeat(np.array([block.order for block in blocks], dtype=np.int32), counts)),
        pa.array(index),
        pa.array(latency),
        pa.array([emulated] * total, pa.bool_()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
