"""``boardtune placement``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.common import json_option, model_argument, one_model, print_json, set_dim_option
from harness.cli.exit_codes import exit_code_of, worst
from harness.cli.measure import failure_text
from harness.errors import ExitCode
from harness.quantize.shapes import parse_set_dims
from harness.units import format_ns

if TYPE_CHECKING:
    from harness.controller.placing import Placed

_SHOWN = 6
"""Nodes named per line; --json has them all."""


@click.command("placement", short_help="Show where a model's nodes run on boards.")
@model_argument
@click.option("--model", type=click.Path(path_type=Path), help="Instead of the argument.")
@click.option("--boards", default="local", show_default=True, help="Boards to load it on, separated by commas.")
@click.option(
    "--compare-cpu",
    is_flag=True,
    help="Also run it on each board's CPU provider alone: outputs must agree, and latencies differ.",
)
@set_dim_option
@json_option
def command(
    model_argument: Path | None,
    model: Path | None,
    boards: str,
    compare_cpu: bool,
    set_dim: tuple[str, ...],
    as_json: bool,
) -> int:
    """Load MODEL on boards and show which provider runs each of its nodes, what was fused or folded, how that is known,
    and why nodes are left to the CPU. Exit code 3 where a board's limits.min_offload is not reached, 5 where
    --compare-cpu finds the accelerator's claim implausible."""
    from harness.controller.placing import place

    names = [name.strip() for name in boards.split(",") if name.strip()]
    found = place(
        one_model(model_argument, model),
        names,
        parse_set_dims(set_dim),
        compare_cpu=compare_cpu,
        tell=lambda message: click.echo(f"note: {message}", err=True),
    )
    if as_json:
        print_json({n: found.boards[n].to_json() if n in found.boards else None for n in dict.fromkeys(names)})
    else:
        for name, placed in found.boards.items():
            for line in lines_of(name, placed):
                click.echo(line)
    codes = [exit_code_of(error) for error in found.failures.values()]
    for name, error in found.failures.items():
        click.echo(f"error: {failure_text(name, error)}", err=True)
    for placed in found.boards.values():
        if placed.below_floor:
            codes.append(ExitCode.NO_FEASIBLE_CANDIDATE)
        if placed.comparison is not None and placed.comparison.problems:
            codes.append(ExitCode.MEASUREMENTS_INVALID)
    return int(worst(codes))


def lines_of(name: str, placed: Placed) -> list[str]:
    """One board's receipt in words."""
    placement = placed.placement
    stamp = " (emulated)" if placed.facts.emulated else ""
    total = len(placed.op_types)
    lines = [f"{name}{stamp}: {total} nodes, loaded in {format_ns(placed.load_ns)}"]
    for provider, nodes in placement.nodes.items():
        share = placement.time_share.get(provider)
        tail = f", {share:.0%} of the time" if share is not None else ""
        lines.append(f"  {provider:<28} {len(nodes):>5}{tail}: {_kinds(placed.counts(nodes))}")
    for label, nodes in (("fused into another", placement.fused), ("folded at load", placement.folded)):
        if nodes:
            lines.append(f"  {label:<28} {len(nodes):>5}: {_kinds(placed.counts(nodes))}")
    if placed.unaccounted:
        lines.append(f"  {'not accounted for':<28} {len(placed.unaccounted):>5}: {_listed(placed.unaccounted)}")
    lines.append(f"  evidence   {', '.join(placement.evidence) or 'none'}; {_agreement(placement.agrees)}")
    lines += _floor(placed)
    if placed.comparison is not None:
        found = placed.comparison
        ours, cpu = format_ns(found.latency_ns), format_ns(found.cpu_latency_ns)
        agree = "outputs agree" if found.outputs_differ is None else "outputs DIFFER"
        lines.append(f"  plausible  {agree} within {found.tolerance:.1%}; {ours}, on the CPU alone {cpu}")
        lines += [f"    SUSPECT: {problem}" for problem in found.problems]
    fallbacks = placed.fallbacks()
    if fallbacks:
        lines.append("  left to the CPU because")
    lines += [f"    {reason}: {_listed(nodes)}" for reason, nodes in fallbacks.items()]
    return lines


def _floor(placed: Placed) -> list[str]:
    ratio, floor = placed.placement.offload_ratio, placed.min_offload
    if ratio is None and floor is None:
        return []
    known = "unknown" if ratio is None else f"{ratio:.1%}"
    verdict = ""
    if floor is not None:
        verdict = f", BELOW the board's floor of {floor:.0%}" if placed.below_floor else f", floor {floor:.0%}"
    return [f"  offloaded  {known} of the nodes{verdict}"]


def _agreement(agrees: bool | None) -> str:
    if agrees is None:
        return "no second source"
    return "two sources agree" if agrees else "the sources CONTRADICT each other"


def _kinds(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {op_type}" for op_type, count in counts.items())


def _listed(nodes: Sequence[str]) -> str:
    more = len(nodes) - _SHOWN
    return ", ".join(nodes[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
