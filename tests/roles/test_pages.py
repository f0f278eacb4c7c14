# SPDX-License-Identifier: GPL-3.0-or-later
"""What the pages tell is there: links, commands, targets, playbooks, modules, and the messages that they quote."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from edge_moe_testbed import docs
from edge_moe_testbed.__main__ import COMMANDS
from edge_moe_testbed.bench import BENCHES
from edge_moe_testbed.common import PROJECT, run_playbook

DOCS = PROJECT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
PAGES = [
    *(PROJECT / "README.md", PROJECT / "native/README.md", docs.COLLECTION / "README.md"),
    *sorted(docs.ROLES.glob("*/README.md")),
    *SITE,
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
# Asks on the terminal: of no use to a test, which has none.
ASKING = {"-K", "-k", "--ask-become-pass", "--ask-vault-pass"}
EXAMPLE_INVENTORY = {"inventories/mine": "inventories/fleet"}  # the pages begin with the copy


def page_ids(path: Path) -> str:
    return path.relative_to(PROJECT).as_posix()


def prose(page: Path) -> str:
    """The page without its blocks of code and its comments."""
    return re.sub(r"<!--.*?-->", "", FENCE.sub("", page.read_text()), flags=re.DOTALL)


def code(page: Path) -> list[str]:
    """Blocks of code and pieces of code in lines."""
    return [block for _kind, block in FENCE.findall(page.read_text())] + re.findall(r"`([^`\n]+)`", prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as the usual readers of Markdown make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_ids)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(re.sub(r"`[^`\n]+`", "", prose(page))):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = unquote(link).partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if page in SITE:  # it holds docs/ and nothing else: what lies outside is named by its path
            assert target.suffix == ".md", link
            assert target.is_relative_to(DOCS), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_is_in_the_site_and_nothing_else() -> None:
    site = yaml.safe_load((PROJECT / "mkdocs.yml").read_text())

    def named(entries: list[dict[str, Any]]) -> Iterator[str]:
        for value in [value for entry in entries for value in entry.values()]:
            yield from named(value) if isinstance(value, list) else [value]

    pages = {page.relative_to(DOCS).as_posix() for page in SITE}
    generated = {path.relative_to(DOCS).as_posix() for path, _text in docs.pages()}
    assert sorted(named(site["nav"])) == sorted(pages - generated)


def commands() -> list[tuple[str, ...]]:
    """Each ansible-playbook command of the pages, once, as its words."""
    found: dict[tuple[str, ...], None] = {}
    for page in PAGES:
        for text in code(page):
            for start in re.finditer(r"ansible-playbook (?=\S)", text):
                lexer = shlex.shlex(text[start.start() :], posix=True, punctuation_chars="\n;&|<>")
                lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
                words: list[str] = []
                for word in lexer:
                    if word.startswith("#") or set(word) <= set("\n;&|<>"):
                        break
                    words.append(EXAMPLE_INVENTORY.get(word, word))
                if "-i" in words:
                    found[tuple(word for word in words if word not in ASKING)] = None
    return list(found)


def test_commands_are_found_whole() -> None:
    heads = {words[1] for words in commands()}
    assert {"site.yml", "playbooks/plan.yml", "playbooks/health.yml"} <= heads
    assert [words for words in commands() if words.count("ansible-playbook") > 1] == []
    assert any(word.startswith("{") and "edge_moe_plan_json" in word for words in commands() for word in words)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_playbook_command_parses(words: tuple[str, ...]) -> None:
    place = words.index("-i")
    book, inventory = words[1], Path(words[place + 1])
    rest = [*words[2:place], *words[place + 2 :]]
    if not (PROJECT / inventory).exists():  # a file of the reader's own
        inventory = Path(EXAMPLE_INVENTORY["inventories/mine"])
    result = run_playbook(book, inventory, *rest, "--syntax-check")
    assert result.returncode == 0, result.stderr


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    told = {
        target
        for page in PAGES
        for text in code(page)
        for target in re.findall(r"^make ([a-z][a-z-]*)", text, re.MULTILINE)
    }
    assert {"demo", "test"} <= told
    assert told - targets == set()


def test_every_benchmark_exists() -> None:
    told = {name for page in PAGES for text in code(page) for name in re.findall(r"make bench NAME=(\w+)", text)}
    assert told
    assert told - set(BENCHES) == set()


def test_every_playbook_module_and_role_exists() -> None:
    text = "\n".join(text for page in PAGES for text in code(page))
    assert [book for book in set(re.findall(r"playbooks/\w+\.yml", text)) if not (PROJECT / book).is_file()] == []
    names = {
        path.stem for folder in ("plugins/*", "playbooks", "roles") for path in docs.COLLECTION.glob(f"{folder}/*")
    }
    told = set(re.findall(r"\bedge\.moe\.([a-z]\w*)", text)) - {"NAME"}
    assert "site" in told
    assert told - names - {"attributes"} == set()


def test_every_variable_that_is_named_exists() -> None:
    text = "\n".join(text for page in PAGES for text in code(page))
    roles = "|".join(role.name for role in docs.roles())
    told = set(re.findall(rf"(?<![\w.])(?:{roles})_\w*[a-z0-9]\b", text))
    assert len(told) > 30
    assert told - {name for role in docs.roles() for name in docs.variables(role)} == set()
    environment = set(re.findall(r"\bEDGE_MOE_[A-Z_]*[A-Z]\b", text))
    assert {name for name in environment if name not in source_text()} == set()


def test_every_command_of_the_test_bed_exists() -> None:
    text = "\n".join(text for page in PAGES for text in code(page))
    told = set(re.findall(r"python -m edge_moe_testbed (\w+)", text))
    assert "board" in told
    assert told - set(COMMANDS) == set()


@functools.cache
def source_text() -> str:
    """All code and playbooks, with what a message is made of put together as it is shown."""
    places = [docs.COLLECTION / "plugins", docs.COLLECTION / "roles", docs.COLLECTION / "playbooks"]
    places += [PROJECT / "testbed", PROJECT / "molecule", PROJECT / "native/src", PROJECT / "native/glue"]
    files = [path for place in places for path in place.rglob("*") if path.is_file() and "tests" not in path.parts]
    files.append(PROJECT / "Makefile")
    text = "\n".join(path.read_text(errors="replace") for path in files)
    text = re.sub(r'"\s*\n\s*(?:\+\s*)?f?"', "", text)
    return " ".join(text.replace('\\"', '"').split())


def quoted_messages() -> list[str]:
    page = (DOCS / "troubleshooting.md").read_text().partition("\n## Ansible itself")[0]
    return re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)


def test_every_message_that_is_quoted_is_one_of_the_code() -> None:
    messages = quoted_messages()
    assert len(messages) > 50
    text = source_text()
    unknown = [
        (message, part)
        for message in messages
        for part in message.split("...")
        if part.strip(" :,;") and " ".join(part.split()) not in text
    ]
    assert unknown == []


def test_the_list_of_what_is_on_a_board_is_whole() -> None:
    """Whoever takes a board back has one table to go by."""
    tasks = "\n".join(path.read_text() for path in docs.ROLES.glob("*/[tv]a*/*.yml"))
    written = {Path(path) for path in re.findall(r"- path: (/[^\s{]+[^\s{/])$", tasks, re.MULTILINE)}
    told = (DOCS / "first-board.md").read_text().partition("\n## Undo\n")[2]
    folders = {path for path in re.findall(r"`(/[^`]+)`", told) if "edge-moe" in path}
    assert Path("/usr/local/bin/edge-moe-run") in written
    assert [path for path in written if path.name not in told and not folders & {str(up) for up in path.parents}] == []
