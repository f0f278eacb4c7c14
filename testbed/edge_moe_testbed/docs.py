# SPDX-License-Identifier: GPL-3.0-or-later
"""A page for each module, inventory plugin and role, from its own documentation.

``docs/modules/NAME.md`` is generated; ``docs/modules/output/NAME.txt`` is what it printed when it ran: the first line
is what was asked, the rest the answer. ``docs/roles/NAME.md`` is generated from the role's ``argument_specs.yml``, its
defaults and the first paragraph of its README. A test compares pages with what this would write now.
"""

from __future__ import annotations

import argparse
import ast
import json
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
COLLECTION = PLUGINS.parent
ROLES = COLLECTION / "roles"
ROLE_PAGES = PROJECT / "docs/roles"
_LITERAL = re.compile(r"\b([CVOE])\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_RETURN_VALUE = re.compile(r"\bRV\((?:(?P<plugin>[\w.]+)#\w+:)?(?P<name>[\w.]+)\)")
_OPTION_OF = re.compile(r"\bO\((?P<plugin>[\w.]+)#\w+:(?P<name>[\w.]+)\)")
_MODULE = re.compile(r"\bM\(([\w.]+)\)")
_DEFAULT = re.compile(r"^(\w+):.*(?:\n[ -].*)*", re.MULTILINE)


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    docs = commands.add_parser("docs", help="write a page for each module and role into docs")
    docs.add_argument("--check", action="store_true", help="write nothing, fail if a page is not what it should be")


def run(args: argparse.Namespace) -> int:
    stale = [path for path, text in pages() if not path.exists() or path.read_text() != text]
    if args.check:
        for path in stale:
            print(f"{path.relative_to(PROJECT)} is not what it is made from: run make docs", file=sys.stderr)
        return 1 if stale else 0
    for path, text in pages():
        path.write_text(text)
    print(f"{len(stale)} pages written")
    return 0


def pages() -> Iterator[tuple[Path, str]]:
    """Each page's path and the text that it should have."""
    yield from plugin_pages()
    for role in roles():
        yield ROLE_PAGES / f"{role.name}.md", role_page(role)


def roles() -> list[Path]:
    return sorted(specs.parents[1] for specs in ROLES.glob("*/meta/argument_specs.yml"))


def plugin_pages() -> Iterator[tuple[Path, str]]:
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


def row(name: str, entry: Mapping[str, Any], default: str) -> str:
    kind = str(entry.get("type", "str")) + (f" of {entry['elements']}" if entry.get("elements") else "")
    choices = [f"`{choice}`" for choice in entry.get("choices") or []]
    says = cell(entry.get("description")) + (f" One of {', '.join(choices)}." if choices else "")
    return f"| `{name}` | {kind} | {default} | {says} |"


def options(entries: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, entry in entries.items():
        default = "required" if entry.get("required") else f"`{entry['default']}`" if "default" in entry else ""
        yield row(prefix + name, entry, default)
        yield from options(entry.get("suboptions") or {}, f"{prefix}{name}.")


def returned(entries: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, entry in entries.items():
        kind = str(entry.get("type", "")) + (f" of {entry['elements']}" if entry.get("elements") else "")
        yield f"| `{prefix}{name}` | {kind} | {cell(entry.get('description'))} |"
        yield from returned(entry.get("contains") or {}, f"{prefix}{name}.")


def specifications(role: Path) -> dict[str, Any]:
    """The role's entry points by name."""
    found: dict[str, Any] = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    return found


def variables(role: Path) -> dict[str, Any]:
    """What all entry points of the role take, by name; the first one's words count."""
    found: dict[str, Any] = {}
    for spec in specifications(role).values():
        for name, entry in (spec.get("options") or {}).items():
            found.setdefault(name, entry)
    return found


def computed_defaults(role: Path) -> dict[str, str]:
    """Of the role's defaults those that are made from other values, each as its lines in ``defaults/main.yml``."""
    text = (role / "defaults/main.yml").read_text()
    return {entry[1]: entry[0] for entry in _DEFAULT.finditer(text) if "{{" in entry[0]}


def first_paragraph(readme: str) -> str:
    """What follows the title, up to the next empty line."""
    return readme.split("\n\n")[1].strip()


def role_page(role: Path) -> str:
    """The Markdown page of one role."""
    specs, computed = specifications(role), computed_defaults(role)
    lines = [
        "<!-- SPDX-License-Identifier: GPL-3.0-or-later -->",
        "<!-- Generated from the role's README, argument_specs.yml and defaults by `make docs`. -->",
        f"# edge.moe.{role.name}",
        "",
        first_paragraph((role / "README.md").read_text()),
        "",
        *(f"- {text}" for text in paragraphs(specs["main"].get("description"))),
    ]
    if len(specs) > 1:
        entries = ", ".join(f"`{name}`" for name in specs)
        lines.append(f"- Entry points (`tasks_from`): {entries}.")
    lines += ["", "## Variables", "", "| variable | type | default | what it is |", "|---|---|---|---|"]
    for name, entry in variables(role).items():
        value = entry.get("default")
        shown = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
        default = [f"`{shown}`"] if "default" in entry else []
        lines.append(row(name, entry, ", ".join([*default, *(["computed"] if name in computed else [])])))
    if computed:
        lines += ["", "## Computed defaults", "", "```yaml", *computed.values(), "```"]
    return "\n".join(lines) + "\n"


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
