"""From a board file to the options its runtime is given."""

from __future__ import annotations

from device_agents.contract import ProviderPlugin, RuntimeOptions
from harness.boards.schema import Board


def runtime_options(board: Board) -> RuntimeOptions:
    """The options of every session on the board; options of providers and sessions are sorted by key."""
    runtime = board.runtime
    return RuntimeOptions(
        providers=tuple((provider.name, tuple(sorted(provider.options.items()))) for provider in runtime.providers),
        intra_op_threads=runtime.threads.intra,
        inter_op_threads=runtime.threads.inter,
        graph_optimization=runtime.graph_optimization,
        session_config=tuple(sorted(runtime.session_config.items())),
        plugins=tuple(
            ProviderPlugin(provider.name, provider.library or "", provider.device or "")
            for provider in runtime.providers
            if provider.library or provider.device
        ),
    )
