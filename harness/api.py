"""The Python API: what the commands do, for programs. Import it as :mod:`harness`, which loads it when it is used.

The functions are called ``run_search``, ``measure_model``, ``quantize_model`` because :mod:`harness.search`,
:mod:`harness.measure` and :mod:`harness.quantize` are packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.controller.measuring import Measured, MeasureJob, measure
from harness.controller.origin import origin_of_trial
from harness.controller.reproduce import Reproduction, reproduce
from harness.controller.search import SearchResult, default_run_dir, search
from harness.ledger.exports import Export
from harness.ledger.exports import export_pick as export_from_run
from harness.ledger.run_directory import RunDirectory
from harness.ledger.shown import ShownModel
from harness.ledger.shown import show_model as read_shown
from harness.plan import Plan
from harness.plan import load_plan as read_plan
from harness.quantize.contract import QuantizeLimits
from harness.quantize.once import Outcome, quantize_once
from harness.results import Candidate

if TYPE_CHECKING:
    from harness.controller.progress import Watcher


def load_plan(path: str | Path, **changes: Any) -> Plan:
    """Reads a plan file; ``changes`` are fields of :class:`~harness.plan.Plan` that win over it.

    Raises :class:`~harness.errors.ConfigError`, naming the file and the field.
    """
    return read_plan(Path(path), changes)


def run_search(
    plan: Plan,
    run_dir: str | Path | None = None,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    ray_address: str | None = None,
) -> SearchResult:
    """Searches, and writes the run directory (``runs/MODEL-TIME`` where none is given).

    No feasible candidate and an interruption are results (``exit_code``), not exceptions. Raises the
    :class:`~harness.errors.BoardtuneError` family for a bad plan, model or data set and for boards that are not
    available, :class:`~device_agents.contract.AgentError` for a board that is lost; what was recorded by then can be
    resumed. While it runs in the main thread, Ctrl-C ends it in good order.
    """
    folder = Path(run_dir) if run_dir is not None else default_run_dir(plan.model)
    return search(plan, folder, resume=resume, watcher=watcher, ray_address=ray_address)


def picks(result: SearchResult, board: str) -> tuple[Candidate, ...]:
    """What was picked for ``board``, best first; empty where nothing was. Raises ``KeyError`` for another's board."""
    by_trial = {value["trial"]: value for value in result.candidates["candidates"]}
    return tuple(Candidate.from_json(by_trial[trial]) for trial in result.candidates["picks"][board])


def measure_model(
    model: str | Path,
    boards: Sequence[str] = ("local",),
    *,
    tell: Callable[[str], None] = lambda message: None,
    **options: Any,
) -> Measured:
    """Measures one model by the full protocol, on one board after the other; starts no Ray.

    Args:
        model: ONNX file, float or quantized.
        boards: names of registered boards.
        tell: is called with what the user should know, such as that inputs are made up.
        options: further fields of :class:`~harness.controller.measuring.MeasureJob`: ``data``, ``reference``,
            ``preprocess``, ``set_dim``, ``metrics``, ``batch``, ``pipeline``, ``postprocess``, ``effort``, ``seed``.

    A board that fails does not keep the others from measuring: it is in ``failures``, with its
    :class:`~device_agents.contract.AgentError`, and not in ``results``. Raises :class:`~harness.errors.ConfigError` and
    its kinds before a board is touched.
    """
    return measure(MeasureJob(model=Path(model), boards=boards, **options), tell=tell)


def quantize_model(
    model: str | Path,
    calib: str | Path,
    recipe: str | Path,
    out: str | Path,
    *,
    set_dim: Mapping[str, int] | None = None,
    preprocess: str | Path | None = None,
    limits: QuantizeLimits | None = None,
    continue_quantized: bool = False,
) -> Outcome:
    """Makes one artifact by ``recipe`` (a file, or ``preset:NAME[#k]``) into the folder ``out``; no board is touched.

    ``continue_quantized`` takes a model that is quantized in part and quantizes the rest.
    A refusal is a result (``outcome.result`` is a :class:`~harness.quantize.contract.Refusal`). Raises
    :class:`~harness.errors.ConfigError` and its kinds.
    """
    return quantize_once(
        Path(model),
        str(calib),
        str(recipe),
        Path(out),
        set_dims=dict(set_dim or {}),
        preprocess=Path(preprocess) if preprocess is not None else None,
        limits=limits or QuantizeLimits(),
        continue_quantized=continue_quantized,
    )


def show_model(model: str | Path) -> ShownModel:
    """What an ONNX file is, and what boardtune stamped into it; runs nothing. Raises ModelError."""
    return read_shown(Path(model))


def reproduce_trial(
    run_dir: str | Path,
    trial: int,
    *,
    model: str | Path | None = None,
    calib: str | None = None,
    preprocess: str | Path | None = None,
    candidate: str | Path | None = None,
    out: str | Path | None = None,
) -> Reproduction:
    """Makes a trial's model again from float model, data and recipe, and compares it with what was measured.

    ``model``, ``calib``, ``preprocess`` and ``candidate`` say where things are now, if elsewhere than in the search;
    the model is written to the folder ``out``. A difference is a result (``status``), not an exception. Raises
    :class:`~harness.errors.ConfigError` and its kinds.
    """
    return reproduce(
        origin_of_trial(open_run(run_dir), trial),
        model=Path(model) if model is not None else None,
        calibration=calib,
        preprocess=Path(preprocess) if preprocess is not None else None,
        candidate=Path(candidate) if candidate is not None else None,
        out=Path(out) if out is not None else None,
    )


def open_run(run_dir: str | Path) -> RunDirectory:
    """A run directory to read from, also while the search goes on; takes no lock."""
    return RunDirectory.open(Path(run_dir))


def export_pick(run_dir: str | Path, out: str | Path = ".", *, pick: int = 1, board: str | None = None) -> Export:
    """Writes a pick with its recipe, provenance and checksums into the folder ``out``.

    Raises :class:`~harness.errors.ConfigError` for a pick or board that is not there,
    :class:`~harness.errors.NoFeasibleCandidate` where nothing was picked.
    """
    return export_from_run(open_run(run_dir), Path(out), pick=pick, board=board)
