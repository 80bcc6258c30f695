"""The tables of a board's section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.report import wording
from harness.report.data import BoardSection, Entry, ReportData
from harness.report.markup import Child, Markup, el, join
from harness.report.verdict import pace
from harness.results import BoardResult
from harness.units import format_metric


def badge(emulated: bool, *, small: bool = False) -> Markup:
    if not emulated:
        return Markup("")
    return join(" ", el("span", "EMULATED", class_="badge small" if small else "badge"))


def emulated_mark(emulated: bool) -> Markup:
    """The small E behind a number that came from an emulated board."""
    return el("sup", el("abbr", "E", title="from an emulated board"), class_="emu") if emulated else Markup("")


def pill(word: str, kind: str | None = None) -> Markup:
    return el("span", word, class_=f"pill {kind or word}")


def scroll(table: Markup, name: str) -> Markup:
    """Wide tables scroll by themselves, also by keyboard."""
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=name)


def top_table(data: ReportData, board: BoardSection) -> Markup:
    """The picks against float."""
    metrics = [m for m in data.metrics if any(m in e.result.metrics for e in board.candidates)]
    heads = [
        el("th", "Candidate, and why", scope="col"),
        *(el("th", name, scope="col", class_="n") for name in ("Latency", "p90", "Against float")),
        *(el("th", wording.metric_name(name), scope="col", class_="n") for name in metrics),
        *(el("th", name, scope="col", class_="n") for name in ("Size", "Peak memory", "Load, first run")),
    ]
    rows = []
    if board.baseline is not None and board.baseline.rank is None:
        rows.append(_top_row(board.baseline, board, metrics, data.units, "the model as it was given"))
    rows.extend(
        _top_row(e, board, metrics, data.units, e.result.reason or "no reason was recorded") for e in board.picks
    )
    caption = f"Top {len(board.picks)} of {board.name} against float; intervals are 95 %."
    if board.baseline is None:
        caption += " Float has no measurement on this board, so there is nothing to compare with."
    table = el(
        "table",
        el("caption", caption, badge(board.emulated, small=True)),
        el("thead", el("tr", *heads)),
        el("tbody", *rows),
    )
    return scroll(table, f"Top candidates of {board.name}")


def _top_row(entry: Entry, board: BoardSection, metrics: Sequence[str], units: Mapping[str, str], why: str) -> Markup:
    result = entry.result
    base = board.baseline.result if board.baseline is not None and board.baseline.trial != entry.trial else None
    rank = f"Pick {entry.rank}: " if entry.rank is not None else ""
    name = f"{rank}{wording.trial_name(entry.trial)}" + (" (float)" if entry.is_float and entry.rank is None else "")
    title = join(name, badge(result.emulated, small=True))
    verdict = pill(result.verdict) if result.verdict != "valid" else None
    return el(
        "tr",
        el(
            "th",
            el("span", title, class_="name"),
            " ",
            verdict,
            _sub(entry.label),
            _sub(el("em", why)),
            scope="row",
            class_="with-why",
        ),
        *_latency_cells(result, base),
        *(_metric_cell(result, m, units) for m in metrics),
        _quantity(wording.size(result.artifact.size_bytes), _smaller(result, base), False),
        _quantity(wording.size(result.peak_memory_bytes), None, result.emulated and bool(result.peak_memory_bytes)),
        _load_cell(result),
        class_="first" if entry.rank == 1 else "base" if entry.is_float else None,
    )


def _latency_cells(result: BoardResult, base: BoardResult | None) -> tuple[Markup, Markup, Markup]:
    latency = result.latency_ns
    if latency is None:
        return _quantity(wording.NONE, "not measured", False), _quantity(wording.NONE), _quantity(wording.NONE)
    mark = result.emulated
    return (
        _quantity(wording.latency(latency.p50), wording.latency_interval(*latency.ci95), mark),
        _quantity(wording.latency(latency.p90), f"{latency.n:,} samples", mark and latency.p90 is not None),
        _against(result, base),
    )


def _load_cell(result: BoardResult) -> Markup:
    load = join(wording.latency(result.load_ns), emulated_mark(result.emulated and result.load_ns is not None))
    first = join(wording.latency(result.first_ns), emulated_mark(result.emulated and result.first_ns is not None))
    return el("td", load, _sub(first) if result.first_ns is not None else None, class_="n")


def _against(result: BoardResult, base: BoardResult | None) -> Markup:
    kind = pace(result, base)
    if kind == "unknown" or base is None or base.latency_ns is None or result.latency_ns is None:
        return _quantity(wording.NONE)
    quotient = base.latency_ns.p50 / result.latency_ns.p50
    low = base.latency_ns.ci95[0] / result.latency_ns.ci95[1]
    high = base.latency_ns.ci95[1] / result.latency_ns.ci95[0]
    words = {"faster": "faster", "slower": "slower", "level": "not resolved"}[kind]
    shown = quotient if kind != "slower" else 1 / quotient
    interval = (low, high) if kind != "slower" else (1 / high, 1 / low)
    text = f"{wording.ratio(interval[0])[:-1]}\N{EN DASH}{wording.ratio(interval[1])}"
    css = kind if kind != "level" else "muted"
    value = join(f"{wording.ratio(shown)} {words}", emulated_mark(result.emulated))
    return el("td", el("span", value, class_=css), _sub(text), class_="n")


def _metric_cell(result: BoardResult, name: str, units: Mapping[str, str]) -> Markup:
    metric = result.metrics.get(name)
    if metric is None:
        return _quantity(wording.NONE)
    unit = wording.metric_unit(name, dict(units))
    difference, interval = wording.metric_difference(metric, unit), wording.metric_interval(metric, unit)
    outcome = pill(metric.outcome) if metric.outcome != "none" else None
    return el(
        "td",
        join(format_metric(metric.value, unit), emulated_mark(result.emulated)),
        _sub(difference) if difference else None,
        _sub(interval) if interval else None,
        _sub(outcome) if outcome else None,
        _sub(el("abbr", result.accuracy_from, title=wording.ACCURACY_FROM[result.accuracy_from]))
        if result.accuracy_from != "device"
        else None,
        class_="n",
    )


def all_table(data: ReportData, board: BoardSection) -> Markup:
    """Every candidate measured on the board, by number."""
    metric = next((m for m in data.metrics if any(m in e.result.metrics for e in board.candidates)), None)
    heads = ["Trial", "Recipe", "Latency", "95 % interval"]
    heads += [wording.metric_name(metric), "Against float"] if metric else []
    heads += ["Size", "Measurement", "Constraints", "Remark"]
    numeric = {"Latency", "95 % interval", "Size", "Against float", metric and wording.metric_name(metric)}
    rows = [_all_row(entry, metric, data.units) for entry in board.candidates]
    table = el(
        "table",
        el("caption", f"All candidates measured on {board.name}.", badge(board.emulated, small=True)),
        el("thead", el("tr", *(el("th", h, scope="col", class_="n" if h in numeric else None) for h in heads))),
        el("tbody", *rows),
    )
    return scroll(table, f"All candidates of {board.name}")


def _all_row(entry: Entry, metric: str | None, units: Mapping[str, str]) -> Markup:
    result = entry.result
    latency = result.latency_ns
    cells: list[Markup] = [
        el("td", entry.label, class_="label"),
        _quantity(wording.latency(latency.p50 if latency else None), None, result.emulated and latency is not None),
        _quantity(wording.latency_interval(*latency.ci95) if latency else wording.NONE),
    ]
    if metric is not None:
        found = result.metrics.get(metric)
        unit = wording.metric_unit(metric, dict(units))
        value = format_metric(found.value, unit) if found else wording.NONE
        cells += [
            _quantity(value, None, result.emulated and found is not None),
            _quantity((wording.metric_difference(found, unit) if found else None) or wording.NONE),
        ]
    constraints = [
        pill(f"{name} {outcome}", outcome) for name, outcome in result.constraints.items() if outcome != "none"
    ]
    remark = "; ".join(result.reasons) or (f"pick {entry.rank}" if entry.rank else result.reason)
    return el(
        "tr",
        el("th", wording.trial_name(entry.trial), badge(result.emulated, small=True), scope="row"),
        *cells,
        _quantity(wording.size(result.artifact.size_bytes)),
        el("td", pill(result.verdict)),
        el("td", *(join(c, " ") for c in constraints)),
        el("td", remark),
        class_="first" if entry.rank == 1 else None,
    )


def _quantity(value: str, below: str | None = None, emulated: bool = False) -> Markup:
    return el("td", join(value, emulated_mark(emulated)), _sub(below) if below else None, class_="n")


def _sub(content: Child) -> Markup:
    return el("span", content, class_="sub")


def _smaller(result: BoardResult, base: BoardResult | None) -> str | None:
    if base is None or not result.artifact.size_bytes or not base.artifact.size_bytes:
        return None
    quotient = base.artifact.size_bytes / result.artifact.size_bytes
    return f"{wording.ratio(quotient)} smaller" if quotient >= 1 else f"{wording.ratio(1 / quotient)} larger"
