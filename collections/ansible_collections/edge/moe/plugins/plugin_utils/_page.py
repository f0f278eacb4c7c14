# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet's results as one page: tables that Markdown and HTML show alike, and plots where they can be drawn.

Private to this collection: it may change in any release.

Every text of a result file is somebody else's (a model's name, what a model wrote, a journal's line): HTML is escaped
by the template engine, Markdown by `escaped`, and nothing is put into an attribute.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from ansible_collections.edge.moe.plugins.module_utils import _analysis, _report
from ansible_collections.edge.moe.plugins.module_utils._analysis import entries, figure, mapping

PAGE, MARKDOWN = "report.html", "report.md"
# A result with every text of 24 requests is a few hundred KiB.
FILE_LIMIT = 64 * 1024 * 1024
# The newest of each board; older ones stay where they are.
HISTORY_LIMIT, RUNS_LIMIT = 60, 2
LONGEST_TEXT = 600
WITHOUT_PLOTS = (
    "matplotlib is not installed where ansible-playbook runs ({error}): "
    "pip install 'matplotlib>=3.9' into that Python and run edge.moe.report again"
)


class PageError(Exception):
    """What was asked for cannot be shown: what was seen, and what to do."""


class Cell(NamedTuple):
    """One field of a table. Tone is good, bad or quiet; `target` is the section that it leads to."""

    text: str
    tone: str = ""
    target: str = ""


