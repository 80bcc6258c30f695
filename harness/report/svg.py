"""Matplotlib figures as SVG that lives inside an HTML page: themed by CSS, named for screen readers, deterministic."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from harness.report.markup import Markup

# Colours are drawn as these values and replaced by CSS variables, so that a figure follows the page's theme.
INK = "#0b0b01"
MUTED = "#0b0b02"
GRID = "#0b0b03"
ACCENT = "#0b0b04"
FLOAT = "#0b0b05"
GOOD = "#0b0b06"
WARN = "#0b0b07"
BAD = "#0b0b08"
PAPER = "#0b0b09"
SERIES = ("#0b0b11", "#0b0b12", "#0b0b13", "#0b0b14", "#0b0b15", "#0b0b16")

_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--rule",
    ACCENT: "--accent",
    FLOAT: "--float",
    GOOD: "--good",
    WARN: "--warn",
    BAD: "--bad",
    PAPER: "--card",
    **{colour: f"--s{number}" for number, colour in enumerate(SERIES, 1)},
}

_STYLE = {
    "svg.fonttype": "none",  # text stays text: selectable, in the page's font, readable by screen readers
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.width": 0.8,
    "ytick.major.width": 0.8,
    "legend.frameon": False,
}


def figure_svg(name: str, size: tuple[float, float], draw: Callable[[Figure], None], *, title: str) -> Markup:
    """Calls ``draw`` on a new figure of ``size`` inches. ``name`` ([a-z0-9-]) makes ids unique within a page; ``title``
    is the alternative text."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        draw(figure)
        for axes in figure.axes:
            axes.set_facecolor("none")
        buffer = io.StringIO()
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return _inline(buffer.getvalue(), name, title)


def _inline(svg: str, name: str, title: str) -> Markup:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"#0b0b[01][1-9]", lambda match: f"var({_VARIABLES[match[0]]})", svg)
    # The page's own font; Matplotlib writes a list of its fallbacks into every text element.
    svg = re.sub(r"font: ([0-9.]+px|(?:\w+ )?[0-9.]+px) [^;\"]+", r"font: \1 var(--sans)", svg)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (?:width|height)="[^"]*"', "", opening)
    opening = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", opening)
    label = escape(title)
    return Markup(f'{opening} role="img" aria-label="{label}"><title>{label}</title>{rest}')
