"""A diagnosis for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.audit.text import finding_lines
from harness.diagnose.accuracy import LayerLoss
from harness.diagnose.apply import Proposed
from harness.diagnose.run import Diagnosis
from harness.quantize.snr import MAX_SNR_DB
from harness.units import format_metric

_LAYERS = 12


def diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"trial {diagnosis.trial:04d}: {diagnosis.label}"
    metric = diagnosis.metric
    if metric is not None and metric.float_value is not None:
        now, before = (format_metric(value, metric.unit) for value in (metric.value, metric.float_value))
        where = f"{diagnosis.samples} samples of the search's part, on this host"
        yield f"  {metric.name}: {now}, float {before}, on {where}"
    for name, snr, worst in diagnosis.outputs:
        rows = ", ".join(f"{row} ({db:.1f} dB)" for row, db in worst[:4])
        yield f"  output {name}: {_db(snr)} against float; worst samples {rows or 'none'}"
    if diagnosis.layers:
        yield ""
        yield from _layers(diagnosis.layers)
    yield ""
    yield from finding_lines(diagnosis.findings)


def proposed_lines(proposed: Sequence[Proposed], run: str) -> Iterator[str]:
    if not proposed:
        yield "nothing to propose: no finding asks for another recipe"
    for item in proposed:
        codes = ", ".join(item.codes)
        if item.file is None:
            yield f"known already as trial {item.trial:04d} ({codes}): {item.recipe.label}"
        else:
            yield f"proposed as trial {item.trial:04d} ({codes}): {item.recipe.label}"
            yield f"  {item.file}"
    if any(item.file is not None for item in proposed):
        yield f"what is new is tried when the search goes on: boardtune search … --run-dir {run} --resume"


def _layers(layers: Sequence[LayerLoss]) -> Iterator[str]:
    chosen = layers
    if len(layers) > _LAYERS:
        drops = sorted(layers, key=lambda found: -found.drop_db)[:_LAYERS]
        chosen = [found for found in layers if found in drops]
        yield f"layers that lose most, in the order of the graph (--json has all {len(layers)}):"
    width = max(len(found.layer.node) for found in chosen)
    for found in chosen:
        clipped = f"  {found.loss.clipped_share:.2%} cut off" if found.loss.clipped_share >= 0.0001 else ""
        yield (
            f"  {found.layer.node:<{width}}  {found.layer.op_type:<18} {_db(found.before_db):>9} -> "
            f"{_db(found.loss.snr_db):>9}{clipped}"
        )


def _db(value: float) -> str:
    return "exact" if value >= MAX_SNR_DB else f"{value:.1f} dB"
