"""Runs a model on a board as its file says and on its CPU provider alone, in turn: ``placement --compare-cpu``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np

from device_agents.contract import Agent, BlockRequest, RuntimeOptions, Tensors
from harness.boards.options import runtime_options
from harness.boards.schema import Board
from harness.controller.deployable import Deployable
from harness.data.source import random_dataset
from harness.measure.offloaded import BLOCKS, CpuComparison, compare

CPU = "CPUExecutionProvider"
SAMPLES = 4
_BLOCK = BlockRequest(min_count=5, min_ns=50_000_000, max_ns=5_000_000_000, rows=SAMPLES)
_WARM = BlockRequest(min_count=3, min_ns=50_000_000, max_ns=5_000_000_000, rows=SAMPLES)


def claims_an_accelerator(board: Board) -> bool:
    return any(provider.name != CPU for provider in board.runtime.providers)


def compare_with_cpu(
    agent: Agent,
    board: Board,
    ready: Deployable,
    sha256: str,
    timing: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
) -> CpuComparison:
    """Seeded random samples through both. The model is deployed as ``sha256``; ``timing`` is entered for each block.

    The outputs are compared with the plain graph's, since fused integer kernels of CPUs saturate and round in ways of
    their own; the latency with the graph as the board's file has it optimized.

    Raises :class:`AgentError`, and :class:`DataError` where no samples can be made up.
    """
    samples = random_dataset(ready.inputs, SAMPLES, 0).inputs
    options = runtime_options(board)
    on_cpu = replace(options, providers=((CPU, ()),), plugins=())
    plain = agent.load(sha256, replace(on_cpu, graph_optimization="disabled")).session
    reference = agent.infer(plain, samples).outputs
    agent.unload(plain)
    sessions = [_warm(agent, sha256, each, samples) for each in (options, on_cpu)]
    outputs = agent.infer(sessions[0], samples).outputs
    medians: tuple[list[float], list[float]] = ([], [])
    for _ in range(BLOCKS):
        for session, kept in zip(sessions, medians, strict=True):
            with timing():
                block = agent.measure(session, samples, _BLOCK)
            kept.append(float(np.median(block.samples_ns)))
    for session in sessions:
        agent.unload(session)
    return compare(outputs, reference, *medians, board.limits.output_tolerance)


def _warm(agent: Agent, sha256: str, options: RuntimeOptions, samples: Tensors) -> str:
    session = agent.load(sha256, options).session
    agent.measure(session, samples, _WARM)
    return session
