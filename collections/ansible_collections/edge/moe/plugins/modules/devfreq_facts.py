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
        writers:
          description: >-
            What else sets the GPU's clock at every boot: enabled services by name, C(/etc/rc.local) and jtop's
            settings by path. Power modes are left out, as they write once.
          type: list
          elements: str
          sample: [pin-clocks.service]
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
        perf_event_paranoid:
          description: >-
            How closely the kernel keeps the events that the service watches by; V(null) where it does not tell.
            Debian's and Ubuntu's kernels know levels above 2.
          type: int
          sample: 2
        warnings:
          description: What could not be read or looks wrong, one sentence each.
          type: list
          elements: str
          sample: []
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils._floor_facts import FLOOR_UNIT, gather_devfreq
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from ansible_collections.edge.moe.plugins.module_utils._module import exit_facts
from ansible_collections.edge.moe.plugins.module_utils._systemd import unit_states


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "unit": {"type": "str", "default": FLOOR_UNIT},
        },
        supports_check_mode=True,
    )
    host, unit = Host(module.params["root"]), module.params["unit"]
    state = unit_states(host, [unit]).get(unit)
    exit_facts(module, "edge_moe_devfreq", gather_devfreq(host, state.active if state else None, time.time()))


if __name__ == "__main__":
    main()
