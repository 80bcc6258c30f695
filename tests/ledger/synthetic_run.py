"""Builds run directories through the ledger's own API, with numbers like those of a real search.

Latencies are drawn around a level per recipe and board; medians and intervals are computed from the drawn samples,
so what a report shows can be checked against ``samples.parquet``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from scipy import stats

from device_agents.contract import BoardFacts, RuntimeOptions
from harness.ledger import events as ev
from harness.ledger.header import run_header
from harness.ledger.run_directory import RunDirectory
from harness.ledger.samples import SampleBlock
from harness.ledger.summary import build_summary
from harness.quantize.identity import identity
from harness.recipes.recipe import Calibration, Recipe
from harness.results import ArtifactInfo, BoardResult, LatencyResult, MetricResult, to_json

BLOCKS, SAMPLES = 6, 80


@dataclass(frozen=True)
class Case:
    """A recipe and what becomes of it."""

    recipe: Recipe
    speed: float = 1.0
    """Latency as a share of float's."""
    emulated_speed: float | None = None
    """The same on emulated boards, where it differs."""
    top1_loss: float = 0.0
    size: float = 1.0
    ends: str = "done"
    cause: str = ""
    message: str = ""
    of: int = 0

    def on(self, emulated: bool) -> float:
        return self.emulated_speed if emulated and self.emulated_speed is not None else self.speed


CASES: tuple[Case, ...] = (
    Case(Recipe(scheme="float32")),
    Case(Recipe(), 0.34, None, 0.0985, 0.31),
    Case(Recipe(granularity="per_channel"), 0.345, None, 0.002, 0.33),
    Case(Recipe(activation="uint8", granularity="per_channel"), 0.41, None, 0.0035, 0.33),
    Case(Recipe(scheme="float16"), 0.92, None, 0.0002, 0.52),
    Case(Recipe(scheme="dynamic"), 1.35, None, 0.006, 0.34),
    Case(Recipe(granularity="per_channel", calibration=Calibration("percentile", 99.99)), 0.375, 0.31, 0.0045, 0.33),
    Case(Recipe(calibration=Calibration("entropy")), 0.341, None, 0.031, 0.31),
    Case(
        Recipe(activation="int16", granularity="per_channel"),
        ends="failed",
        cause="does_not_load",
        message="NOT_IMPLEMENTED: Could not find an implementation for Conv(11) <node 'conv_0'>",
    ),
    Case(
        Recipe(scale="power_of_two", activation_symmetric=True),
        ends="failed",
        cause="low_snr",
        message="the worst output 'logits' has 3.1 dB against float; the floor is 15 dB",
    ),
    Case(Recipe(granularity="per_channel", calibration=Calibration("minmax", samples=256)), ends="duplicate", of=2),
    Case(
        Recipe(granularity="per_channel", exclude_op_types=("Conv",)),
        0.97,
        None,
        0.0,
        0.95,
        ends="pruned",
        cause="latency",
        message="predicted 1.2 ms (1.1-1.3): cannot enter the top 3",
    ),
)


