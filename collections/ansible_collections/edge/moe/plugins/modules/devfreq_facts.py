#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: devfreq_facts
short_description: Frequencies of a board's GPU and state of the clock floor
version_added: 1.0.0
description:
  - Reads every GPU node below C(/sys/class/devfreq), and what the C(edge-moe-clock-floor) service last said.
  - What cannot be read is V(null) with a warning. A machine without a GPU node is no failure.
  - Returns nothing but C(ansible_facts).
extends_documentation_fragment: [edge.moe.attributes.reads]
options:
  root:
    description: Root of the file system to read. Something else than V(/) is of use in tests only.
    type: path
    default: /
  unit:
    description: Name of the service whose state is reported.
    type: str
    default: edge-moe-clock-floor.service
seealso:
  - module: edge.moe.jetson_facts
"""

EXAMPLES = r"""
- name: Read the GPU's frequencies
  edge.moe.devfreq_facts:

- name: Say how fast the GPU may run
  ansible.builtin.debug:
    msg: "{{ ansible_facts['edge_moe_devfreq'].nodes | map(attribute='max_hz') | list }}"
"""

RETURN = r"""
ansible_facts:
  description: Facts to add to the host's.
  returned: always
  type: dict
  contains:
    edge_moe_devfreq:
      description: The GPU's devfreq nodes and the clock floor.
      returned: always
      type: dict
      contains:
        nodes:
          description: One entry for each GPU node (two on Thor); empty on a machine that has none.
          type: list
          elements: dict
          contains:
            name:
              description: Entry below C(/sys/class/devfreq).
              type: str
              sample: 17000000.gpu
            path:
              description: Real path of the node.
              type: str
              sample: /sys/devices/platform/17000000.gpu/devfreq/17000000.gpu
            of_node_name:
              description: What the device tree calls it; V(null) where there is no device tree.
              type: str
              sample: gpu
            available_hz:
              description: Table of frequencies, ascending.
              type: list
              elements: int
              sample: [306000000, 612000000, 1020000000]
            min_hz:
              description: Lowest frequency allowed now, which is the floor while it is up.
              type: int
              sample: 306000000
            max_hz:
              description: Highest frequency allowed now; the power mode sets it.
              type: int
              sample: 1020000000
            cur_hz:
              description: Frequency at this moment.
              type: int
              sample: 306000000
            governor:
              description: Governor in force.
              type: str
              sample: nvhost_podgov
            load_permille:
              description: Load of the GPU from 0 to 1000; V(null) where the driver does not tell.
              type: int
              sample: 360
            time_in_state_ms:
              description: >-
                Milliseconds spent at each frequency, by its hertz; V(null) where the kernel does not count them.
              type: dict
              sample: {"306000000": 912345, "1020000000": 5678}
            transitions:
              description: Changes of the frequency since the node exists; V(null) where the kernel does not count them.
              type: int
              sample: 42
            pinned_externally:
              description: C(min_freq) equals C(max_freq) and our floor did not do it, as after C(jetson_clocks).
              type: bool
              sample: false
        floor:
          description: The clock-floor service; V(null) where it is not installed.
          type: dict
          contains:
            unit:
              description: State of the unit as systemd says it.
              type: str
              sample: active
            raised:
              description: Whether the floor is up; V(null) if the service has said nothing.
              type: bool
              sample: false
            effective_hz:
              description: C(min_freq) as the service read it back.
              type: int
              sample: 306000000
            transitions:
              description: Times that the floor went up or down since the service started.
              type: int
              sample: 4
            probes_attached:
              description: Function entries and returns that are watched.
              type: int
              sample: 6
            updated_s_ago:
              description: Age of what the service said, in seconds.
              type: float
              sample: 2.5
            degraded:
              description: Why the floor cannot be held; empty if it can; V(null) if the service has said nothing.
              type: str
              sample: ""
        warnings:
          description: What could not be read or looks wrong, one sentence each.
          type: list
          elements: str
          sample: []
"""

import json
import re
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils._devfreq import GPU_NAMES, Node, Sysfs
from ansible_collections.edge.moe.plugins.module_utils._host import run_command
from ansible_collections.edge.moe.plugins.module_utils._module import exit_facts
from ansible_collections.edge.moe.plugins.module_utils._prometheus import find, parse, value, whole

PROM = "run/edge-moe/clock-floor.prom"
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


def gather(sysfs: Sysfs, unit: str | None, now: float) -> dict[str, Any]:
    nodes = sysfs.gpu_nodes()
    held = held_paths(sysfs)
    warnings = [line for node in nodes for line in node_warnings(node)]
    if not nodes:
        warnings.append(no_node_warning(sysfs))
    return {
        "nodes": [node_facts(node, held, sysfs.text(f"{node.path}/trans_stat")) for node in nodes],
        "floor": floor_facts(sysfs.text(PROM), unit, now),
        "warnings": warnings,
    }


def unit_state(unit: str) -> str | None:
    """ActiveState by systemd; None where the unit, or systemd, does not exist or does not answer in time."""
    answer = run_command(["systemctl", "show", "--property=LoadState,ActiveState", unit])
    states = dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)
    return states.get("ActiveState") if answer.rc == 0 and states.get("LoadState") != "not-found" else None


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "unit": {"type": "str", "default": "edge-moe-clock-floor.service"},
        },
        supports_check_mode=True,
    )
    facts = gather(Sysfs(module.params["root"]), unit_state(module.params["unit"]), time.time())
    exit_facts(module, "edge_moe_devfreq", facts)


if __name__ == "__main__":
    main()
