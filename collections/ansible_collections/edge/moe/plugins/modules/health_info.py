#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: health_info
short_description: Whether a board is well, in one look
version_added: 1.0.0
description:
  - Reads what M(edge.moe.jetson_facts), M(edge.moe.devfreq_facts) and M(edge.moe.expert_cache_facts) read, in one run
    on the board, and judges it. One run instead of three is what makes it cheap enough for cron.
  - A problem is something to act on, and says what was seen and what to do. A missing source is none, and a board
    that serves nothing is none.
  - The module does not fail on a board that is not well.
extends_documentation_fragment: [edge.moe.attributes.reads]
options:
  root:
    description: Root of the file system to read. Something else than V(/) is of use in tests only.
    type: path
    default: /
  units:
    description: Units that have to run where they are enabled.
    type: list
    elements: str
    default: [edge-moe-server.service, edge-moe-clock-floor.service]
seealso:
  - module: edge.moe.jetson_facts
  - module: edge.moe.devfreq_facts
  - module: edge.moe.expert_cache_facts
"""

EXAMPLES = r"""
- name: Look at the board
  edge.moe.health_info:
  register: look

- name: Fail with everything that is wrong
  ansible.builtin.assert:
    that: look.health.healthy
    fail_msg: "{{ look.health.problems }}"
"""

RETURN = r"""
health:
  description: The judgement and what it was made from.
  returned: success
  type: dict
  contains:
    healthy:
      description: Whether there is no problem.
      returned: always
      type: bool
    problems:
      description: One sentence for each thing that is wrong.
      returned: always
      type: list
      elements: str
      sample: ["17000000.gpu is pinned at 1020 MHz: jetson_clocks --restore"]
    line:
      description: The board's cells in the table of all boards, after its name.
      returned: always
      type: list
      elements: str
    units:
      description: ActiveState of each of O(units) that is enabled.
      returned: always
      type: dict
      sample: {edge-moe-server.service: active}
    jetson:
      description: As RV(edge.moe.jetson_facts#module:ansible_facts.edge_moe_jetson).
      returned: always
      type: dict
    devfreq:
      description: As RV(edge.moe.devfreq_facts#module:ansible_facts.edge_moe_devfreq).
      returned: always
      type: dict
    expert_cache:
      description: As RV(edge.moe.expert_cache_facts#module:ansible_facts.edge_moe_expert_cache).
      returned: always
      type: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import _expert_cache, _health, _jetson
from ansible_collections.edge.moe.plugins.module_utils._floor_facts import FLOOR_UNIT, gather_devfreq
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from ansible_collections.edge.moe.plugins.module_utils._systemd import unit_states


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "units": {
                "type": "list",
                "elements": "str",
                "default": ["edge-moe-server.service", "edge-moe-clock-floor.service"],
            },
        },
        supports_check_mode=True,
    )
    host = Host(module.params["root"])
    states = unit_states(host, [*module.params["units"], FLOOR_UNIT])
    units = {name: states[name].active for name in module.params["units"] if name in states and states[name].enabled}
    floor_unit = states[FLOOR_UNIT].active if FLOOR_UNIT in states else None
    jetson = _jetson.gather(host)
    devfreq = gather_devfreq(host, floor_unit, time.time())
    cache = _expert_cache.gather(host)
    problems = _health.problems_of(jetson, devfreq, cache, units)
    health = {
        "healthy": not problems,
        "problems": problems,
        "line": _health.line_of(jetson, devfreq, cache, problems),
        "units": units,
        "jetson": jetson,
        "devfreq": devfreq,
        "expert_cache": cache,
    }
    module.exit_json(changed=False, health=health)


if __name__ == "__main__":
    main()
