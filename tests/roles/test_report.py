# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/report.yml on a controller with result files: table, page, Markdown, and all of it without matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from edge_moe_testbed import samples
from edge_moe_testbed.common import PROJECT

from .conftest import Playbook

REPORT = str(PROJECT / "playbooks/report.yml")
BOARDS: dict[str, dict[str, Any]] = {"kitchen": {}, "workshop": {}}


@pytest.fixture
def results(playbook: Playbook) -> Path:
    folder = playbook.folder / "home/results"
    samples.write_fleet(folder)
    return folder


def test_table_page_and_markdown_and_a_second_run_changes_nothing(playbook: Playbook, results: Path) -> None:
    first = playbook.run_book(REPORT, BOARDS)
    assert first.rc == 0, first.text
    assert "│ decode, served" in first.text, "the table is still printed"
    assert f"The page: {results}/report/report.html" in first.words
    assert first.recap("kitchen", "changed") == 1
    page, figures = results / "report/report.html", results / "report/report.md"
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert figures.read_text().startswith("# edge.moe report")
    assert [path.stat().st_mode & 0o777 for path in (page, figures)] == [0o644, 0o644]
    written = page.stat().st_mtime_ns
    again = playbook.run_book(REPORT, BOARDS)
    assert again.recap("kitchen", "changed") == 0
    assert page.stat().st_mtime_ns == written
    assert sorted(path.name for path in page.parent.iterdir()) == ["report.html", "report.md"]


def test_a_run_limited_to_one_board_still_shows_the_fleet(playbook: Playbook, results: Path) -> None:
    done = playbook.run_book(REPORT, BOARDS, ("--limit", "workshop"))
    assert done.rc == 0, done.text
    assert "## kitchen" in (results / "report/report.md").read_text()


def test_check_mode_with_diff_tells_and_writes_nothing(playbook: Playbook, results: Path) -> None:
    shown = playbook.run_book(REPORT, BOARDS, ("--check", "--diff"))
    assert shown.rc == 0, shown.text
    assert shown.recap("kitchen", "changed") == 1
    assert "+| served | as the plan serves | 4.96 | 1.82×" in shown.text
    assert "report.html: there was none, now" in shown.words
    assert not (results / "report").exists()


def test_another_folder_and_two_files_compared(playbook: Playbook, results: Path) -> None:
    old, new = sorted(results.glob("history/kitchen/*.json"))[1:3]
    wanted = {"edge_moe_report_dir": str(playbook.folder / "there"), "edge_moe_report_compare": [str(old), str(new)]}
    done = playbook.run_book(REPORT, {"kitchen": wanted})
    assert done.rc == 0, done.text
    text = (playbook.folder / "there/report.md").read_text()
    assert "| plan: threads | 6 | 5 |" in text
    assert "workshop" not in text, "boards of the inventory alone"
    refused = playbook.run_book(REPORT, {"kitchen": {**wanted, "edge_moe_report_compare": [str(old)]}})
    assert refused.rc != 0
    assert "compare has 1 files; it takes two" in refused.words


def test_without_results_it_says_what_to_run(playbook: Playbook) -> None:
    done = playbook.run_book(REPORT, BOARDS)
    assert done.rc == 0, done.text
    assert "The page was left out: there is no result in" in done.words
    assert done.recap("kitchen", "changed") == 0


def test_without_matplotlib_nothing_fails(
    playbook: Playbook, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "matplotlib.py").write_text("raise ImportError(\"No module named 'matplotlib'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    done = playbook.run_book(REPORT, BOARDS)
    assert done.rc == 0, done.text
    assert "│ decode, served" in done.text
    assert "The page was left out: matplotlib is not installed" in done.words
    assert "pip install 'matplotlib>=3.9'" in done.words
    assert [path.name for path in (results / "report").iterdir()] == ["report.md"]


def test_a_folder_that_cannot_be_written_is_named(playbook: Playbook, results: Path) -> None:
    done = playbook.run_book(REPORT, {"kitchen": {"edge_moe_report_dir": str(results / "kitchen.json")}})
    assert done.rc != 0
    assert "name a folder of the user that runs ansible-playbook" in done.words
