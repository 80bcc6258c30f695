"""The agent of an emulated board, for the battery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from device_agents.contract import Agent
from device_agents.emulated import EmulatedSpec, emulated_agent
from tests.conformance.limits import CACHE_BYTES

_CONV = ["int8", "float16"]


def spec() -> EmulatedSpec:
    """A small board with a plain processor."""
    return EmulatedSpec.model_validate(
        {
            "seed": 1,
            "presents": {"cpu_model": "Conformance", "machine": "aarch64", "os": "none", "memory_mb": 2000},
            "cost_model": {
                "name": "conformance",
                "load_ms": 3.0,
                "load_mb_per_s": 100.0,
                "runtime_mb": 20.0,
                "processor": {
                    "cores": 2,
                    "gmac_per_s": {"float32": 8.0, "float16": 16.0, "int8": 30.0},
                    "gelement_per_s": 1.0,
                    "memory_gb_s": 5.0,
                    "launch_us": 2.0,
                    "invocation_us": 10.0,
                    "operators": {"Conv": _CONV, "MatMul": _CONV, "Gemm": _CONV},
                },
            },
        }
    )


@contextmanager
def factory(tmp_path: Path) -> Iterator[Agent]:
    """An agent, not yet connected, whose board keeps its files below ``tmp_path``."""
    agent = emulated_agent("conformance", spec(), cache_bytes=CACHE_BYTES, root=tmp_path / "board")
    try:
        yield agent
    finally:
        agent.close()
