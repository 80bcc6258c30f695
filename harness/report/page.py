"""The report as one HTML page: no scripts, nothing fetched from anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from harness.report import plots, svg, wording
from harness.report.data import BoardSection, Entry, ReportData
from harness.report.history import history
from harness.report.markup import Child, Markup, el, join, text
from harness.report.sections import boards_facts, duplicates_table, losses_table, plan_table, run_facts
from harness.report.tables import all_table, badge, top_table

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def render_html(data: ReportData) -> str:
    """The whole page. The same data gives the same bytes."""
    model = str(data.summary.get("model", {}).get("path") or "model")
    name = Path(model.replace("\\", "/")).name
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="generator", content=f"boardtune {data.summary.get('boardtune')}"),
        el("title", f"{name} on {', '.join(b.name for b in data.boards) or 'no board'} · boardtune"),
        el("style", Markup(_style())),
    )
    body = el(
        "body",
        el("a", "Skip to the results", class_="skip", href="#results"),
        el("header", _top(data, name), class_="top"),
        el("main", *(_board(data, board) for board in data.boards), _trials(data), _about(data), id="results"),
        el("footer", _foot(data)),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


@cache
def _style() -> str:
    return resources.files("harness.report").joinpath("style.css").read_text(encoding="utf-8")


def _top(data: ReportData, model: str) -> Markup:
    verdicts = [
        el(
            "li",
            el("strong", board.verdict.sentence, badge(board.emulated)),
            *(el("p", caveat) for caveat in board.verdict.caveats),
            class_=f"verdict {board.verdict.tone}",
        )
        for board in data.boards
    ] or [el("li", el("strong", "no board has been connected yet"), class_="verdict none")]
    return join(
        el("h1", "boardtune report · ", el("b", model)),
        el("ul", *verdicts, class_="verdicts", aria_label="Verdicts"),
        run_facts(data),
    )


def _board(data: ReportData, board: BoardSection) -> Markup:
    metric = next((m for m in data.metrics if any(m in e.result.metrics for e in board.candidates)), None)
    parts: list[Child] = [
        el("h2", board.name, badge(board.emulated), id=board.key),
        el("p", _board_line(board), class_="muted"),
    ]
    if board.baseline is not None or board.picks:
        parts.append(top_table(data, board))
    else:
        parts.append(el("p", "No candidate has a result on this board."))
    if metric is not None:
        limit = data.summary.get("plan", {}).get("max_latency")
        figure = plots.pareto(board, metric, data.units, limit if isinstance(limit, int | float) else None)
        caption = (
            "Each mark is a candidate; bars are 95 % intervals, those of accuracy of the paired difference to float. "
            "Candidates far off the scale are triangles at the edge, with their value."
        )
        parts.append(_figure("Speed against accuracy", figure, caption, board, _pareto_key(board, limit is not None)))
    parts.append(
        _figure(
            "Latency distributions",
            plots.distributions(board),
            "Raw steady-state samples on the device's clock, none dropped. Right: histogram of each around its own "
            "median, what is beyond the edges counted there; the thick line spans the middle half.",
            board,
            _series_key(board),
        )
    )
    parts.append(
        _figure(
            "Did the board hold still?",
            plots.canary_drift(board),
            "Median latency of the canary, a small fixed model timed between the candidates. Candidates are reported "
            "relative to it, so a slow drift cancels; a jump would void the measurement.",
            board,
        )
    )
    parts.append(
        _figure(
            "How the search went on",
            history(board),
            "Median latency of each candidate in the order of trials; crosses do not keep the constraints. The line "
            "is the fastest so far of those that do.",
            board,
        )
    )
    if len(board.candidates) > len(board.picks):
        parts.append(
            _details(
                join(f"All {len(board.candidates)} candidates", badge(board.emulated, small=True)),
                all_table(data, board),
            )
        )
    parts.extend(_pick_details(data, board, entry) for entry in board.picks)
    return el("section", *parts, class_="card", aria_labelledby=board.key)


def _board_line(board: BoardSection) -> str:
    facts = board.facts
    words = [
        facts.get("cpu_model"),
        facts.get("os"),
        f"{facts.get('runtime', '')} {facts.get('runtime_version', '')}".strip() or None,
        f"{wording.duration(board.device_seconds)} of device time",
    ]
    line = " · ".join(str(word) for word in words if word)
    return f"{line}. Latencies come from the emulation, not from the real device." if board.emulated else line


def _figure(
    heading: str, figure: Markup | None, caption: str, board: BoardSection, key: Markup | None = None
) -> Markup | None:
    if figure is None:
        return None
    return join(
        el("h3", heading, badge(board.emulated, small=True)),
        el("figure", figure, key, el("figcaption", caption)),
    )


def _pareto_key(board: BoardSection, limited: bool) -> Markup:
    shown = board.candidates
    plain = [e for e in shown if e.rank is None and not e.is_float]
    items = [("pick", "accent", "")] if board.picks else []
    items += [("float", "float", "sq")] if any(e.is_float for e in shown) else []
    kept = [e for e in plain if not e.broken]
    items += [("keeps the constraints", "muted", "hollow")] if any(not _undecided(e) for e in kept) else []
    items += [("undecided", "warn", "hollow dia")] if any(_undecided(e) for e in kept) else []
    entries = [el("li", _dot(colour, shape), label) for label, colour, shape in items]
    if any(e.broken for e in plain):
        entries.append(el("li", el("i", "× ▼", class_="cross", style="color:var(--bad)"), "breaks a constraint"))
    if limited:
        entries.append(el("li", _dot("bad", "line"), "latency limit"))
    return el("ul", *entries, class_="key", aria_hidden="true")


def _undecided(entry: Entry) -> bool:
    return "undecided" in entry.result.constraints.values()


def _series_key(board: BoardSection) -> Markup:
    variables = {colour: f"s{i}" for i, colour in enumerate(svg.SERIES, 1)} | {svg.FLOAT: "float"}
    entries = [
        el("li", _dot(variables[colour], "line"), f"{wording.trial_name(d.trial)} {d.label}")
        for d, colour in zip(board.distributions, plots.series_colours(board.distributions), strict=True)
    ]
    return el("ul", *entries, class_="key")


def _dot(colour: str, shape: str) -> Markup:
    return el("i", class_=shape or None, style=f"background:var(--{colour});border-color:var(--{colour})")


def _details(summary: Child, *content: Child, open_: bool = False) -> Markup:
    return el("details", el("summary", summary), el("div", *content), open=open_)


def _pick_details(data: ReportData, board: BoardSection, entry: Entry) -> Markup:
    """Recipe and provenance: all it takes to know what was measured, and to make it again."""
    result, trial = entry.result, data.trials.get(entry.trial)
    placement = result.placement
    rows: list[tuple[str, Child]] = [
        ("Recipe", entry.label),
        ("Recipe digest", trial.recipe_digest if trial else None),
        ("Made by", trial.backend if trial else None),
        ("Quantized operators", trial.quantized_operators if trial else None),
        ("SNR against float", f"{trial.snr_db:.1f} dB" if trial and trial.snr_db is not None else None),
        ("Artifact sha256", result.artifact.sha256),
        ("Artifact identity", result.artifact.identity),
        ("Compiled sha256", result.compiled_sha256),
        ("Board", f"{board.name} ({board.facts.get('hardware_id', 'unknown hardware')})"),
        ("Emulated", "yes" if result.emulated else "no"),
        ("Runtime", f"{board.facts.get('runtime', '')} {board.facts.get('runtime_version', '')}".strip()),
        ("Runtime options", json.dumps(board.options, sort_keys=True) if board.options else None),
        ("Placement", _placement(placement)),
        ("Measured", f"phase {result.phase}, verdict {result.verdict}, {_samples(result.latency_ns)}"),
        ("Accuracy", wording.ACCURACY_FROM[result.accuracy_from] if result.metrics else None),
        ("Notices", "; ".join(trial.notices) if trial and trial.notices else None),
    ]
    name = f"Pick {entry.rank}: recipe and provenance of {wording.trial_name(entry.trial)}"
    return _details(
        join(name, badge(result.emulated, small=True)),
        definitions(rows),
        el("pre", json.dumps(entry.recipe, indent=2, ensure_ascii=False)),
    )


def definitions(rows: list[tuple[str, Child]]) -> Markup:
    shown = [(name, value) for name, value in rows if value not in (None, "")]
    return el("dl", *(join(el("dt", name), el("dd", text(value))) for name, value in shown), class_="grid")


def _samples(latency: Any) -> str:
    return "no latency" if latency is None else f"{latency.n:,} samples in {latency.blocks} blocks"


def _placement(placement: Mapping[str, Any]) -> str | None:
    nodes = placement.get("nodes") or {}
    if not nodes:
        return "no receipt"
    parts = [f"{wording.count(len(names), 'node')} on {provider}" for provider, names in nodes.items()]
    gone = [*(placement.get("fused") or ()), *(placement.get("folded") or ())]
    if gone:
        parts.append(f"{len(gone)} fused or folded")
    evidence = ", ".join(placement.get("evidence") or ()) or "no evidence"
    return f"{', '.join(parts)} (by {evidence})"


def _trials(data: ReportData) -> Markup | None:
    parts = [losses_table(data), duplicates_table(data)]
    if not any(parts):
        return None
    return el("section", el("h2", "What did not make it", id="lost"), *parts, class_="card", aria_labelledby="lost")


def _about(data: ReportData) -> Markup:
    notices = (
        join(el("h3", "Notices"), el("ul", *(el("li", n) for n in data.notices), class_="notices"))
        if data.notices
        else None
    )
    return el(
        "section",
        el("h2", "The run", id="run"),
        notices,
        el("div", plan_table(data), boards_facts(data), class_="columns"),
        class_="card",
        aria_labelledby="run",
    )


def _foot(data: ReportData) -> Markup:
    marked = (
        " Numbers marked E, and everything under an EMULATED badge, come from emulated boards." if data.emulated else ""
    )
    return el(
        "p",
        f"Made by boardtune {data.summary.get('boardtune')} from the run's ledger. Latency is the median of single "
        "inferences on the device's clock; intervals are 95 %; accuracy is compared with float on the same samples."
        + marked,
    )