@dataclass
class Table:
    """Columns whose label starts with > hold numbers."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""

    def labels(self) -> list[tuple[str, bool]]:
        return [(label.removeprefix(">"), label.startswith(">")) for label in self.columns]


@dataclass
class Plot:
    title: str
    svg: str
    caption: str


@dataclass
class Section:
    title: str
    anchor: str
    facts: list[tuple[str, Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


@dataclass
class Board:
    """What the files of one board hold; `results` and `runs` are oldest first."""

    host: str
    results: list[dict[str, Any]]
    runs: list[dict[str, Any]]


# Files


def read_record(path: Path) -> dict[str, Any]:
    """One result file, bounded."""
    try:
        with path.open("rb") as stream:
            content = stream.read(FILE_LIMIT + 1)
    except OSError as error:
        raise PageError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > FILE_LIMIT:
        raise PageError(f"{path} has more than {FILE_LIMIT >> 20} MiB: it is no result file")
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        raise PageError(f"{path} is not JSON: measure again, or remove it") from None
    if not isinstance(record, dict):
        raise PageError(f"{path} holds no result: measure again, or remove it")
    return record


def _records(paths: Iterable[Path], unreadable: list[str]) -> list[dict[str, Any]]:
    found = []
    for path in paths:
        try:
            found.append(read_record(path))
        except PageError as error:
            unreadable.append(str(error))
    return found


def read_boards(results: Path, hosts: Sequence[str]) -> tuple[list[Board], list[str]]:
    """The boards of `hosts` (all, where empty) that have results, and a line for each file that cannot be read."""
    unreadable: list[str] = []
    known = {path.stem for path in results.glob("*.json") if not path.name.startswith("reference-")}
    known |= {path.name for folder in ("history", "bench") for path in results.glob(f"{folder}/*") if path.is_dir()}
    boards = []
    for host in sorted(known & set(hosts) if hosts else known):
        latest = results / f"{host}.json"
        kept = sorted(results.glob(f"history/{_literal(host)}/*.json"))[-HISTORY_LIMIT:]
        records = _records([*kept, *([latest] if latest.exists() else [])], unreadable)
        # the latest is in its history as well
        by_time = {_analysis.started(record): record for record in records if "served" in record}
        runs = _records(sorted(results.glob(f"bench/{_literal(host)}/*.json"))[-RUNS_LIMIT:], unreadable)
        if by_time or runs:
            boards.append(Board(host, [by_time[when] for when in sorted(by_time)], sorted(runs, key=_analysis.started)))
    return boards, unreadable


def _literal(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


# Fields


def plain(value: Any) -> str:
    """A text of a file on one line, without what no page can show."""
    text = str(value).encode("utf-8", errors="replace").decode()
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 1] + "…"


def cell(value: Any, tone: str = "") -> Cell:
    return Cell("–", "quiet") if value is None or value == "" else Cell(plain(value), tone)


def number(value: Any, pattern: str = "{:.2f}", tone: str = "") -> Cell:
    return Cell("–", "quiet") if value is None else Cell(pattern.format(value), tone)


def spread(value: dict[str, Any] | None, pattern: str = "{:.2f}", factor: float = 1.0) -> Cell:
    return number(None if value is None else value["mean"] * factor, pattern)


def interval(ratio: dict[str, Any] | None, digits: int = 2) -> Cell:
    if ratio is None or ratio["low"] is None:
        return number(None)
    return Cell(f"{ratio['low']:.{digits}f} to {ratio['high']:.{digits}f}")


def when(text: str) -> str:
    """2026-11-29T12:00:00Z as 2026-11-29 12:00 UTC."""
    return f"{text[:10]} {text[11:16]} UTC" if len(text) >= 16 and text.endswith("Z") else text or "unknown"


def yes_or_no(value: Any) -> Cell:
    if value is True:
        return Cell("yes", "good")
    return Cell("NO", "bad") if value is False else number(None)


def judged(verdict: str | None) -> Cell:
    return cell(verdict, "good" if verdict == "passed" else "bad")


def _megahertz(value: Any) -> str:
    hz = figure(value)
    return f"{hz / 1e6:.0f}" if hz else "–"


# Sections


def _since(board: Board) -> tuple[Cell, dict[str, Any] | None]:
    """What changed since the result before, in a few words and in full."""
    if len(board.results) < 2:
        return Cell("first result", "quiet"), None
    change = _analysis.compare(board.results[-2], board.results[-1])
    served = next((row for row in change["speeds"] if row["variant"] == "served"), None)
    ratio = served and served["ratio"]
    words = [f"{ratio['value']:.2f}×"] if ratio else []
    changed = [row["what"].removeprefix("plan: ") for row in change["changed"]]
    words.append("changed: " + ", ".join(changed) if changed else "same settings")
    slower = bool(ratio and ratio["high"] is not None and ratio["high"] < 1)
    return cell("; ".join(words), "bad" if slower else ""), change


def _glance(board: Board, anchor: str) -> list[Cell]:
    if not board.results:
        return [Cell(plain(board.host), target=anchor), *[number(None)] * 7, Cell("not verified yet", "quiet")]
    latest = board.results[-1]
    verdict, served = mapping(latest.get("verdict")), mapping(latest.get("served"))
    gpu = mapping(served.get("gpu"))
    return [
        Cell(plain(board.host), target=anchor),
        cell(latest.get("board")),
        cell(latest.get("model")),
        judged(_analysis.verdict_of(latest)),
        number(figure(served.get("decode_tokens_per_s"))),
        number(figure(verdict.get("ratio")), "{:.2f}×"),
        Cell(f"{_megahertz(gpu.get('max_hz_seen'))} → {_megahertz(gpu.get('after_hold_hz'))}"),
        yes_or_no(verdict.get("text_equal")),
        _since(board)[0],
    ]


def _facts(board: Board) -> list[tuple[str, Cell]]:
    record = (board.results or board.runs)[-1]
    said = _analysis.settings(record)
    facts = [
        ("Verdict", judged(_analysis.verdict_of(record))),
        ("Board", cell(said.get("board"))),
        ("L4T", cell(said.get("l4t"))),
        ("Power mode", cell(said.get("power_mode"))),
        ("Model", cell(said.get("model"))),
        ("Release", cell(said.get("release"))),
        ("Plan", cell(_report.plan_line(mapping(record["plan"])) if record.get("plan") else None)),
        ("Measured", cell(when(_analysis.started(record)))),
    ]
    return facts if board.results else facts[1:]


def _failures(board: Board) -> list[Table]:
    if not board.results:
        return []
    failures = entries(mapping(board.results[-1].get("verdict")).get("failures"))
    rows = [[cell(row.get("class"), "bad"), cell(row.get("evidence")), cell(row.get("remedy"))] for row in failures]
    return [Table("What failed", ["Class", "Seen", "What to do"], rows)] if rows else []


def _variants(analysis: dict[str, Any]) -> list[Table]:
    speed, cost, lines, kept = [], [], [], []
    texts = {row["variant"]: row for row in analysis["texts"]}
    for row in analysis["variants"]:
        name, clocks, line, power = cell(row["name"]), row["clocks"], row["line"], row["power"]
        speed.append(
            [
                name,
                cell(row["title"]),
                spread(row["decode"]),
                number(row["ratio"] and row["ratio"]["value"], "{:.2f}×"),
                number(None) if row["name"] == analysis["reference"] else interval(row["ratio"]),
                number(row["decode"] and row["decode"]["cv"], "{:.1%}"),
                spread(row["prefill_ms"], "{:.2f}", 0.001),
                spread(row["ttft"], "{:.2f}", 0.001),
                number(row["decode"] and row["decode"]["n"], "{}"),
                yes_or_no(texts[row["name"]]["equal"]) if row["name"] in texts else number(None),
            ]
        )
        cost.append(
            [
                name,
                number(row["nvme_mib_per_token"], "{:.1f}"),
                number(row["hit_share"], "{:.1%}"),
                number(clocks and clocks["share_at_max"], "{:.1%}"),
                number(clocks and clocks["load"], "{:.1%}"),
                number(power and power["mean_w"]),
                number(row["joules_per_token"]),
                number(power and power["joules_per_token_with_prompts"]),
                number(row["watched"]["max_celsius"], "{:.1f}"),
            ]
        )
        if line:
            lines.append(_line(name, line))
        kept.append([name, *(cell(row["settings"].get(key)) for key in _analysis.VARIANT_SETTINGS)])
    if analysis["line"]:
        lines.append(_line(Cell("all"), analysis["line"]))
    tables = [
        Table(
            "Speed",
            ["Variant", "What it is", ">Decode tok/s", ">Ratio", ">95 % interval", ">CV", ">Prefill s",
             ">First token s", ">Requests", "Text equal"],
            speed,
            f"Means over requests. Ratio: {analysis['method']}.",
        ),
        Table(
            "What it cost",
            ["Variant", ">MiB a token", ">Hits", ">At highest clock", ">GPU load", ">Power W", ">J a token",
             ">with prompts", ">Hottest °C"],
            cost,
            "MiB a token are those of the whole request. J a token is mean power over decode speed.",
        ),
    ]  # fmt: skip
    if lines:
        columns = ["Line through", ">Fixed ms", ">ms for a MiB", ">Ceiling tok/s", ">r²", ">Points"]
        tables.append(Table("Where the time goes", columns, lines, "The ceiling is what reading nothing would leave."))
    if any(row["settings"] for row in analysis["variants"]):
        columns = ["Variant", "Arguments", "Environment", "Clock floor", "Read-ahead KiB"]
        tables.append(Table("Settings of the variants", columns, kept))
    return [table for table in tables if table.rows]


def _line(name: Cell, line: dict[str, Any]) -> list[Cell]:
    return [
        name,
        number(line["fixed_ms"], "{:.0f}"),
        number(line["ms_per_mib"]),
        number(line["ceiling_tokens_per_s"], "{:.1f}"),
        number(line["r2"], "{:.3f}"),
        number(line["points"], "{}"),
    ]


def _runs_tables(analysis: dict[str, Any]) -> list[Table]:
    load = [
        [
            cell(row["variant"]),
            number(row["at_once"], "{}"),
            number(row["throughput_tokens_per_s"]),
            spread(row["latency_ms"], "{:.1f}", 0.001),
            spread(row["ttft_ms"], "{:.1f}", 0.001),
            cell(row["error"], "bad"),
        ]
        for row in analysis["load"]
    ]
    depth = [
        [
            cell(row["variant"]),
            number(row["depth"], "{:,}"),
            spread(row["decode"]),
            spread(row["prefill_ms"], "{:.1f}", 0.001),
            cell(row["error"], "bad"),
        ]
        for row in analysis["depth"]
    ]
    perplexity = [
        [
            cell(row["variant"]),
            number(row["value"], "{:.4f}"),
            number(row["error_margin"], "{:.4f}"),
            number(row["change"], "{:+.2%}"),
            cell(row["error"], "bad"),
        ]
        for row in analysis["perplexity"]
    ]
    texts = [
        [cell(row["variant"]), number(row["different"], "{}"), cell(line)]
        for row in analysis["texts"]
        for line in row["differences"]
    ]
    tables = [
        Table("Under load", ["Variant", ">At once", ">All, tok/s", ">One answer s", ">First token s", "Error"], load),
        Table("At depth", ["Variant", ">Tokens before", ">Decode tok/s", ">Prefill s", "Error"], depth),
        Table("Perplexity", ["Variant", ">Value", ">±", ">Against the reference", "Error"], perplexity),
        Table("Texts that differ from the reference's", ["Variant", ">Differences", "First ones"], texts),
    ]
    return [_without_empty(table) for table in tables if table.rows]


def _without_empty(table: Table) -> Table:
    """Without the column of errors where there is none."""
    if table.columns[-1] == "Error" and all(row[-1].tone == "quiet" for row in table.rows):
        return Table(table.title, table.columns[:-1], [row[:-1] for row in table.rows], table.note)
    return table


def _change(change: dict[str, Any], title: str) -> list[Table]:
    """Tables of a comparison."""
    sides = [f"{side['host'] or 'a board'}, {when(side['started'])}" for side in (change["old"], change["new"])]
    rows = [[cell(row["what"]), cell(row["old"]), cell(row["new"])] for row in change["changed"]]
    verdicts = [change[side]["verdict"] for side in ("old", "new")]
    if any(verdicts):
        rows.insert(0, [Cell("verdict"), *map(judged, verdicts)])
    rows += [[cell(name), cell("measured"), number(None)] for name in change["only_old"]]
    rows += [[cell(name), number(None), cell("measured")] for name in change["only_new"]]
    texts = {row["variant"]: row for row in change["texts"]}
    speeds = [
        [
            cell(row["variant"]),
            number(row["old"]),
            number(row["new"]),
            number(row["ratio"] and row["ratio"]["value"], "{:.3f}×"),
            number(None) if row["same_measurement"] else interval(row["ratio"], digits=3),
            yes_or_no(texts[row["variant"]]["equal"]) if row["variant"] in texts else number(None),
            Cell("kept from then", "quiet") if row["same_measurement"] else Cell(""),
        ]
        for row in change["speeds"]
    ]
    differences = [[cell(row["variant"]), cell(line)] for row in change["texts"] for line in row["differences"]]
    note = f"Texts were not compared: {change['texts_apart']}." if change["texts_apart"] else ""
    tables = [
        Table(f"{title}: what changed", ["What", *sides], rows),
        Table(
            f"{title}: speed",
            ["Variant", ">Then tok/s", ">Now tok/s", ">Ratio", ">95 % interval", "Text equal", ""],
            speeds,
            note,
        ),
        Table(f"{title}: texts that differ", ["Variant", "Where"], differences),
    ]
    return [table for table in tables if table.rows]


def _plots(draw: Any, analysis: dict[str, Any], rows: list[dict[str, Any]], prefix: str) -> list[Plot]:
    variants = analysis["variants"]
    drawn = [
        (
            "Decode speed",
            draw.stages(variants, analysis["reference"], f"{prefix}-stages"),
            "Mean of all requests. The bracket is the 95 % interval of the ratio to the reference (grey).",
        ),
        (
            "GPU clock",
            draw.clocks(variants, f"{prefix}-clocks"),
            "Where the clock stood while requests ran, sampled every 20 ms.",
        ),
        (
            "Where the time of a token goes",
            draw.line(analysis, f"{prefix}-line"),
            "One point a request. Where a line meets the left edge (ring) nothing would be read: the number beside "
            "a name is that ceiling in tokens/s.",
        ),
        (
            "Under load",
            draw.load(analysis["load"], f"{prefix}-load"),
            "Tokens a second of all requests together, and how long one answer takes.",
        ),
        (
            "History",
            draw.history(rows, f"{prefix}-history"),
            "Decode speed of each verification, oldest first. A hollow point did not pass.",
        ),
    ]
    return [Plot(title, svg, caption) for title, svg, caption in drawn if svg]


def _section(board: Board, anchor: str, draw: Any) -> Section:
    """One board: its stages where a bench run has them, else the two sides of its verification."""
    records = [record for record in (board.runs[-1:] + board.results[-1:]) if record]
    analysis = _analysis.analyse(records[0])
    history = _analysis.history(board.results)
    section = Section(plain(board.host), anchor, _facts(board))
    section.notes = [plain(line) for line in analysis["warnings"]]
    if board.runs and board.results:
        verified = _analysis.analyse(board.results[-1])
        section.notes += [f"verification: {plain(line)}" for line in verified["warnings"]]
    if draw is not None:
        section.plots = _plots(draw, analysis, history, anchor)
    section.tables = [*_failures(board), *_variants(analysis), *_runs_tables(analysis)]
    _words, change = _since(board)
    if change:
        section.tables += _change(change, "Since the last verification")
    if len(board.runs) > 1:
        section.tables += _change(_analysis.compare(*board.runs[-2:]), "Since the last run")
    if len(history) > 1:
        rows = [
            [cell(when(row["started"])), judged(row["verdict"]), number(row["served"]), number(row["reference"]),
             cell(row["release"]), cell(row["model"])]
            for row in reversed(history)
        ]  # fmt: skip
        columns = ["Measured", "Verdict", ">Decode tok/s", ">Reference tok/s", "Release", "Model"]
        section.tables.append(Table("History", columns, rows, "Medians over requests, as the verdict takes them."))
    return section


def sections(boards: Sequence[Board], compared: Sequence[dict[str, Any]], draw: Any = None) -> list[Section]:
    """At a glance, two runs compared if asked for, then each board. `draw` is the module of plots, or None."""
    anchors = {board.host: f"board-{place}" for place, board in enumerate(boards, 1)}
    glance = Table(
        "",
        ["Board", "Hardware", "Model", "Verdict", ">Decode tok/s", ">Over stock mmap", ">GPU MHz, then idle",
         "Text equal", "Since the last one"],
        [_glance(board, anchors[board.host]) for board in boards],
        "Speeds are medians over requests, as the verdict takes them.",
    )  # fmt: skip
    found = [Section("At a glance", "glance", tables=[glance])]
    if compared:
        change = _analysis.compare(*compared)
        found.append(Section("Two runs compared", "compared", tables=_change(change, "From the first to the second")))
    return [*found, *(_section(board, anchors[board.host], draw) for board in boards)]


# Two ways to show them


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in a table's field too."""
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{character}" if character in "\\`*[]|" else character for character in text)


def markdown(content: Sequence[Section], title: str, summary: str) -> str:
    """The tables alone, for a terminal, a wiki or a pull request."""
    lines = [f"# {title}", "", escaped(summary)]
    for section in content:
        lines += ["", f"## {escaped(section.title)}"]
        if section.facts:
            lines += ["", *(f"- {name}: {escaped(fact.text)}" for name, fact in section.facts)]
        if section.notes:
            lines += ["", "Before believing the figures:", "", *(f"- {escaped(note)}" for note in section.notes)]
        for table in section.tables:
            labels = table.labels()
            lines += ["", f"### {escaped(table.title)}"] if table.title else []
            lines += ["", "| " + " | ".join(escaped(label) for label, _number in labels) + " |"]
            lines.append("|" + "|".join("---:" if is_number else "---" for _label, is_number in labels) + "|")
            lines += ["| " + " | ".join(escaped(field.text) for field in row) + " |" for row in table.rows]
            lines += ["", escaped(table.note)] if table.note else []
    return "\n".join(lines) + "\n"


def html(content: Sequence[Section], title: str, summary: str) -> str:
    """One file that needs nothing else."""
    folder = os.path.dirname(os.path.abspath(__file__))
    engine = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return engine.get_template("report.html.j2").render(sections=content, title=title, summary=summary)


def summarised(boards: Sequence[Board]) -> str:
    """How many boards, how many passed, and from when to when they were measured."""
    latest = [board.results[-1] for board in boards if board.results]
    passed = sum(_analysis.verdict_of(record) == "passed" for record in latest)
    times = sorted(filter(None, (_analysis.started(record) for record in latest)))
    words = f"{len(boards)} board{'' if len(boards) == 1 else 's'}, {passed} of {len(latest)} passed"
    if times:
        words += f", measured {when(times[0])}" + (f" to {when(times[-1])}" if times[-1] != times[0] else "")
    return plain(words + ".")


def made(
    results: Path, hosts: Sequence[str], compare: Sequence[Path]
) -> tuple[dict[str, str], list[str], str | None, list[str]]:
    """Text by file name, the hosts shown, why there is no page (or None), and what could not be read."""
    if len(compare) not in (0, 2):
        raise PageError(f"compare has {len(compare)} files; it takes two, the earlier one first")
    compared = [read_record(path) for path in compare]
    boards, unreadable = read_boards(results, hosts)
    if not boards and not compared:
        return {}, [], f"there is no result in {results} yet: run edge.moe.verify first", unreadable
    # not before a page is made: matplotlib takes a second to load
    plots = importlib.import_module("ansible_collections.edge.moe.plugins.plugin_utils._plots")
    left_out = WITHOUT_PLOTS.format(error=plots.MISSING) if plots.MISSING else None
    draw: Any = None if left_out else plots
    title, summary = "edge.moe report", summarised(boards)
    content = sections(boards, compared, draw)
    texts = {MARKDOWN: markdown(content, title, summary)}
    if draw is not None:
        texts[PAGE] = html(content, title, summary)
    return texts, [board.host for board in boards], left_out, unreadable
