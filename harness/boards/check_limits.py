"""Compares what a board says about itself with what its file says about it. Pure: no board is touched."""

from __future__ import annotations

from collections.abc import Iterator

from device_agents.contract import BoardFacts, BoardState
from harness.boards.findings import Finding
from harness.boards.schema import Board
from harness.boards.units import format_size
from harness.suggest import closest

_CPU = "CPUExecutionProvider"
_BUSY_SHARE = 0.5
"""Load average per processor above which a board that should be alone is not."""


def check_facts(board: Board, facts: BoardFacts) -> Iterator[Finding]:
    """Who answered, and whether its runtime has what the file asks for."""
    memory = f"{format_size(facts.memory_bytes)} memory, " if facts.memory_bytes else ""
    yield Finding(
        "ok",
        f"{facts.cpu_model} ({facts.machine}), {facts.cpu_count} processors, {memory}{facts.os}"
        + (f", Python {facts.python}" if facts.python else ""),
    )
    yield Finding("ok", f"{facts.runtime} {facts.runtime_version} with {', '.join(facts.providers)}")
    if facts.runtime != board.runtime.name:
        yield Finding(
            "error", f"its runtime is {facts.runtime}, its file says {board.runtime.name}", "correct runtime.name"
        )
    for provider in board.runtime.providers:
        if provider.name not in facts.providers:
            yield Finding(
                "error",
                f"the board's {facts.runtime} has no {provider.name}",
                "install the build of onnxruntime that has it (on that Python), or take it out of runtime.providers",
            )
    threads = board.runtime.threads.intra
    if threads > facts.cpu_count:
        yield Finding(
            "warning",
            f"runtime.threads.intra is {threads}, and the board has {facts.cpu_count} processors",
            f"more threads than processors wait for each other; write {facts.cpu_count} or less",
        )


def check_state(board: Board, facts: BoardFacts, state: BoardState) -> Iterator[Finding]:
    """Whether the board is in the state its file wants, as read back from it."""
    wanted = board.state
    yield from _compared("governor", wanted.governor, state.governor, "on the board: sudo cpupower frequency-set -g {}")
    yield from _compared("power_mode", wanted.power_mode, state.power_mode, "set it with the board's own tool: {}")
    limit, temperature = wanted.max_temperature_c, state.temperature_c
    if limit is not None and temperature is None:
        yield Finding("warning", "state.max_temperature_c is set, but the board shows no temperature", "remove it")
    elif limit is not None and temperature is not None and temperature > limit:
        yield Finding(
            "warning",
            f"it is {temperature:.0f} °C hot, more than the {limit:g} °C of its file",
            "let it cool, or add a fan",
        )
    elif temperature is not None:
        yield Finding("ok", f"temperature {temperature:.0f} °C")
    if state.throttled:
        yield Finding("warning", "the board says it is throttled", "look at its power supply and its cooling")
    if wanted.governor is None and state.governor in ("powersave", "ondemand", "schedutil", "conservative"):
        yield Finding(
            "warning",
            f"the frequency governor is {state.governor}: clocks follow the load and timings wander",
            "set performance on the board (sudo cpupower frequency-set -g performance), and write "
            "state: {governor: performance}",
        )
    if state.frequency_khz is not None:
        most = f" of {state.max_frequency_khz / 1e3:.0f}" if state.max_frequency_khz else ""
        yield Finding("ok", f"clock {state.frequency_khz / 1e3:.0f}{most} MHz")
    busy = state.load_average is not None and state.load_average > _BUSY_SHARE * facts.cpu_count
    if busy and board.noise == "dedicated":
        yield Finding(
            "warning",
            f"load average {state.load_average:.1f} on {facts.cpu_count} processors: other work is running",
            "stop it, or write noise: shared into the board's file",
        )


def check_limits(board: Board, facts: BoardFacts, state: BoardState) -> Iterator[Finding]:
    """Whether the limits of the file can be true of this board."""
    limits = board.limits
    if limits.max_memory_bytes is not None and limits.max_memory_bytes > facts.memory_bytes:
        yield Finding(
            "warning",
            f"limits.max_memory_bytes is {format_size(limits.max_memory_bytes)}, "
            f"and the board has {format_size(facts.memory_bytes)}",
            "write what a model may use, less than the board has",
        )
    free = state.disk_free_bytes
    for name, size in (("limits.max_model_bytes", limits.max_model_bytes), ("cache_bytes", board.cache_bytes)):
        if free is not None and size is not None and size > free:
            yield Finding(
                "warning",
                f"{name} is {format_size(size)}, and the board has {format_size(free)} of free disk",
                "free some, lower it, or move transport.workdir to a larger disk",
            )
    only_cpu = all(provider.name == _CPU for provider in board.runtime.providers)
    if limits.min_offload and only_cpu:
        yield Finding(
            "error",
            f"limits.min_offload is {limits.min_offload:g}, and runtime.providers has no accelerator",
            "add the accelerator's provider, or remove limits.min_offload: no model could meet it",
        )
    yield from _unknown_operators(board)


def _unknown_operators(board: Board) -> Iterator[Finding]:
    if not board.limits.operators:
        return
    import onnx.defs

    schemas = onnx.defs.get_all_schemas()
    known = {schema.name for schema in schemas}
    for operator in board.limits.operators:
        if operator not in known and "." not in operator and ":" not in operator:
            near = closest(operator, sorted(known))
            yield Finding(
                "warning",
                f"limits.operators names {operator!r}, which is no ONNX operator",
                f"did you mean {near!r}?" if near else "correct or remove it",
            )


def _compared(name: str, wanted: str | None, actual: str | None, way: str) -> Iterator[Finding]:
    if wanted is None:
        return
    if actual is None:
        yield Finding(
            "warning",
            f"state.{name} is {wanted}, but the board does not show its own",
            "numbers will be marked suspect",
        )
    elif actual != wanted:
        yield Finding("warning", f"{name} is {actual}, its file wants {wanted}", way.format(wanted))
    else:
        yield Finding("ok", f"{name} is {actual}")
