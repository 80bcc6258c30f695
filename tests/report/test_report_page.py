"""The HTML report: self-contained, escaped, stamped, complete, and readable by a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic_run import CASES, TWO_BOARDS, Builder, Case, finished_run, header

from harness.cli.report import command
from harness.ledger import events as ev
from harness.ledger.run_directory import RunDirectory
from harness.ledger.samples import SampleBlock
from harness.recipes.recipe import Recipe
from harness.report.build import write_report, write_summary
from harness.report.load import load_report_data
from harness.report.page import render_html

VOID = {"meta", "br", "hr", "link", "img"}
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;$\\frac{1}{2}$"


class Page(HTMLParser):
    """Elements with their attributes and text; notes tags that do not close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.badly_nested: list[str] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.stack or self.stack.pop() != tag:
            self.badly_nested.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" not in self.stack:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))


def html_of(run: RunDirectory) -> str:
    return render_html(load_report_data(run))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return finished_run(tmp_path_factory.mktemp("run") / "r")


@pytest.fixture(scope="module")
def html(run: RunDirectory) -> str:
    return html_of(run)


def test_nothing_is_fetched_and_nothing_runs(html: str) -> None:
    page = Page(html)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "iframe", "object", "embed", "link", "img", "image", "form", "base"}
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "xlink:href", "action", "data"):
                assert value is not None
                assert value.startswith("#"), (tag, name, value)
    assert not re.search(r"url\((?!#)", html)
    assert "@import" not in html
    assert "http://" not in html
    assert "https://" not in html


def test_it_is_well_formed_with_unique_ids_that_resolve(html: str) -> None:
    page = Page(html)
    assert page.badly_nested == []
    assert page.stack == []
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    targets = [a["href"] for _, a in page.elements if "href" in a] + re.findall(r"url\((#[^)]+)\)", html)
    assert targets
    assert {t[1:] for t in targets if t} <= set(ids)
    labelled = [a["aria-labelledby"] for _, a in page.elements if "aria-labelledby" in a]
    assert set(labelled) <= set(ids)


def test_figures_have_alternative_text_and_tables_have_captions_and_scopes(html: str) -> None:
    page = Page(html)
    figures = [a for tag, a in page.elements if tag == "svg"]
    assert len(figures) == 8
    assert all(a.get("role") == "img" and a.get("aria-label") for a in figures)
    tables = sum(tag == "table" for tag, _ in page.elements)
    assert tables == sum(tag == "caption" for tag, _ in page.elements)
    assert all("scope" in a for tag, a in page.elements if tag == "th")
    assert dict(page.elements)["html"]["lang"] == "en"


def test_the_numbers_are_those_of_the_run(run: RunDirectory, html: str) -> None:
    text = Page(html).text
    for name in TWO_BOARDS:
        first = run.state.picks[name][0]
        best = run.state.trials[first].boards[name].best
        base = run.state.trials[0].boards[name].best
        assert best is not None
        assert best.latency_ns is not None
        assert base is not None
        assert base.latency_ns is not None
        assert f"ship {first:04d}: {base.latency_ns.p50 / best.latency_ns.p50:.1f}× faster than float on {name}" in text
        for number in run.state.picks[name]:
            latency = run.state.trials[number].boards[name].final
            assert latency is not None
            assert latency.latency_ns is not None
            assert f"{latency.latency_ns.p50 / 1e3:.0f} µs" in text
    assert "lowest latency" in text
    assert "does not load" in text
    assert "NOT_IMPLEMENTED: Could not find" in text
    assert "makes the same artifact as 0002" in text
    assert "cannot enter the top 3" in text
    assert run.state.trials[2].recipe_digest in text
    assert "hw-" in text
    assert "1.22.0" in text


def section(html: str, number: int) -> str:
    return html.split('<section class="card"')[number]


