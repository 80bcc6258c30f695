"""The models of one measurement in the board's memory: canary and candidate."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from device_agents.contract import Agent, AgentError, LoadReport, Pipeline, RuntimeOptions, Tensors
from harness.measure.steps import CANARY, CANDIDATE


class LoadedModels:
    """By target; with exclusive boards the agent itself keeps one alive at a time. A context manager that unloads."""

    def __init__(
        self, agent: Agent, options: RuntimeOptions, canary_sha256: str, sha256: str, pipeline: Pipeline | None
    ) -> None:
        """``sha256`` and ``pipeline`` are the candidate's; both files are on the board."""
        self._agent = agent
        self._options = options
        self._canary_sha256 = canary_sha256
        self._sha256 = sha256
        self._pipeline = pipeline
        self._handles: dict[str, LoadReport] = {}
        self._first: LoadReport | None = None

    def __enter__(self) -> LoadedModels:
        return self

    def __exit__(self, *_: object) -> None:
        for report in self._handles.values():
            with contextlib.suppress(AgentError):
                self._agent.unload(report.session)

    @property
    def first_load(self) -> LoadReport:
        """Of the candidate; loaded now if it never was."""
        if self._first is None:
            self.get(CANDIDATE)
        if self._first is None:
            raise RuntimeError("the candidate was not loaded")
        return self._first

    def get(self, target: str) -> str:
        return self._handles[target].session if target in self._handles else self.renew(target)

    def renew(self, target: str, *, postprocess: bool = True) -> str:
        """A fresh session. Without ``postprocess`` it gives the model's own outputs, which metrics are about."""
        if target in self._handles:
            self._agent.unload(self._handles.pop(target).session)
        if target == CANARY:
            report = self._agent.load(self._canary_sha256, self._options)
        else:
            pipeline = self._pipeline
            if pipeline is not None and not postprocess:
                pipeline = replace(pipeline, post="none")
            report = self._agent.load(self._sha256, self._options, pipeline)
            self._first = self._first or report
        self._handles[target] = report
        return report.session

    def canary_inputs(self) -> Tensors:
        """The same seeded noise on every board and in every run."""
        rng = np.random.default_rng(0)
        report = self._handles.get(CANARY)
        if report is None:
            self.renew(CANARY)
            report = self._handles[CANARY]
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        for name, dtype, shape in report.inputs:
            sizes = [1, *(size if isinstance(size, int) else 1 for size in shape[1:])]
            arrays[name] = rng.standard_normal(sizes).astype(np.dtype(dtype))
        return arrays
