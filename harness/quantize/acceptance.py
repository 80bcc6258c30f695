"""A normal return of a quantizer proves nothing: an artifact is accepted only for what it does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_agents.contract import UnsupportedOperator
from harness.errors import ModelError
from harness.quantize import graph as graphs
from harness.quantize.cache import Cache
from harness.quantize.calibrate import Subject
from harness.quantize.calibration_data import Feeds
from harness.quantize.continued import quantized_before
from harness.quantize.contract import Artifact, Cause, Refusal
from harness.quantize.identity import file_sha256
from harness.quantize.integer_outputs import quantities
from harness.quantize.made import Made, Run, read_made
from harness.quantize.sessions import open_session, run_by_name
from harness.quantize.snr import MAX_SNR_DB, NonFiniteOutputError, snr_db
from harness.recipes.recipe import Recipe

ACCEPTANCE_SAMPLES = 32
"""Calibration samples both models are run on, spread over the set."""

_RUNTIMES = {".onnx": "ONNX Runtime here", ".espdl": "the interpreter of .espdl models"}

Outputs = list[dict[str, npt.NDArray[np.generic]]]


def accept(
    model: Path,
    artifact: Path,
    calibration: Path,
    recipe: Recipe,
    *,
    min_snr_db: float,
    notices: tuple[str, ...] = (),
    breathe: Callable[[], None] = lambda: None,
    phase: Callable[[str], None] = lambda name: None,
    cache: Cache | None = None,
    digests: Mapping[str, str] | None = None,
) -> Artifact | Refusal:
    """Compares ``artifact`` with the float ``model`` on calibration samples; says why it is refused.

    The floor ``min_snr_db`` applies to the worst output, see :func:`harness.quantize.snr.snr_db`. ``cache`` keeps the
    float model's outputs from one artifact to the next; ``digests`` may hold the sha256 of the ``model`` and the
    ``calibration`` file.
    """
    subject = Subject.read(model, calibration, cache or Cache(None), digests)
    already = graphs.quantization_found(subject.model)
    before = quantized_before(subject.model)
    if already and not before:
        found = ", ".join(f"{count} {name}" for name, count in sorted(already.items()))
        return Refusal(Cause.ALREADY_QUANTIZED, f"the model given is already quantized: it has {found}")
    try:
        made = read_made(artifact, recipe)
    except ModelError as error:
        return Refusal(Cause.DOES_NOT_LOAD, f"the quantized model cannot be read: {error.message}")
    nothing = _nothing_changed(recipe, made, before)
    if nothing:
        why = [notice for notice in notices if notice.startswith("left in float")]
        return Refusal(Cause.NOTHING_QUANTIZED, "; ".join([nothing, *why]))
    feeds = list(islice(subject.data.feeds(ACCEPTANCE_SAMPLES), ACCEPTANCE_SAMPLES))

    phase("loading the quantized model")
    try:
        run = made.load()
    except UnsupportedOperator as error:
        return Refusal(Cause.UNSUPPORTED, f"the quantized model cannot be run here: {error.message}")
    except Exception as error:
        return Refusal(
            Cause.DOES_NOT_LOAD, f"{_RUNTIMES[recipe.suffix]} cannot load the quantized model: {first_line(error)}"
        )
    phase("running the quantized model on calibration samples")
    try:
        outputs = _run(run, feeds, breathe)
    except Exception as error:
        return Refusal(Cause.DOES_NOT_RUN, f"the quantized model fails on a calibration sample: {first_line(error)}")
    del run
    phase("running the float model on calibration samples")
    reference = float_outputs(subject, model, feeds, breathe)
    compared = _compare(reference, outputs, recipe, min_snr_db, quantities(subject.model))
    if isinstance(compared, Refusal):
        return compared
    return Artifact(
        path=artifact,
        sha256=file_sha256(artifact),
        identity=made.identity,
        size_bytes=made.size_bytes,
        snr_db=compared,
        quantized_operators=made.operators,
        notices=(*notices, *made.notices()),
    )


def _nothing_changed(recipe: Recipe, made: Made, before: int = 0) -> str:
    """``before``: quantized nodes that the model came with."""
    if recipe.is_float32:
        return ""
    if recipe.scheme == "float16":
        return "" if made.is_half() else "nothing was converted to float16"
    if sum(made.found().values()) > before if before else made.operators:
        return ""
    if recipe.scheme == "imported":
        found = made.found()
        listed = ", ".join(f"{count} {name}" for name, count in sorted(found.items()))
        # Without any it is a float variant, which may be a candidate too.
        return f"it has {listed}, but no operator computes on quantized values" if found else ""
    where = ""
    if recipe.op_types:
        where = f" among {', '.join(recipe.op_types)}"
    elif recipe.exclude_op_types or recipe.exclude_nodes:
        where = " outside what the recipe leaves in float"
    return f"no operator of the model{where} can be quantized by a {recipe.scheme.replace('_', '-')} recipe"


def float_outputs(subject: Subject, model: Path, feeds: list[Feeds], breathe: Callable[[], None]) -> Outputs:
    """What the float model gives for each of ``feeds``, the first of the calibration set's."""
    key = subject.key(f"outputs:{len(feeds)}")
    found = subject.cache.read(key)
    if found:
        names = found.meta["outputs"]
        return [{name: found.arrays[f"a{s}_{i}"] for i, name in enumerate(names)} for s in range(len(feeds))]
    session = open_session(model)
    outputs = _run(lambda feed: run_by_name(session, feed), feeds, breathe)
    names = list(outputs[0])
    arrays = {f"a{s}_{i}": np.asarray(sample[name]) for s, sample in enumerate(outputs) for i, name in enumerate(names)}
    # Sequences, maps and strings are compared as they come, and not kept.
    if all(array.dtype.kind in "biufc" for array in arrays.values()):
        subject.cache.write(key, {"outputs": names}, arrays)
    return outputs


