# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages under docs/modules are those that the modules' own documentation makes, and a table that of the code."""

from __future__ import annotations

import re

import pytest
from edge_moe_testbed import docs


@pytest.mark.parametrize("path", [path for path, _text in docs.pages()], ids=lambda path: path.stem)
def test_page_is_what_its_plugin_says(path: docs.Path) -> None:
    text = dict(docs.pages())[path]
    assert path.read_text() == text, "run make docs"
    assert "## Output" in text, f"record what it prints in docs/modules/output/{path.stem}.txt"


def test_no_page_is_left_of_what_is_gone() -> None:
    assert set(docs.PAGES.glob("*.md")) == {path for path, _text in docs.pages()}
    recorded = {path.stem for path in (docs.PAGES / "output").iterdir()}
    assert recorded == {path.stem for path, _text in docs.pages()}


def test_the_table_of_the_verdicts_classes_is_that_of_the_code() -> None:
    text = docs.VERDICTS.read_text()
    assert docs.verdicts(text) == text, "run make docs"
    assert text.count("| `text_differs` |") == 1


def test_every_page_is_linked_from_the_overview() -> None:
    linked = set(re.findall(r"\(modules/(\w+)\.md\)", (docs.PAGES.parent / "modules.md").read_text()))
    assert linked == {path.stem for path, _text in docs.pages()}


@pytest.mark.parametrize(
    ("markup", "markdown"),
    [
        ("V(null) of C(a.b), O(root)", "`null` of `a.b`, `root`"),
        ("C(board[01:20]) and C(f(x))", "`board[01:20]` and `f(x)`"),
        ("RV(edge.moe.gguf_info#module:gguf)", "`gguf` of `edge.moe.gguf_info`"),
        ("RV(plan.reasons)", "`plan.reasons`"),
        ("M(edge.moe.measure)", "`edge.moe.measure`"),
        ("a CUDA (arch 87)", "a CUDA (arch 87)"),
    ],
)
def test_markup(markup: str, markdown: str) -> None:
    assert docs.plain(markup) == markdown
