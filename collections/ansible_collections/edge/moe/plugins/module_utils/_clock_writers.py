# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What sets a GPU's clock at every boot, beside the clock-floor service.

Private to this collection: it may change in any release.

A power mode (nvpmodel) is none: it writes once, and the service comes after it.
"""

from __future__ import annotations

import json
import os
import re

from ansible_collections.edge.moe.plugins.module_utils._host import Host

UNITS = "/etc/systemd/system"
# as systemd looks for a unit: what an administrator has put there comes before the distribution's
UNIT_FOLDERS = (UNITS, "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
RC_LOCAL = "/etc/rc.local"
JTOP = "/usr/local/jtop/config.json"

_SETS = r"(\bjetson_clocks\b(?!\s+--(show|store|restore)\b)|\bdevfreq\S*/min_freq\b)"
# a line of its own without a name before it goes on with a command
_UNIT_SETS = re.compile(rf"(?m)^(Exec\w+=.*|[^#;=\[\n]*){_SETS}")
_SCRIPT_SETS = re.compile(rf"(?m)^[^#\n]*{_SETS}")
# the published tool of the same kind starts a program of its own, so it is known by name
_RIVAL = re.compile(r"jetson-moe-gpu-")


def starting(host: Host) -> list[str]:
    """Services that an administrator or a package has enabled; sorted, each once."""
    folders = [name for name in host.entries(UNITS) if name.endswith((".wants", ".requires"))]
    names = {name for folder in folders for name in host.entries(f"{UNITS}/{folder}")}
    return sorted(name for name in names if name.endswith(".service"))


def unit_text(host: Host, name: str) -> str:
    """Of the first file that systemd would take; empty for one that is masked or not there."""
    for folder in UNIT_FOLDERS:
        if os.path.lexists(host.path(f"{folder}/{name}")):
            return host.read_text(f"{folder}/{name}") or ""
    return ""


def jtop_sets(text: str) -> bool:
    """Whether jtop runs jetson_clocks when the board boots, by its settings."""
    try:
        settings = json.loads(text)["jetson_clocks"]
        return bool(settings["boot"] is True)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def clock_writers(host: Host) -> list[str]:
    """Names of enabled services and paths of files that set the clock when the board boots, sorted."""
    found = [name for name in starting(host) if _RIVAL.match(name) or _UNIT_SETS.search(unit_text(host, name))]
    if os.access(host.path(RC_LOCAL), os.X_OK) and _SCRIPT_SETS.search(host.read_text(RC_LOCAL) or ""):
        found.append(RC_LOCAL)
    if jtop_sets(host.read_text(JTOP) or ""):
        found.append(JTOP)
    return sorted(found)
