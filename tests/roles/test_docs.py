# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages of modules and roles are those that their own documentation makes, and that documentation is true."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from edge_moe_testbed import docs
from jinja2 import ChainableUndefined
from jinja2.nativetypes import NativeEnvironment

PLUGINS = [path.stem for path, _text in docs.plugin_pages()]
ROLES = docs.roles()
BOOKS = sorted((docs.COLLECTION / "playbooks").glob("*.yml"))


@pytest.mark.parametrize("path", [path for path, _text in docs.pages()], ids=lambda path: path.stem)
def test_page_is_what_it_is_made_from(path: Path) -> None:
    text = dict(docs.pages())[path]
    assert path.read_text() == text, "run make docs"
    if path.parent == docs.PAGES:
        assert "## Output" in text, f"record what it prints in docs/modules/output/{path.stem}.txt"


def test_no_page_is_left_of_what_is_gone() -> None:
    assert {*docs.PAGES.glob("*.md"), *docs.ROLE_PAGES.glob("*.md")} == {path for path, _text in docs.pages()}
    assert sorted(path.stem for path in (docs.PAGES / "output").iterdir()) == sorted(PLUGINS)
    assert sorted(path for path in docs.ROLES.iterdir() if path.is_dir()) == ROLES


@pytest.mark.parametrize(("index", "names"), [("modules", PLUGINS), ("roles", [role.name for role in ROLES])])
def test_every_page_is_linked_from_its_index(index: str, names: list[str]) -> None:
    linked = re.findall(rf"\({index}/(\w+)\.md\)", (docs.PROJECT / "docs" / f"{index}.md").read_text())
    assert sorted(set(linked)) == sorted(names)


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_are_those_that_are_documented(role: Path) -> None:
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text()) or {}
    documented = docs.variables(role)
    assert sorted(defaults) == sorted(documented)
    # one that is computed falls back to what is stated when nothing is known yet
    unknowing = NativeEnvironment(undefined=ChainableUndefined)
    computed = docs.computed_defaults(role)
    for name, value in defaults.items():
        if "default" in documented[name]:
            fallback = unknowing.from_string(value).render() if name in computed else value
            assert fallback == documented[name]["default"], name
        else:
            assert name in computed, f"{name} is a constant, and its specification states no default"


def test_every_variable_is_documented_by_one_role_alone() -> None:
    owners = Counter(name for role in ROLES for name in docs.variables(role))
    assert [name for name, count in owners.items() if count > 1] == []


def inputs_of_the_playbooks() -> set[str]:
    """What a user may set: names that a playbook, or a role of it, gives a default or does without."""
    files = [*(docs.COLLECTION / "playbooks").rglob("*.yml"), *docs.ROLES.glob("*/defaults/main.yml")]
    texts = [path.read_text() for path in files]
    asked = r"\b(edge_moe_\w+)\s*(?:\|\s*default\(|is (?:not )?defined)"
    return {name for text in texts for name in re.findall(asked, text)}


def test_every_playbook_and_every_variable_of_one_is_on_their_page() -> None:
    page = (docs.PROJECT / "docs/playbooks.md").read_text()
    assert [book.stem for book in BOOKS if f"\n## {book.stem}\n" not in page] == []
    for section in page.split("\n## ")[1:]:
        name = section.partition("\n")[0]
        book = "site.yml" if name == "site" else f"playbooks/{name}.yml"
        assert f"\nansible-playbook {book} " in section, f"{name}: its command"
    assert len(inputs_of_the_playbooks()) > 3
    assert [name for name in sorted(inputs_of_the_playbooks()) if f"| `{name}` |" not in page] == []


def test_the_table_of_the_verdicts_classes_is_that_of_the_code() -> None:
    text = docs.VERDICTS.read_text()
    assert docs.verdicts(text) == text, "run make docs"
    assert text.count("| `text_differs` |") == 1


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
