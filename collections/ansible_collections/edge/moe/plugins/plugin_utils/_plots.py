# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plots of a run as SVG that stands inside a page: the page's own font, and its colours in light and dark.

Private to this collection: it may change in any release. It needs matplotlib, which only a controller may have.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    MISSING: ImportError | None = error
else:
    MISSING = None

# matplotlib wants colours that it knows, so each variable of the page's style stands in for a colour nobody would draw.
_NAMES = ("ink", "muted", "rule", "ground", "s1", "s2", "s3", "s4", "s5", "s6", "q1", "q2", "q3", "q4", "q5", "q6")
COLOUR = {name: f"#0e0e{number:02x}" for number, name in enumerate(_NAMES, 16)}
_VARIABLE = {colour: f"var(--{name})" for name, colour in COLOUR.items()}
SERIES = [COLOUR[f"s{number}"] for number in range(1, 7)]
RAMP = [COLOUR[f"q{number}"] for number in range(1, 7)]
MARKERS = "osD^vP"
# Units of the drawing; the page scales it, so that text keeps its size beside the page's.
WIDTH, ROW, FRAME = 400, 26, 64
MOST_CLOCKS, LONGEST_NAME = len(RAMP), 22
_STYLE: Any = {  # matplotlib types the keys one by one
    "svg.fonttype": "none",
    "svg.hashsalt": "edge.moe",
    "text.parse_math": False,
    "font.size": 10,
    "axes.edgecolor": COLOUR["rule"],
    "axes.facecolor": "none",
    "axes.labelcolor": COLOUR["muted"],
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "grid.color": COLOUR["rule"],
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "legend.labelcolor": COLOUR["ink"],
    "text.color": COLOUR["ink"],
    "xtick.color": COLOUR["rule"],
    "xtick.labelcolor": COLOUR["muted"],
    "ytick.color": COLOUR["rule"],
    "ytick.labelcolor": COLOUR["muted"],
}


def _short(name: str) -> str:
    line = " ".join("".join(character if character.isprintable() else " " for character in name).split())
    return line if len(line) <= LONGEST_NAME else line[: LONGEST_NAME - 1] + "…"


def inline(svg: str, prefix: str) -> str:
    """SVG of matplotlib's as a part of a page: no name space, no style of its own, ids that no other plot has."""
    root = ElementTree.fromstring(svg)  # noqa: S314 - matplotlib has just written it
    link = "{http://www.w3.org/1999/xlink}href"
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for child in [child for child in element if child.tag.endswith("}style")]:
            element.remove(child)
        if link in element.attrib:
            element.set("href", f"#{prefix}-" + element.attrib.pop(link)[1:])
        if element.tag in ("path", "clipPath") and "id" in element.attrib:
            element.set("id", f"{prefix}-{element.get('id')}")
        else:
            element.attrib.pop("id", None)
        if "clip-path" in element.attrib:
            element.set("clip-path", element.attrib["clip-path"].replace("url(#", f"url(#{prefix}-"))
        if "style" in element.attrib:
            declarations = (part.strip() for part in element.attrib["style"].split(";"))
            kept = "; ".join(part for part in declarations if part and not part.startswith("font-family"))
            for colour, variable in _VARIABLE.items():
                kept = kept.replace(colour, variable)
            element.set("style", kept)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    return ElementTree.tostring(root, encoding="unicode")


class _Drawing:
    def __init__(self, height: float, rows: int = 1) -> None:
        self.figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        FigureCanvasSVG(self.figure)
        self.axes: list[Axes] = list(self.figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])

    def svg(self, prefix: str) -> str:
        stream = io.StringIO()
        # what it would say of itself holds addresses and the time
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with warnings.catch_warnings():
            # Names may be in any script: the page's fonts have the glyphs, matplotlib only measures without them.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            self.figure.savefig(stream, format="svg", metadata=nothing, transparent=True)
        return inline(stream.getvalue(), prefix)


@contextmanager
def _drawing(height: float, rows: int = 1) -> Iterator[_Drawing]:
    # a user's own matplotlibrc must not show
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield _Drawing(height, rows)