def _run(run: Run, feeds: list[Feeds], breathe: Callable[[], None]) -> Outputs:
    outputs = []
    for feed in feeds:
        outputs.append(dict(run(feed)))
        breathe()
    return outputs


def _compare(
    reference: Outputs, outputs: Outputs, recipe: Recipe, floor: float, rounded: Collection[str] = ()
) -> float | Refusal | None:
    """The worst output's SNR, ``None`` for the float32 recipe. Integer outputs ``rounded`` are compared as numbers."""
    names = list(reference[0])
    if set(names) != set(outputs[0]):
        return Refusal(
            Cause.FAILED, f"the quantized model has outputs {sorted(outputs[0])}, the float model {sorted(names)}"
        )
    worst_name, worst = "", MAX_SNR_DB
    for name in names:
        numbers = np.float64 if name in rounded else None
        expected, got = ([np.asarray(s[name], dtype=numbers) for s in samples] for samples in (reference, outputs))
        if all(np.issubdtype(e.dtype, np.inexact) and not np.isfinite(e).any() and e.size for e in expected):
            return Refusal(Cause.NON_FINITE, f"output {name!r} of the float model itself has no finite value")
        try:
            ratio = snr_db(expected, got)
        except NonFiniteOutputError as error:
            return Refusal(Cause.NON_FINITE, f"output {name!r} of the quantized model: {error}")
        if ratio < worst or not worst_name:
            worst_name, worst = name, ratio
    if recipe.is_float32:
        return None
    if worst < floor:
        advice = "per-channel weights, 16-bit activations or leaving sensitive operators in float raise it"
        if recipe.scheme == "imported":
            advice = "was it made of this float model, with the same preprocessing?"
        return Refusal(
            Cause.LOW_SNR,
            f"output {worst_name!r} keeps {worst:.1f} dB signal-to-noise against the float model on "
            f"{len(reference)} calibration samples, under the floor of {floor:g} dB (--min-snr); {advice}",
            snr_db=worst,
        )
    return worst


def first_line(error: BaseException) -> str:
    """An exception's message in one line, with its type where the message says little."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else ""
    return text if len(text) > 20 else f"{type(error).__name__}: {text}"