class Ticking:
    """A clock that goes on by a quarter of a second at each reading."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.time += timedelta(milliseconds=250)
        return self.time


def facts(name: str, emulated: bool) -> BoardFacts:
    return BoardFacts(
        boot_id=f"boot-{name}",
        hardware_id=f"hw-{hashlib.sha256(name.encode()).hexdigest()[:12]}",
        emulated=emulated,
        machine="x86_64" if not emulated else "aarch64",
        cpu_model="AMD Ryzen AI 9 HX 370" if emulated else "Intel Xeon",
        cpu_count=4,
        memory_bytes=8 << 30,
        os="Linux 6.6",
        python="3.11.9",
        runtime="onnxruntime",
        runtime_version="1.22.0",
        providers=("CPUExecutionProvider",),
        runner_sha256="ab" * 32,
    )


def header(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "version": "0.1.0",
        "model": {
            "digest": "5f" * 32,
            "path": "fmnist_dscnn.onnx",
            "parameters": 18_154,
            "opset": 17,
            "inputs": [["image", "float32", [1, 1, 28, 28]]],
        },
        "data": {
            "calib": {"digest": "ca" * 32, "path": "calib.npz", "samples": 510},
            "eval": {"digest": "ea" * 32, "path": "eval.npz", "samples": 2000},
        },
        "preprocess": "9e" * 32,
        "metric": ["top1"],
        "metric_units": {"top1": "fraction"},
        "plan": {
            "model": "fmnist_dscnn.onnx",
            "boards": ["local", "ryzen-ai"],
            "trials": 12,
            "top_k": 3,
            "objective": "pareto",
            "max_latency": None,
            "budget": 60_000_000_000,
        },
        "seed": 7,
        "versions": {"onnx": "1.21.0", "onnxruntime": "1.22.0", "boardtune": "0.1.0"},
    }
    return run_header(**{**values, **changes})


def tiny_model(path: Path, seed: int) -> None:
    """An ONNX file with its own weights: y = x @ W."""
    weights = np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


@dataclass(frozen=True)
class Timing:
    blocks: tuple[SampleBlock, ...]
    latency: LatencyResult
    record: Mapping[str, Any]


def timing(rng: np.random.Generator, level_ns: float, canary_ns: float, drift: float = 0.0) -> Timing:
    blocks, entries, ratios = [], [], []
    clock = 1_000_000_000
    for index in range(2 + 2 * BLOCKS):
        target = "canary" if index % 2 == 0 else "candidate"
        kind = "warmup" if index < 2 else "block"
        level = (canary_ns if target == "canary" else level_ns) * (1.3 if kind == "warmup" else 1.0)
        level *= 1 + drift * index / (2 * BLOCKS)
        noise = rng.lognormal(0.0, 0.01) * rng.gamma(30.0, 1 / 30.0, SAMPLES) ** 0.2
        samples = np.round(level * noise).astype(np.int64)
        state = {"boot_id": "b", "temperature_c": 50.0 + 0.1 * index, "clock_ns": clock}
        clock += int(samples.sum())
        entries.append(
            {
                "index": index,
                "round": 0,
                "kind": kind,
                "target": target,
                "session": index % 2,
                "n": SAMPLES,
                "median_ns": float(np.median(samples)),
                "device_ns": int(samples.sum()),
                "first_ns": None,
                "before": state,
                "after": {**state, "clock_ns": clock},
            }
        )
        if kind == "warmup":
            continue
        blocks.append(SampleBlock(target, index, samples))
        if target == "candidate":
            ratios.append(entries[-1]["median_ns"] / entries[-2]["median_ns"])
    pooled = np.concatenate([b.samples_ns for b in blocks if b.target == "candidate"])
    p50 = float(np.median(pooled))
    logs = np.log(ratios)
    half = float(stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    latency = LatencyResult(
        p50=p50,
        ci95=(p50 * math.exp(-half), p50 * math.exp(half)),
        n=len(pooled),
        blocks=BLOCKS,
        p90=float(np.quantile(pooled, 0.9)),
        p95=float(np.quantile(pooled, 0.95)),
        minimum_block_median=min(float(np.median(b.samples_ns)) for b in blocks if b.target == "candidate"),
    )
    record = {
        "target": "candidate",
        "verdict": "valid",
        "reasons": [],
        "notices": [],
        "stop_reason": "interval",
        "drift": {"level_change": drift, "worst_slope": 0.0, "drifted": False},
        "blocks": entries,
    }
    return Timing(tuple(blocks), latency, record)


@dataclass
class Builder:
    """Plays the controller's part. ``boards``: name -> (emulated, float latency in ns)."""

    path: Path
    boards: Mapping[str, tuple[bool, float]]
    cases: Sequence[Case] = CASES
    header: Mapping[str, Any] | None = None
    max_loss: float = 0.01
    seed: int = 7
    clock: Callable[[], datetime] | None = None

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.run = RunDirectory.create(self.path, self.header or header(), clock=self.clock or Ticking())
        for name, (emulated, _) in self.boards.items():
            self.run.record(ev.board(name, asdict(facts(name, emulated)), asdict(RuntimeOptions())))

    def trial(self, number: int, case: Case) -> None:
        run, recipe = self.run, case.recipe
        run.write_recipe(number, recipe.to_dict())
        run.record(ev.proposed(number, recipe.to_dict(), recipe.label, {"k": number}, recipe.digest))
        if case.ends == "failed":
            run.record(ev.failed(number, case.cause, case.message))
            return
        draft = run.draft_path(number)
        tiny_model(draft, seed=case.of if case.ends == "duplicate" else number)
        model = run.commit_model(number, draft)
        artifact = ArtifactInfo(hashlib.sha256(model.read_bytes()).hexdigest(), identity(model), model.stat().st_size)
        run.record(
            ev.quantized(number, artifact, snr_db=21.5, quantized_operators=11, backend="ort 1.22.0", seconds=0.4)
        )
        if case.ends == "duplicate":
            run.record(ev.duplicate(number, case.of))
            return
        run.record(ev.gated(number))
        if case.ends == "pruned":
            run.record(ev.pruned(number, case.cause, case.message))
            return
        for name in self.boards:
            self.board(number, case, name, artifact)
        run.record(ev.done(number))

    def board(self, number: int, case: Case, name: str, artifact: ArtifactInfo) -> None:
        emulated, level = self.boards[name]
        self.run.record(ev.deployed(number, name, sent_bytes=artifact.size_bytes, device_seconds=0.05))
        drawn = timing(self.rng, level * case.on(emulated), level * 0.4)
        self.run.write_samples(number, name, "search", drawn.blocks, emulated=False)
        self.run.write_measurement(number, name, "search", drawn.record)
        measured = self.result(case, emulated, artifact, drawn.latency, {})
        self.run.record(ev.measured(number, name, measured, device_seconds=1.5))
        result = self.result(case, emulated, artifact, drawn.latency, {"top1": self.metric(case)})
        self.run.record(ev.evaluated(number, name, result, device_seconds=0.5))

    def metric(self, case: Case) -> MetricResult:
        value = 0.8956 - case.top1_loss
        if case.recipe.is_float32:
            return MetricResult(value, None, None, "none", 1000)
        half = 0.004
        low, high = -case.top1_loss - half, -case.top1_loss + half
        outcome = "met" if low > -self.max_loss else "broken" if high < -self.max_loss else "undecided"
        return MetricResult(value, -case.top1_loss, (low, high), outcome, 1000)

    def result(
        self,
        case: Case,
        emulated: bool,
        artifact: ArtifactInfo,
        latency: LatencyResult,
        metrics: Mapping[str, MetricResult],
    ) -> BoardResult:
        return BoardResult(
            emulated=emulated,
            verdict="valid",
            reasons=(),
            artifact=ArtifactInfo(artifact.sha256, artifact.identity, int(77_100 * case.size)),
            compiled_sha256=None,
            latency_ns=latency,
            load_ns=int(9_100_000 * case.size),
            first_ns=int(latency.p50 * 6),
            peak_memory_bytes=int(38e6 + 4e6 * case.size),
            metrics=metrics,
            placement={"nodes": {"CPUExecutionProvider": ["matmul"]}, "evidence": ["cpu-only"]},
            constraints={"accuracy": metrics["top1"].outcome} if metrics else {},
            device_seconds=2.0,
        )

    def search(self) -> None:
        for number, case in enumerate(self.cases):
            self.trial(number, case)

    def picks(self, name: str, k: int = 3) -> list[int]:
        """Feasible trials, fastest first."""
        ranked = [
            (board.latency_ns.p50, c.trial)
            for c in self.run.state.candidates()
            if (board := c.boards.get(name)) is not None
            and board.latency_ns is not None
            and "broken" not in board.constraints.values()
        ]
        return [trial for _, trial in sorted(ranked)[:k]]

    def finish(self, picks: Mapping[str, Sequence[int]] | None = None) -> RunDirectory:
        """Finals of the picks and the baseline, ``candidates.json``, ``summary.json``; the run stays open."""
        run = self.run
        picks = {name: self.picks(name) for name in self.boards} if picks is None else picks
        for name, trials in picks.items():
            for number in sorted({0, *trials} & run.state.trials.keys()):
                board = run.state.trials[number].boards.get(name)
                if board is not None and board.result is not None:
                    self.final(number, name)
        run.record(ev.stopped("all 12 trials done", kind="trials"), ev.finished(picks))
        run.write_candidates(candidates_json(run, picks))
        run.write_summary(build_summary(run.state))
        run.write_trials_csv()
        return run

    def final(self, number: int, name: str) -> None:
        emulated, level = self.boards[name]
        case = self.cases[number]
        drawn = timing(self.rng, level * case.on(emulated), level * 0.4)
        self.run.write_samples(number, name, "final", drawn.blocks, emulated=False)
        self.run.write_measurement(number, name, "final", drawn.record)
        artifact = self.run.state.trials[number].artifact
        assert artifact is not None
        result = self.result(case, emulated, artifact, drawn.latency, {"top1": self.metric(case)})
        result = BoardResult.from_json({**to_json(result), "phase": "final"})
        self.run.record(ev.final(number, name, result, device_seconds=2.0))