def _legend(drawing: _Drawing) -> None:
    """Above the axes, in as many columns as its names leave room for."""
    names = [str(label) for label in drawing.axes[0].get_legend_handles_labels()[1]]
    longest = max(map(len, names), default=1)
    columns = max(1, min(len(names), 64 // (longest + 5)))
    drawing.figure.legend(loc="outside upper left", ncols=columns, handlelength=1.3, handleheight=1, columnspacing=1.4)


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [_short(name) for name in names], color=COLOUR["ink"])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def stages(variants: Sequence[dict[str, Any]], reference: str | None, prefix: str) -> str | None:
    """Decode speed of each variant, with the interval of its ratio to the reference."""
    shown = [row for row in variants if row["decode"]]
    if not shown:
        return None
    base = next((row["decode"]["mean"] for row in shown if row["name"] == reference), None)
    with _drawing(FRAME + ROW * len(shown)) as drawing:
        (axes,) = drawing.axes
        means = [row["decode"]["mean"] for row in shown]
        _rows(axes, [row["name"] for row in shown])
        colours = [COLOUR["s6"] if row["name"] == reference else COLOUR["s1"] for row in shown]
        axes.barh(range(len(shown)), means, height=0.58, color=colours)
        far = reach = max(means)
        for place, row in enumerate(shown):
            ratio, end = row["ratio"], row["decode"]["mean"]
            text = f"{end:.2f}"
            if ratio and base and row["name"] != reference:
                text += f" ({ratio['value']:.2f}×)"
                if ratio["low"] is not None:
                    low, whole = base * ratio["low"], base * ratio["high"]
                    high = min(whole, far * 1.5)
                    axes.hlines(place, low, high, color=COLOUR["ink"], linewidth=1.4)
                    # An interval that goes on beyond the drawing has no end there.
                    ends = [low, high] if high == whole else [low]
                    axes.vlines(ends, place - 0.12, place + 0.12, color=COLOUR["ink"], linewidth=1.4)
                    end = max(end, high)
                    reach = max(reach, end)
            axes.annotate(text, (end, place), (7, 0), textcoords="offset points", va="center")
        axes.set_xlim(0, reach * 1.3)
        axes.set_xlabel("decode, tokens/s")
        return drawing.svg(prefix)


def clocks(variants: Sequence[dict[str, Any]], prefix: str) -> str | None:
    """Share of the samples that the GPU spent at each clock."""
    shown = [row for row in variants if row["clocks"] and row["clocks"]["shares"]]
    if not shown:
        return None
    weight: dict[int, float] = {}
    for row in shown:
        for hz, share in row["clocks"]["shares"].items():
            weight[hz] = weight.get(hz, 0.0) + share
    # A governor that wanders over a dozen steps: the commonest ones, and the rest as one.
    steps = sorted(sorted(weight, key=lambda hz: -weight[hz])[:MOST_CLOCKS])
    ramp = {hz: RAMP[round(place * (len(RAMP) - 1) / max(1, len(steps) - 1))] for place, hz in enumerate(steps)}
    with _drawing(FRAME + 22 + ROW * len(shown)) as drawing:
        (axes,) = drawing.axes
        _rows(axes, [row["name"] for row in shown])
        left = [0.0] * len(shown)
        for hz in steps:
            shares = [row["clocks"]["shares"].get(hz, 0.0) * 100 for row in shown]
            axes.barh(range(len(shown)), shares, left=left, height=0.58, color=ramp[hz], label=f"{hz / 1e6:.0f} MHz")
            left = [sum(pair) for pair in zip(left, shares, strict=True)]
        rest = [max(0.0, 100 - value) for value in left]
        if max(rest) > 1:
            axes.barh(range(len(shown)), rest, left=left, height=0.58, color=COLOUR["rule"], label="other")
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the samples while requests ran, %")
        _legend(drawing)
        return drawing.svg(prefix)


def line(analysis: dict[str, Any], prefix: str) -> str | None:
    """Decode time of each request over what it read, with the line through them or those of the variants."""
    shown = [row for row in analysis["variants"] if row["points"]]
    if not shown:
        return None
    with _drawing(290) as drawing:
        (axes,) = drawing.axes
        furthest = max(point[0] for row in shown for point in row["points"])
        shared = analysis["line"]
        if shared:
            _fitted(axes, shared, furthest, COLOUR["ink"], _ceiling("all", shared))
        for place, row in enumerate(shown):
            colour, own = SERIES[place % len(SERIES)], None if shared else row["line"]
            reads, times = zip(*row["points"], strict=True)
            axes.plot(
                reads, times, MARKERS[place % len(MARKERS)], color=colour, markersize=4, alpha=0.75,
                markeredgewidth=0, label=_ceiling(row["name"], own),
            )  # fmt: skip
            if own:
                _fitted(axes, own, max(reads), colour)
        axes.set_xlim(0, furthest * 1.06 or 1)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        axes.set_xlabel("MiB read for a token")
        axes.set_ylabel("ms for a token")
        _legend(drawing)
        return drawing.svg(prefix)


def _fitted(axes: Axes, found: dict[str, Any], furthest: float, colour: str, label: str | None = None) -> None:
    """From no reads at all, where a line stands for the ceiling, to the furthest point that it was fitted to."""
    ends = [0.0, furthest]
    times = [found["fixed_ms"] + found["ms_per_mib"] * read for read in ends]
    axes.plot(ends, times, color=colour, linewidth=1.2, label=label)
    if found["ceiling_tokens_per_s"]:
        axes.plot([0], [found["fixed_ms"]], "o", color=colour, markersize=7, fillstyle="none", clip_on=False)


def _ceiling(name: str, found: dict[str, Any] | None) -> str:
    known = found and found["ceiling_tokens_per_s"]
    return f"{_short(name)}: {known:.1f}" if known else _short(name)


def load(rows: Sequence[dict[str, Any]], prefix: str) -> str | None:
    """Throughput and mean latency over requests at once."""
    by_variant: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["throughput_tokens_per_s"] is not None:
            by_variant.setdefault(row["variant"], []).append(row)
    if not by_variant:
        return None
    with _drawing(300, rows=2) as drawing:
        upper, lower = drawing.axes
        for place, (name, own) in enumerate(by_variant.items()):
            style: dict[str, Any] = {
                "color": SERIES[place % len(SERIES)],
                "marker": MARKERS[place % len(MARKERS)],
                "markersize": 4.5,
            }
            at_once = [row["at_once"] for row in own]
            upper.plot(at_once, [row["throughput_tokens_per_s"] for row in own], label=_short(name), **style)
            timed = [(row["at_once"], row["latency_ms"]["mean"] / 1000) for row in own if row["latency_ms"]]
            lower.plot([point[0] for point in timed], [point[1] for point in timed], **style)
        upper.set_ylabel("all, tokens/s")
        lower.set_ylabel("one answer, s")
        lower.set_xlabel("requests at once")
        lower.set_xticks(sorted({row["at_once"] for own in by_variant.values() for row in own})[:12])
        for axes in drawing.axes:
            axes.set_ylim(bottom=0)
            axes.grid(axis="y")
        _legend(drawing)
        return drawing.svg(prefix)


def history(rows: Sequence[dict[str, Any]], prefix: str) -> str | None:
    """Decode speed of the results so far, served and reference; a result that did not pass is hollow."""
    shown = [row for row in rows if row["served"] is not None]
    if len(shown) < 2:
        return None
    with _drawing(230) as drawing:
        (axes,) = drawing.axes
        places = range(len(shown))
        base = [(place, row["reference"]) for place, row in enumerate(shown) if row["reference"] is not None]
        axes.plot(*zip(*base, strict=True), color=COLOUR["s6"], linewidth=1.2, label="reference") if base else None
        axes.plot(places, [row["served"] for row in shown], color=COLOUR["s1"], linewidth=1.4, label="served")
        for passed, filled in ((True, COLOUR["s1"]), (False, COLOUR["ground"])):
            own = [place for place in places if (shown[place]["verdict"] == "passed") is passed]
            axes.plot(
                own, [shown[place]["served"] for place in own], "o", color=COLOUR["s1"], markerfacecolor=filled,
                markersize=5.5, label=None if passed or not own else "served, not passed",
            )  # fmt: skip
        # results, not days, are evenly spaced: several of one day would lie on one another
        ticks = [int(tick) for tick in MaxNLocator(5, integer=True).tick_values(0, len(shown) - 1)]
        ticks = [tick for tick in ticks if 0 <= tick < len(shown)]
        axes.set_xticks(ticks, [shown[tick]["started"][:10] for tick in ticks])
        axes.set_ylim(bottom=0)
        axes.margins(x=0.06)
        axes.grid(axis="y")
        axes.set_ylabel("decode, tokens/s")
        _legend(drawing)
        return drawing.svg(prefix)
