"""The parts of the report that are about the run as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.report import wording
from harness.report.data import ReportData
from harness.report.markup import Child, Markup, el, join
from harness.report.tables import badge, pill, scroll
from harness.units import format_bytes, format_ns

_DURATIONS = frozenset({"max_latency", "budget", "max_time", "quantize_timeout"})
_SIZES = frozenset({"max_size", "max_memory", "quantize_memory"})


def run_facts(data: ReportData) -> Markup:
    """One line of figures under the verdicts."""
    summary = data.summary
    model, trials = summary.get("model", {}), summary["trials"]
    counts = ", ".join(f"{number} {name}" for name, number in trials.items() if number) or "none ended yet"
    seconds = sum(summary["device_seconds"].values())
    items = [
        ("Trials", counts + (f", {len(data.unfinished)} under way" if data.unfinished else "")),
        ("Device time", wording.duration(seconds)),
        ("Model", _model(model)),
        ("Objective", summary.get("plan", {}).get("objective")),
        ("Seed", summary.get("seed")),
        ("Started", _time(summary.get("started"))),
        ("Status", _status(summary)),
    ]
    shown = [(name, value) for name, value in items if value not in (None, "")]
    return el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in shown), class_="facts")


def losses_table(data: ReportData) -> Markup | None:
    """Failed and pruned trials, by cause; also those lost on one board only."""
    rows: list[tuple[str, str, int, str, str, str | None]] = [
        (loss.status, loss.cause, number, label, message, None)
        for loss in data.losses
        for number, label, message in loss.trials
    ]
    for board in data.boards:
        for number, status, cause, message in board.dropped:
            trial = data.trials.get(number)
            if trial is not None and trial.status == status:
                continue  # it ended so as a whole, and that row says why for each board
            rows.append((status, cause, number, trial.label if trial else "", message, board.name))
    if not rows:
        return None
    counts: dict[tuple[str, str], int] = {}
    for status, cause, *_ in rows:
        counts[status, cause] = counts.get((status, cause), 0) + 1
    rows.sort(key=lambda row: (row[0], -counts[row[0], row[1]], row[1], row[2]))
    body: list[Markup] = []
    seen: set[tuple[str, str]] = set()
    for status, cause, number, label, message, where in rows:
        new = (status, cause) not in seen
        seen.add((status, cause))
        span = counts[status, cause]
        head = el(
            "th",
            pill(status),
            " ",
            cause.replace("_", " ") or "no cause recorded",
            el("span", wording.count(span, "trial"), class_="sub"),
            scope="rowgroup",
            rowspan=span,
        )
        body.append(
            el(
                "tr",
                head if new else None,
                el("td", wording.trial_name(number), el("span", f"on {where}", class_="sub") if where else None),
                el("td", label, class_="label"),
                el("td", message),
            )
        )
    table = el(
        "table",
        el("caption", "Failed and pruned trials by cause."),
        el("thead", el("tr", *(el("th", name, scope="col") for name in ("Cause", "Trial", "Recipe", "Message")))),
        el("tbody", *body),
    )
    return scroll(table, "Failed and pruned trials")


def duplicates_table(data: ReportData) -> Markup | None:
    if not data.duplicates:
        return None
    rows = [
        el(
            "tr",
            el("th", wording.trial_name(number), scope="row"),
            el("td", label, class_="label"),
            el("td", f"makes the same artifact as {wording.trial_name(of)}"),
        )
        for number, label, of in data.duplicates
    ]
    table = el(
        "table",
        el("caption", "Duplicates: measured once, under the first number."),
        el("thead", el("tr", *(el("th", name, scope="col") for name in ("Trial", "Recipe", "Because it")))),
        el("tbody", *rows),
    )
    return join(el("h3", "Duplicates"), scroll(table, "Duplicates"))


def plan_table(data: ReportData) -> Markup:
    summary = data.summary
    rows: list[tuple[str, Child]] = [
        (name.replace("_", " "), _plan_value(name, value))
        for name, value in summary.get("plan", {}).items()
        if value not in (None, [], {}, "")
    ]
    rows += [
        (f"data: {role}", _data(value)) for role, value in summary.get("data", {}).items() if value not in (None, "")
    ]
    rows.append(("model sha256", summary.get("model", {}).get("digest")))
    rows.append(("preprocessing", summary.get("preprocess")))
    rows += [(f"{name} version", version) for name, version in summary.get("versions", {}).items()]
    rows.append(("ended because", summary.get("stop_reason")))
    return el("div", el("h3", "Plan and provenance"), _grid(rows))


def boards_facts(data: ReportData) -> Markup:
    parts: list[Child] = []
    for board in data.boards:
        rows: list[tuple[str, Child]] = [
            (name.replace("_", " "), _fact(name, value))
            for name, value in board.facts.items()
            if value not in (None, "", [], {})
        ]
        parts.append(el("h3", f"Board {board.name}", badge(board.emulated, small=True)))
        parts.append(_grid(rows) if rows else el("p", "It has not described itself.", class_="muted"))
    return el("div", *parts)


def _grid(rows: list[tuple[str, Child]]) -> Markup:
    shown = [(name, value) for name, value in rows if value not in (None, "")]
    return el("dl", *(join(el("dt", name), el("dd", value)) for name, value in shown), class_="grid")


def _model(model: Mapping[str, Any]) -> str | None:
    parts = []
    if isinstance(model.get("parameters"), int):
        parts.append(f"{model['parameters']:,} parameters")
    if model.get("opset"):
        parts.append(f"opset {model['opset']}")
    return ", ".join(parts) or None


def _status(summary: Mapping[str, Any]) -> str:
    if summary["status"] == "unfinished":
        return "unfinished: figures so far"
    return f"{summary['status']}: {summary['stop_reason']}" if summary.get("stop_reason") else str(summary["status"])


def _time(value: object) -> str | None:
    return f"{value[:16].replace('T', ' ')} UTC" if isinstance(value, str) else None


def _data(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    parts = [str(value[name]) for name in ("path", "origin") if value.get(name)]
    if value.get("samples"):
        parts.append(wording.count(int(value["samples"]), "sample"))
    parts.append(f"sha256 {value.get('digest')}")
    return ", ".join(parts)


def _plan_value(name: str, value: Any) -> str:
    if name in _DURATIONS and isinstance(value, int | float):
        return format_ns(value) if value < 60e9 else wording.duration(value / 1e9)
    if name in _SIZES and isinstance(value, int | float):
        return format_bytes(value)
    return _fact(name, value)


def _fact(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int | float):
        return format_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping) and all(isinstance(item, str | int) for item in value.values()):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | list | tuple) else str(value)