def candidates_json(run: RunDirectory, picks: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """As the controller writes it."""
    reasons = ("lowest latency", "adds the most hypervolume: smaller", "best accuracy left")
    candidates = [to_json(c) for c in run.state.candidates()]
    for candidate in candidates:
        for name, board in candidate["boards"].items():
            if candidate["trial"] in picks.get(name, ()):
                rank = list(picks[name]).index(candidate["trial"])
                board["reason"] = reasons[rank % len(reasons)]
    floats = [c for c in candidates if c["recipe"]["scheme"] == "float32"]
    baseline = {
        "trial": 0,
        "recipe": Recipe(scheme="float32").to_dict(),
        "label": "float32",
        "boards": {name: floats[0]["boards"].get(name) if floats else None for name in picks},
    }
    return {
        "candidates": candidates,
        "picks": {name: list(trials) for name, trials in picks.items()},
        "baseline": baseline,
        "trials": run.state.counts(),
        "device_seconds": dict(run.state.device_seconds),
    }


TWO_BOARDS: Mapping[str, tuple[bool, float]] = {"local": (False, 1_250_000.0), "ryzen-ai": (True, 410_000.0)}


def finished_run(path: Path, **options: Any) -> RunDirectory:
    builder = Builder(path, options.pop("boards", TWO_BOARDS), **options)
    builder.search()
    return builder.finish()
