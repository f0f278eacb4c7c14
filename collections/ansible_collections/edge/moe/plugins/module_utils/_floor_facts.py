# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of a board's GPU nodes and of the clock-floor service that holds them.

Private to this collection: it may change in any release.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils._clock_writers import clock_writers
from ansible_collections.edge.moe.plugins.module_utils._devfreq import GPU_NAMES, Node, Sysfs
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from ansible_collections.edge.moe.plugins.module_utils._prometheus import find, parse, value, whole

FLOOR_UNIT = "edge-moe-clock-floor.service"
PROM = "run/edge-moe/clock-floor.prom"
PARANOID = "/proc/sys/kernel/perf_event_paranoid"
JOURNAL = "run/edge-moe-clock-floor/baseline.json"
PREFIX = "edge_moe_clock_floor_"


def held_paths(sysfs: Sysfs) -> set[str]:
    """Nodes whose floor the service holds up, from its journal; a journal of an earlier boot holds nothing."""
    try:
        data = json.loads(sysfs.text(JOURNAL) or "{}")
        return {node["path"] for node in data["nodes"]} if data.get("boot_id") == sysfs.boot_id() else set()
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()


def parse_trans_stat(text: str | None) -> tuple[dict[str, int] | None, int | None]:
    """Milliseconds by frequency, and the number of changes, from a node's trans_stat. None for what is not there.

    A row is a frequency, one count for each frequency, and the time; the present frequency's row begins with a star.
    """
    times: dict[str, int] = {}
    changes: int | None = None
    for line in (text or "").splitlines():
        row = re.match(r"\s*\*?\s*(\d{1,12}):((?:\s+\d{1,20})+)\s*$", line)
        total = re.match(r"\s*Total transition\s*:\s*(\d{1,20})\s*$", line)
        if row:
            times[row.group(1)] = int(row.group(2).split()[-1])
        elif total:
            changes = int(total.group(1))
    return times or None, changes


def node_facts(node: Node, held: set[str], trans_stat: str | None = None) -> dict[str, Any]:
    time_in_state, transitions = parse_trans_stat(trans_stat)
    return {
        "name": node.name,
        "path": node.path,
        "of_node_name": node.of_node_name,
        "available_hz": list(node.available_hz),
        "min_hz": node.min_hz,
        "max_hz": node.max_hz,
        "cur_hz": node.cur_hz,
        "governor": node.governor,
        "load_permille": node.load_permille,
        "time_in_state_ms": time_in_state,
        "transitions": transitions,
        "pinned_externally": node.pinned and node.path not in held,
    }


def node_warnings(node: Node) -> list[str]:
    missing = [
        name
        for name, read in (
            ("available_frequencies", node.available_hz),
            ("min_freq", node.min_hz),
            ("max_freq", node.max_hz),
            ("cur_freq", node.cur_hz),
            ("governor", node.governor),
        )
        if read in (None, ())
    ]
    return [f"{node.path}/{name} could not be read or holds no usable value" for name in missing]


def no_node_warning(sysfs: Sysfs) -> str:
    return f"No GPU devfreq node: {sysfs.seen()}; looked for a device named {', '.join(GPU_NAMES)}."


def floor_facts(text: str | None, unit: str | None, now: float) -> dict[str, Any] | None:
    """`unit` is None where the unit does not exist. Pure."""
    if text is None and unit is None:
        return None
    samples = parse(text or "").samples
    degraded = find(samples, PREFIX + "degraded")
    raised = value(samples, PREFIX + "raised")
    updated = value(samples, PREFIX + "updated_timestamp_seconds")
    return {
        "unit": unit or "not-found",
        "raised": None if raised is None else raised == 1,
        "effective_hz": whole(samples, PREFIX + "effective_hz"),
        "transitions": whole(samples, PREFIX + "transitions_total"),
        "probes_attached": whole(samples, PREFIX + "probes_attached"),
        "updated_s_ago": None if updated is None else round(max(0.0, now - updated), 1),
        "degraded": None if degraded is None else degraded.labels.get("reason", ""),
    }


def gather_devfreq(host: Host, unit: str | None, now: float) -> dict[str, Any]:
    sysfs = Sysfs(host.root)
    nodes = sysfs.gpu_nodes()
    held = held_paths(sysfs)
    warnings = [line for node in nodes for line in node_warnings(node)]
    if not nodes:
        warnings.append(no_node_warning(sysfs))
    return {
        "nodes": [node_facts(node, held, sysfs.text(f"{node.path}/trans_stat")) for node in nodes],
        "writers": clock_writers(host),
        "floor": floor_facts(sysfs.text(PROM), unit, now),
        "perf_event_paranoid": host.read_int(PARANOID),
        "warnings": warnings,
    }
