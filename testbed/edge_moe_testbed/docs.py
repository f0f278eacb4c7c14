# SPDX-License-Identifier: GPL-3.0-or-later
"""A page for each module and inventory plugin, from its own documentation and output recorded from it.

``docs/modules/NAME.md`` is generated; ``docs/modules/output/NAME.txt`` is what it printed when it ran: the first line
is what was asked, the rest the answer. A test compares pages with what this would write now.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[2]
PLUGINS = PROJECT / "collections/ansible_collections/edge/moe/plugins"
PAGES = PROJECT / "docs/modules"
SOURCES = ("modules", "inventory")
FRAGMENT = "edge.moe.attributes.reads"
_LITERAL = re.compile(r"\b([CVOE])\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_RETURN_VALUE = re.compile(r"\bRV\((?:(?P<plugin>[\w.]+)#\w+:)?(?P<name>[\w.]+)\)")
_OPTION_OF = re.compile(r"\bO\((?P<plugin>[\w.]+)#\w+:(?P<name>[\w.]+)\)")
_MODULE = re.compile(r"\bM\(([\w.]+)\)")


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    docs = commands.add_parser("docs", help="write a page for each module into docs/modules")
    docs.add_argument("--check", action="store_true", help="write nothing, fail if a page is not what it should be")


def run(args: argparse.Namespace) -> int:
    stale = [path for path, text in pages() if not path.exists() or path.read_text() != text]
    if args.check:
        for path in stale:
            print(f"{path.relative_to(PROJECT)} is not what its module says: run make docs", file=sys.stderr)
        return 1 if stale else 0
    for path, text in pages():
        path.write_text(text)
    print(f"{len(stale)} pages written")
    return 0


def pages() -> Iterator[tuple[Path, str]]:
    """Each page's path and the text that it should have."""
    for folder in SOURCES:
        for source in sorted((PLUGINS / folder).glob("[a-z]*.py")):
            output = PAGES / "output" / f"{source.stem}.txt"
            recorded = output.read_text() if output.exists() else None
            yield PAGES / f"{source.stem}.md", page(source.stem, literals(source.read_text()), recorded)


def literals(source: str) -> dict[str, str]:
    """The module's constant strings by name, without importing it."""
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                found[name] = text
    return found


def plain(text: str) -> str:
    """Ansible's markup as Markdown."""

    def foreign(match: re.Match[str]) -> str:
        plugin = match["plugin"]
        return f"`{match['name']}`" + (f" of `{plugin}`" if plugin else "")

    text = _RETURN_VALUE.sub(foreign, text)
    text = _OPTION_OF.sub(foreign, text)
    text = _MODULE.sub(r"`\1`", text)
    return _LITERAL.sub(r"`\2`", text)


def paragraphs(value: Any) -> list[str]:
    entries = value if isinstance(value, list) else [value] if value else []
    return [plain(" ".join(str(entry).split())) for entry in entries]


def cell(value: Any) -> str:
    return " ".join(paragraphs(value)).replace("|", "\\|")


def options(entries: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, entry in entries.items():
        kind = str(entry.get("type", "str")) + (f" of {entry['elements']}" if entry.get("elements") else "")
        choices = [f"`{choice}`" for choice in entry.get("choices") or []]
        says = cell(entry.get("description")) + (f" One of {', '.join(choices)}." if choices else "")
        default = "required" if entry.get("required") else f"`{entry['default']}`" if "default" in entry else ""
        yield f"| `{prefix}{name}` | {kind} | {default} | {says} |"
        yield from options(entry.get("suboptions") or {}, f"{prefix}{name}.")


def returned(entries: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, entry in entries.items():
        kind = str(entry.get("type", "")) + (f" of {entry['elements']}" if entry.get("elements") else "")
        yield f"| `{prefix}{name}` | {kind} | {cell(entry.get('description'))} |"
        yield from returned(entry.get("contains") or {}, f"{prefix}{name}.")


def page(name: str, strings: Mapping[str, str], output: str | None) -> str:
    """The Markdown page of one plugin."""
    documentation = yaml.safe_load(strings["DOCUMENTATION"])
    fragments = documentation.get("extends_documentation_fragment") or []
    lines = [
        "<!-- SPDX-License-Identifier: GPL-3.0-or-later -->",
        "<!-- Generated from the plugin's own documentation by `make docs`. -->",
        f"# edge.moe.{name}",
        "",
        plain(str(documentation["short_description"])) + ".",
        "",
        *(f"- {text}" for text in paragraphs(documentation.get("description"))),
    ]
    if FRAGMENT in fragments:
        lines.append("- Changes nothing: check mode does the same.")
    else:
        attributes = documentation.get("attributes") or {}
        for attribute in ("check_mode", "diff_mode"):
            if attribute in attributes:
                support = attributes[attribute]
                lines.append(f"- {attribute}: {support['support']}. {cell(support.get('description'))}")
    if documentation.get("options"):
        lines += ["", "## Options", "", "| option | type | default | what it is |", "|---|---|---|---|"]
        lines += options(documentation["options"])
        others = [f"`{fragment}`" for fragment in fragments if fragment != FRAGMENT]
        if others:
            lines += ["", f"Beside these it has the options of {' and '.join(others)} of Ansible."]
    lines += ["", "## Examples", "", "```yaml", strings["EXAMPLES"].strip(), "```"]
    if strings.get("RETURN"):
        lines += ["", "## What it returns", "", "| key | type | what it is |", "|---|---|---|"]
        lines += returned(yaml.safe_load(strings["RETURN"]) or {})
    if output:
        asked, _, answer = output.partition("\n")
        lines += ["", "## Output", "", asked, "", "```", answer.strip("\n"), "```"]
    return "\n".join(lines) + "\n"
