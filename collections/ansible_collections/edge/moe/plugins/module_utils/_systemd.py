# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd, as far as this collection speaks to it: states of units, and words of unit files.

Private to this collection: it may change in any release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.edge.moe.plugins.module_utils._host import Host

PROPERTIES = "Id,LoadState,ActiveState,UnitFileState"


class UnitState(NamedTuple):
    """`active` is systemd's ActiveState; `enabled` whether the unit starts with the machine."""

    active: str
    enabled: bool


def parse_show(text: str) -> dict[str, UnitState]:
    """Units by name, from the paragraphs of `systemctl show`; one that does not exist is left out."""
    units: dict[str, UnitState] = {}
    for paragraph in text.split("\n\n"):
        values = dict(line.split("=", 1) for line in paragraph.splitlines() if "=" in line)
        if values.get("Id") and values.get("LoadState") not in (None, "not-found"):
            enabled = values.get("UnitFileState") in ("enabled", "enabled-runtime")
            units[values["Id"]] = UnitState(values.get("ActiveState", "unknown"), enabled)
    return units


def unit_states(host: Host, names: Sequence[str]) -> dict[str, UnitState]:
    """Those of `names` that exist; none where systemd is missing or does not answer in time."""
    answer = host.command(["systemctl", "show", f"--property={PROPERTIES}", "--", *dict.fromkeys(names)])
    return parse_show(answer.stdout) if answer.rc == 0 else {}


def _word(text: str) -> str:
    if any((ord(character) < 32 and character != "\t") or ord(character) == 127 for character in text):
        raise ValueError(f"a line break or control character cannot stand in a unit's line: {text!r}")
    for character, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        text = text.replace(character, escaped)
    return f'"{text}"' if text == "" or any(character in text for character in " \t'\"\\;") else text


def command_word(text: str) -> str:
    """One word of a unit's command line: quoted, with specifiers and variables taken literally."""
    return _word(text).replace("$", "$$")


def assignment(name: str, value: str) -> str:
    """One assignment of an Environment= line, in which systemd leaves the dollar sign alone."""
    return _word(f"{name}={value}")