def test_everything_from_an_emulated_board_is_stamped_and_nothing_else(html: str) -> None:
    local, emulated = section(html, 1), section(html, 2)
    assert 'id="board-1">local' in local
    assert "emulated board" not in local
    assert "EMULATED" not in local
    assert 'id="board-2">ryzen-ai' in emulated
    for figure in re.findall(r"<figure>.*?</figure>", emulated, re.DOTALL):
        assert "EMULATED" in figure
        assert "emulated" in str(Page(figure).elements[1][1]["aria-label"])
    headings = re.findall(r"<(h[23]|summary|caption)[ >].*?</\1>", emulated, re.DOTALL)
    assert len(headings) >= 8
    for match in re.finditer(r"<(?:h2|h3|caption)\b.*?</(?:h2|h3|caption)>", emulated, re.DOTALL):
        assert "EMULATED" in match[0], match[0]
    rows = [r for r in re.findall(r"<tr.*?</tr>", emulated, re.DOTALL) if " µs" in r or " ms" in r]
    assert len(rows) == 4 + 8
    for row in rows:
        assert "EMULATED" in row
        assert "from an emulated board" in row
    verdicts = re.findall(r'<li class="verdict.*?</li>', html, re.DOTALL)
    assert ["EMULATED" in v for v in verdicts] == [False, True]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    boards = {f"b{EVIL}": (True, 1e6), "b-2": (False, 1e6)}
    cases = [
        CASES[0],
        Case(Recipe(exclude_nodes=(EVIL,)), 0.4),
        Case(Recipe(exclude_nodes=("x",)), ends="failed", cause=EVIL, message=EVIL),
        Case(Recipe(exclude_nodes=("y",)), ends="pruned", cause="latency", message=EVIL),
    ]
    bad = header(
        model={"digest": EVIL, "path": f"/x/{EVIL}.onnx", "parameters": 1, "opset": EVIL},
        plan={"objective": EVIL, "boards": [EVIL], EVIL: EVIL},
        metric=[EVIL],
        versions={EVIL: EVIL},
    )
    builder = Builder(tmp_path / "r", boards, cases=cases, header=bad)
    builder.search()
    builder.run.record(ev.notice(EVIL))
    run = builder.finish()
    candidates = json.loads((run.path / "candidates.json").read_text())
    for candidate in candidates["candidates"]:
        for board in candidate["boards"].values():
            board |= {"reason": EVIL, "verdict": "suspect", "reasons": [EVIL]}
            board["metrics"] = {EVIL: board["metrics"]["top1"]}
            board["constraints"] = {EVIL: "undecided"}
            board["placement"] = {"nodes": {EVIL: [EVIL]}, "evidence": [EVIL]}
    run.write_candidates(candidates)
    html = html_of(run)
    page = Page(html)
    assert {tag for tag, _ in page.elements} & {"script", "img"} == set()
    assert page.badly_nested == []
    assert page.text.count("<script>alert(1)</script>") > 20
    assert "$\\frac{1}{2}$" in page.text, "nor does Matplotlib read it as mathematics"
    assert all(not name.startswith("on") for _, a in page.elements for name in a)


def test_the_same_run_gives_the_same_bytes(run: RunDirectory, html: str) -> None:
    assert html_of(RunDirectory.open(run.path)) == html


@pytest.mark.parametrize("trials", [0, 1, 3, 9])
def test_an_unfinished_run_has_a_report_at_any_time(tmp_path: Path, trials: int) -> None:
    builder = Builder(tmp_path / "r", {"local": (False, 1e6)})
    for number, case in enumerate(CASES[:trials]):
        builder.trial(number, case)
    builder.run.record(ev.proposed(trials, Recipe().to_dict(), "in hand"))
    text = Page(html_of(RunDirectory.open(tmp_path / "r"))).text
    assert "so far: nothing to ship on local" in text
    assert "unfinished: figures so far" in text
    assert "1 under way" in text


