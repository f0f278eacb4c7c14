# SPDX-License-Identifier: GPL-3.0-or-later
"""The report: one page that needs nothing else, the same figures in Markdown, and no markup out of a result file."""

from __future__ import annotations

import copy
import html.parser
import json
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.plugin_utils import _page, _plots

pytest.importorskip("edge_moe_testbed", reason="needs the project's test bed, which no archive holds")
pytest.importorskip("matplotlib", reason="without it there is no page")
from edge_moe_testbed import samples

VOID = {"meta", "br", "hr", "img", "input", "link", "path", "use", "rect"}
HOSTILE = '<script>alert(1)</script>|`*[x](javascript:y)*` "quoted" & $\\frac{1}{$ \x00\x1b[31m\u202e\ud800'
SIZE_LIMIT = 1024 * 1024


class Page(html.parser.HTMLParser):
    """Checks that every element is closed in order, and keeps what a test asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("td", "th", "dd"):
            self.cells.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if {"td", "th", "dd"} & set(self.open):
            self.cells[-1] += data


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    samples.write_fleet(folder)
    return folder


@pytest.fixture(scope="module")
def texts(fleet: Path) -> dict[str, str]:
    made, hosts, left_out, unreadable = _page.made(fleet, [], [])
    assert (hosts, left_out, unreadable) == (["kitchen", "workshop"], None, [])
    return made


@pytest.fixture(scope="module")
def page(texts: dict[str, str]) -> Page:
    return Page(texts[_page.PAGE])


def test_the_page_is_well_formed_and_ids_are_its_own(page: Page) -> None:
    ids = [attributes["id"] for _tag, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [
        value[1:] for _tag, attributes in page.tags for name, value in attributes.items() if name == "href" and value
    ]
    assert targets
    assert set(targets) <= set(ids)


def test_the_page_needs_nothing_else(texts: dict[str, str], page: Page) -> None:
    text = texts[_page.PAGE]
    assert not re.search(r"https?:|//[a-z]|@import|\bsrc=", text)
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    foreign = {"script", "link", "iframe", "img", "object", "image", "foreignobject"}
    assert not foreign & {tag for tag, _attributes in page.tags}
    assert all((attributes.get("href") or "#").startswith("#") for _tag, attributes in page.tags)
    assert len(text) < SIZE_LIMIT


def test_every_plot_takes_its_colours_from_the_page(texts: dict[str, str]) -> None:
    drawings = re.findall(r"<svg.*?</svg>", texts[_page.PAGE], flags=re.DOTALL)
    # stages, clocks, line, load, history of the one board; the other has one result and no run
    assert len(drawings) == 5 + 3
    style = texts[_page.PAGE].partition("</style>")[0]
    for drawing in drawings:
        assert not re.search(r"#[0-9a-f]{6}\b", drawing), "a colour that does not follow the page's"
        assert "<text" in drawing, "text is text, so that it can be found and scales with the page's font"
        assert "DejaVu" not in drawing
        for variable in re.findall(r"var\((--\w+)\)", drawing):
            assert style.count(f"{variable}:") == 2, "each colour has a value in light and one in dark"


def test_markdown_has_every_figure_of_the_page(texts: dict[str, str], page: Page) -> None:
    lines = texts[_page.MARKDOWN].splitlines()
    fields = [field for line in lines if line.startswith("| ") for field in re.split(r"(?<!\\) \| ", line[2:-2])]
    fields += [line.partition(": ")[2] for line in lines if re.match(r"- [A-Z][\w ]*: ", line)]

    def bare(text: str) -> str:
        return re.sub(r"\\(.)", r"\1", text).replace("&lt;", "<").replace("&amp;", "&").strip()

    assert sorted(map(bare, fields)) == sorted(cell.strip() for cell in page.cells)


def test_the_published_figures_stand_in_the_tables(texts: dict[str, str]) -> None:
    text = texts[_page.MARKDOWN]
    for row in (
        r"\| mmap \| stock mmap \| 2\.73 \| 1\.00× \| – \|",
        r"\| mmap-floor \| stock mmap, clock floor \| 3\.37 \| 1\.23× \| 1\.2\d to 1\.2\d \|",
        r"\| served \| as the plan serves \| 4\.96 \| 1\.82× \|",
        r"\| mmap \| 2\d\d\.\d \| – \| 0\.2% \| 36\.0% \| 8\.05 \| 2\.95 \|",
        r"\| mmap-floor \| 2\d\d\.\d \| – \| 99\.1% \| 19\.8% \| 9\.63 \| 2\.86 \|",
        r"\| mmap \| 19\d \| 0\.6\d \| 5\.[12] \|",
        r"\| served \| 8 \| 8\.20 \| 249\.8 \|",
        r"\| served \| 4,096 \| 4\.62 \|",
        r"\| served \| 6\.2344 \| 0\.2100 \| \+0\.00% \|",
    ):
        assert re.search(row, text), row


def test_the_first_table_says_how_the_fleet_is(texts: dict[str, str]) -> None:
    glance = texts[_page.MARKDOWN].partition("## kitchen")[0]
    assert "2 boards, 1 of 2 passed, measured 2026-11-29 12:00 UTC to 2026-11-29 13:10 UTC." in glance
    kitchen, workshop = (line for line in glance.splitlines() if line.startswith(("| kitchen", "| workshop")))
    assert "| passed |" in kitchen
    assert "1020 → 306" in kitchen
    assert "1.06×; changed: release |" in kitchen
    assert "| throttled |" in workshop
    assert "| first result |" in workshop


def test_a_failure_comes_with_what_was_seen_and_what_to_do(texts: dict[str, str]) -> None:
    board = texts[_page.MARKDOWN].partition("## workshop")[2]
    assert "### What failed" in board
    assert "reached 97 °C | check fan and power supply, then measure again |" in board
    assert "oc1\\_event" not in board, "an underscore inside a word is no markup"
    assert "Before believing the figures" in board


def test_the_same_files_give_the_same_bytes(fleet: Path, texts: dict[str, str]) -> None:
    assert _page.made(fleet, [], [])[0] == texts


def test_only_the_hosts_asked_for(fleet: Path) -> None:
    made, hosts, _left_out, _unreadable = _page.made(fleet, ["workshop", "nowhere"], [])
    assert hosts == ["workshop"]
    assert "kitchen" not in made[_page.MARKDOWN]


def test_two_files_compared(fleet: Path) -> None:
    old, new = sorted(fleet.glob("history/kitchen/*.json"))[1:3]
    text = _page.made(fleet, [], [old, new])[0][_page.MARKDOWN]
    compared = text.partition("## Two runs compared")[2].partition("## kitchen")[0]
    assert "| plan: threads | 6 | 5 |" in compared
    assert "| served | 4.41 | 4.39 | 0.995× |" in compared
    assert "| reference | 3.37 | 3.37 | 1.000× |" in compared
    assert "kept from then" in compared


@pytest.mark.parametrize(
    "place", ["host", "model", "release", "l4t", "evidence", "text", "variant", "error", "warning"]
)
def test_nothing_of_a_file_is_taken_as_markup(tmp_path: Path, place: str) -> None:
    result, run = samples.verify_result(), samples.stages_run(rounds=1)
    if place in result:
        result[place] = run[place] = HOSTILE
    result["verdict"]["failures"] = [{"class": place, "evidence": HOSTILE, "remedy": HOSTILE}]
    if place == "text":
        result["served"]["requests"][0]["text"] = HOSTILE
        run["legs"][3]["measurement"]["requests"][0]["text"] = HOSTILE
    if place == "variant":
        run["variants"][3] |= {"name": HOSTILE, "title": HOSTILE, "args": [HOSTILE]}
        run["legs"][3]["variant"] = run["load"][0]["variant"] = HOSTILE
    if place == "error":
        run["legs"].append({"variant": "mmap", "round": 2, "error": HOSTILE})
    if place == "warning":
        run["legs"][0]["measurement"]["warnings"] = [HOSTILE]
    (tmp_path / "bench/kitchen").mkdir(parents=True)
    (tmp_path / "bench/kitchen/1.json").write_text(json.dumps(run))
    (tmp_path / "kitchen.json").write_text(json.dumps(result))
    made = _page.made(tmp_path, [], [])[0]
    page = Page(made[_page.PAGE])
    assert "script" not in {tag for tag, _attributes in page.tags}
    assert all("alert" not in (value or "") for _tag, attributes in page.tags for value in attributes.values())
    assert "<script" in "".join(page.words), "it is shown as what it is"
    for text in made.values():
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e\ud800]", text)
        text.encode()
    for line in made[_page.MARKDOWN].splitlines():
        assert "<" not in line
        assert not re.search(r"(?<!\\)[`*\[]", line)


def test_a_host_of_a_strange_name_reads_no_other_files(tmp_path: Path) -> None:
    samples.write_fleet(tmp_path)
    shutil.copy(tmp_path / "workshop.json", tmp_path / "kit[c]hen.json")
    boards, _unreadable = _page.read_boards(tmp_path, ["kit[c]hen"])
    assert [(board.host, len(board.results), board.runs) for board in boards] == [("kit[c]hen", 1, [])]
    assert [board.host for board in _page.read_boards(tmp_path, ["../results/kitchen", "*"])[0]] == []


def test_files_that_are_none_are_named_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples.write_fleet(tmp_path)
    (tmp_path / "history/kitchen/20261101T000000Z.json").write_text('{"served": ')
    (tmp_path / "history/kitchen/20261102T000000Z.json").write_text("[]")
    (tmp_path / "history/kitchen/20261103T000000Z.json").write_text("[" * 100000)
    (tmp_path / "workshop.json").unlink()
    (tmp_path / "workshop.json").mkdir()
    _made, hosts, _left_out, unreadable = _page.made(tmp_path, [], [])
    assert hosts == ["kitchen"]
    assert [Path(line.split()[0]).name for line in unreadable] == [
        "20261101T000000Z.json", "20261102T000000Z.json", "20261103T000000Z.json", "workshop.json",
    ]  # fmt: skip
    monkeypatch.setattr(_page, "FILE_LIMIT", 1000)
    assert sum("has more than" in line for line in _page.made(tmp_path, [], [])[3]) > 5


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"served": None, "reference": None, "verdict": None, "plan": None}, "failed"),
        ({"served": {"requests": [1, None]}, "verdict": {"failures": "x"}, "plan": [], "l4t": {"a": 1}}, "failed"),
        ({"served": {}, "verdict": {"passed": "yes", "ratio": "high", "text_equal": 3}}, "failed"),
    ],
)
def test_a_board_with_half_a_result_still_has_its_section(tmp_path: Path, record: dict[str, Any], says: str) -> None:
    (tmp_path / "bare.json").write_text(json.dumps(record))
    made, hosts, _left_out, _unreadable = _page.made(tmp_path, [], [])
    assert hosts == ["bare"]
    Page(made[_page.PAGE])
    assert "## bare" in made[_page.MARKDOWN]
    assert "0 of 1 passed" in made[_page.MARKDOWN]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in below for place in places(item, (*at, key)))]


@pytest.mark.parametrize("seed", range(40))
def test_no_value_of_a_file_stops_the_report(seed: int) -> None:
    """The last seeds are drawn as well, which takes longer."""
    chance = random.Random(seed)
    records = [samples.stages_run(rounds=1), samples.verify_result()]
    for record in records:
        for place in chance.sample(places(record)[1:], 12):
            holder: Any = record
            try:
                for key in place[:-1]:
                    holder = holder[key]
                holder[place[-1]] = chance.choice([None, -1, 1e308, 5e-324, float("inf"), 10**400, "x<y", [1], {}, 0])
            except (KeyError, IndexError, TypeError):
                continue  # an earlier change took the place away
    board = _page.Board("kitchen", [samples.verify_result(), records[1]], [samples.stages_run(), records[0]])
    content = _page.sections([board], records, _plots if seed >= 36 else None)
    Page(_page.html(content, "report", _page.summarised([board])))
    assert "## kitchen" in _page.markdown(content, "report", "")


def test_a_run_without_a_verification_has_its_section(tmp_path: Path) -> None:
    (tmp_path / "bench/kitchen").mkdir(parents=True)
    older, newer = samples.stages_run(), copy.deepcopy(samples.stages_run(started="2026-11-30T12:00:00Z"))
    newer["legs"] = newer["legs"][:6]
    newer["complete"] = False
    for number, run in enumerate((older, newer)):
        (tmp_path / f"bench/kitchen/2026112{number}T120000Z.json").write_text(json.dumps(run))
    text = _page.made(tmp_path, [], [])[0][_page.MARKDOWN]
    assert "not verified yet" in text
    assert "### Since the last run: speed" in text
    assert "The run was cut" in text


def test_no_result_says_what_to_run(tmp_path: Path) -> None:
    made, hosts, left_out, _unreadable = _page.made(tmp_path / "nothing", [], [])
    assert (made, hosts) == ({}, [])
    assert left_out is not None
    assert "edge.moe.verify" in left_out


@pytest.mark.parametrize(
    ("compare", "says"),
    [(["one"], "compare has 1 files; it takes two"), (["a", "b"], "a cannot be read: No such file")],
)
def test_a_comparison_that_cannot_be_is_refused(fleet: Path, compare: list[str], says: str) -> None:
    with pytest.raises(_page.PageError, match=says):
        _page.made(fleet, [], [Path(name) for name in compare])


def test_without_matplotlib_there_is_markdown_and_a_line_that_says_why(
    fleet: Path, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "ansible_collections.edge.moe.plugins.plugin_utils._plots", raising=False)
    made, _hosts, left_out, _unreadable = _page.made(fleet, [], [])
    assert made == {_page.MARKDOWN: texts[_page.MARKDOWN]}
    assert left_out is not None
    assert "pip install 'matplotlib>=3.9'" in left_out


# As a browser shows it


def brightness(png: Path, folder: Path) -> float:
    """Mean of the red channel of a screenshot, 0 to 255."""
    from matplotlib import image

    pixels = image.imread(png)
    assert pixels.ndim == 3
    return float(pixels[:, :, 0].mean()) * 255


@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_shows_it_in_light_and_dark(texts: dict[str, str], tmp_path: Path, width: int) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine: apt-get install chromium shows the page as a browser does")
    page = tmp_path / "report.html"
    page.write_text(texts[_page.PAGE])
    seen = {}
    for mode, options in (("light", []), ("dark", ["--blink-settings=preferredColorScheme=0"])):
        picture = tmp_path / f"{mode}.png"
        done = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *options,
             f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1600", f"--screenshot={picture}",
             page.as_uri()],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        shape = struct.unpack(">II", picture.read_bytes()[16:24])
        assert shape == (width, 1600)
        seen[mode] = brightness(picture, tmp_path)
    assert seen["light"] > 200
    assert seen["dark"] < 60


@pytest.mark.parametrize("high", [1.01, 1.3, 1.6, 40.0])
def test_the_label_of_a_wide_interval_stays_inside_the_drawing(high: float) -> None:
    rows = [
        {"name": "mmap", "decode": {"mean": 10.0}, "ratio": None},
        {"name": "other", "decode": {"mean": 9.8}, "ratio": {"value": 0.98, "low": 0.5, "high": high}},
    ]
    drawing = _plots.stages(rows, "mmap", "wide") or ""
    width = float(re.findall(r'viewBox="0 0 (\d+)', drawing)[0])
    ((left, label),) = re.findall(r'<text [^>]*x="([\d.]+)"[^>]*>(9\.80[^<]*)</text>', drawing)
    # ten pixels high: digits take 6.4, points and brackets less than 4
    assert float(left) + 6 * len(label) <= width