def test_a_run_cut_anywhere_has_a_report(tmp_path: Path, run: RunDirectory) -> None:
    """Each ledger prefix, beside the files of the whole run."""
    lines = (run.path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    for cut in (1, 2, 3, *range(4, len(lines), 25)):
        path = tmp_path / str(cut)
        path.mkdir()
        (path / "ledger.jsonl").write_bytes(b"".join(lines[:cut]))
        assert Page(html_of(RunDirectory.open(path))).badly_nested == []


def test_damaged_and_missing_files_leave_a_gap_not_an_error(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r", boards={"local": (False, 1e6)})
    (run.path / "summary.json").write_text("{")
    (run.path / "0002" / "measurement.json").unlink()
    (run.path / "0003" / "measurement.json").write_text("nonsense")
    (run.path / "0002" / "samples.parquet").write_bytes(b"PAR1 no")
    (run.path / "candidates.json").unlink()
    text = Page(html_of(run)).text
    assert f"ship {run.state.picks['local'][0]:04d}: " in text
    assert "Latency distributions" in text


def test_boards_without_result_or_float(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "r", {"local": (False, 1e6)}, cases=[CASES[2]])
    builder.search()
    builder.run.record(ev.board("npu", {"emulated": True, "cpu_model": "x"}))
    run = builder.finish(picks={"local": [0], "npu": []})
    text = Page(html_of(run)).text
    assert "nothing to ship on npu (emulated): no candidate was measured there" in text
    assert "where float has no measurement to compare with" in text
    assert "No candidate has a result on this board." in text


def test_a_candidate_without_latency_and_metrics(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r", boards={"local": (False, 1e6)})
    value = json.loads((run.path / "candidates.json").read_text())
    for candidate in value["candidates"]:
        board = candidate["boards"]["local"]
        board |= {"metrics": {}, "peak_memory_bytes": None, "load_ns": None, "first_ns": None}
        if candidate["trial"] != 0:
            board |= {"latency_ns": None, "verdict": "invalid", "reasons": ["the board rebooted"]}
    run.write_candidates(value)
    text = Page(html_of(run)).text
    assert "the board rebooted" in text
    assert "not measured" in text
    assert "accuracy not evaluated" in text


def test_many_samples_do_not_swell_the_page(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r", boards={"local": (False, 1e6)})
    before = len(html_of(run))
    many = np.random.default_rng(0).normal(1e6, 1e4, 50_000).astype(np.int64)
    for number in (0, *run.state.picks["local"]):
        run.write_samples(number, "local", "final", [SampleBlock("candidate", 1, many)], emulated=False)
    assert len(html_of(run)) < 1.3 * before


def test_summary_with_verdicts_is_written(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r")
    write_summary(run, notices=["a notice"])
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["verdict"]["local"].startswith("ship 0002: ")
    assert "(emulated)" in summary["verdict"]["ryzen-ai"]
    assert "a notice" in summary["notices"]
    assert "a notice" in Page(html_of(run)).text


def test_the_command(run: RunDirectory, tmp_path: Path, html: str) -> None:
    out = tmp_path / "r.html"
    result = CliRunner().invoke(command, [str(run.path), "--out", str(out)], catch_exceptions=False)
    assert out.read_text(encoding="utf-8") == html
    assert "ship 0002" in result.output
    value = CliRunner().invoke(command, [str(run.path), "--out", str(out), "--json"], catch_exceptions=False)
    assert json.loads(value.output)["summary"]["trials"]["done"] == 8


def browse(page: Path, tmp_path: Path) -> tuple[str, list[str], list[str]]:
    """The page as a real browser sees it: DOM, console messages, and what the page itself asked the network for."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    log = tmp_path / "net.json"
    arguments = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr",
        f"--log-net-log={log}",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(arguments, capture_output=True, timeout=120, check=True)
    console = re.findall(r"CONSOLE[^\"]*\"(.*?)\", source:", done.stderr.decode("utf-8", "replace"))
    content = log.read_text(encoding="utf-8").rstrip()
    events: list[dict[str, Any]] = json.loads(content if content.endswith("}") else content.rstrip(",") + "]}")[
        "events"
    ]
    # A page in a file has an opaque origin, "null"; Chromium's own requests have none, or "not an origin".
    asked = [
        e["params"]["url"] for e in events if e.get("params", {}).get("initiator") == "null" and "url" in e["params"]
    ]
    return done.stdout.decode("utf-8"), console, [url for url in asked if not url.startswith("file:")]


@pytest.mark.slow
def test_a_real_browser_shows_it_without_network_or_console_errors(run: RunDirectory, tmp_path: Path) -> None:
    control = tmp_path / "control.html"
    control.write_text('<img src="http://example.invalid/a.png"><script>console.error("seen")</script>')
    (tmp_path / "a").mkdir()
    _, console, asked = browse(control, tmp_path / "a")
    assert console[0] == "seen"
    assert "http://example.invalid/a.png" in asked, "the check itself works"

    (tmp_path / "b").mkdir()
    dom, console, asked = browse(write_report(run), tmp_path / "b")
    assert (console, asked) == ([], [])
    assert dom.count("<svg") == 8
    assert "ship 0002" in dom


def test_a_baseline_that_is_no_candidate_is_still_compared_with(tmp_path: Path) -> None:
    """With ``--filter`` of the user's own, float may be missing among the candidates."""
    run = finished_run(tmp_path / "r", boards={"local": (False, 1e6)})
    value = json.loads((run.path / "candidates.json").read_text())
    value["candidates"] = [c for c in value["candidates"] if c["trial"] != 0]
    run.write_candidates(value)
    text = Page(html_of(run)).text
    assert "faster than float on local" in text
    assert "0000 (float)" in text


def test_the_canary_figure_shows_the_blocks_and_not_the_warm_up(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r", boards={"local": (False, 1e6)}, cases=CASES[:2])
    (board,) = load_report_data(run).boards
    content = [run.read_measurement(n) for n in (0, 1)]
    expected = [
        block["median_ns"]
        for phase in ("search", "final")
        for measurement in content
        if measurement is not None and measurement["boards"]["local"][phase]
        for block in measurement["boards"]["local"][phase]["blocks"]
        if block["target"] == "canary" and block["kind"] == "block"
    ]
    assert [b.median_ns for b in board.canary] == expected
    assert max(expected) < 1.2 * min(expected), "a warm-up block would stand out by 30 %"
