#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""State of a llama-server that systemd runs, waiting for its health for a limited time."""

from __future__ import annotations

DOCUMENTATION = r"""
module: server_info
short_description: State, health and swap limit of a served llama-server
version_added: 1.0.0
description:
  - Asks systemd about the unit and the server about its health, and reads the swap limit that is really in force.
  - Waits for the health, but not longer than the server can still become healthy.
author: edge.moe contributors (@edge-moe)
options:
  unit:
    description: The systemd unit.
    type: str
    required: true
  url:
    description: The server's health URL.
    type: str
    required: true
  wait_s:
    description: Seconds to wait for the health at most.
    type: int
    default: 0
attributes:
  check_mode:
    description: Can run in check mode and return the same.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
"""

EXAMPLES = r"""
- name: Wait for the server
  edge.moe.server_info:
    unit: edge-moe-server.service
    url: http://127.0.0.1:8080/health
    wait_s: 25
  register: state
  until: state.server.healthy or state.server.active_state in ['failed', 'inactive']
"""

RETURN = r"""
server:
  description: What was seen.
  returned: always
  type: dict
  contains:
    load_state: {description: Whether systemd knows the unit., type: str, returned: always, sample: loaded}
    active_state: {description: The unit's state., type: str, returned: always, sample: active}
    main_pid: {description: The server's process; 0 when none runs., type: int, returned: always}
    healthy: {description: Whether the health URL answered 200., type: bool, returned: always}
    memory_swap_max:
      description: Content of C(memory.swap.max) of the running unit; null when it does not run.
      type: str
      returned: always
    journal:
      description: The server's last journal lines, when it is not healthy; those of systemd if it has said nothing.
      type: list
      elements: str
      returned: always
"""

import http.client
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url
from ansible_collections.edge.moe.plugins.module_utils._host import run_command

PROPERTIES = ("LoadState", "ActiveState", "MainPID", "ControlGroup")


def unit_state(unit: str) -> dict[str, str]:
    command = ["systemctl", "show", unit, *(f"--property={name}" for name in PROPERTIES)]
    # without systemd it tells nothing, and nothing runs
    return dict(line.partition("=")[::2] for line in run_command(command, timeout_s=30).stdout.splitlines())


def is_healthy(url: str) -> bool:
    try:
        # the server is on this machine, and no proxy can reach it for us
        with open_url(url, timeout=5, use_proxy=False) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException, ValueError):
        return False


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "url": {"type": "str", "required": True},
            "wait_s": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    unit, url = module.params["unit"], module.params["url"]
    deadline = time.monotonic() + module.params["wait_s"]
    while True:
        state = unit_state(unit)
        active = state.get("ActiveState", "unknown")
        # another process may answer on the port, so the unit has to be up as well
        healthy = active == "active" and is_healthy(url)
        if healthy or active not in ("active", "activating", "reloading") or time.monotonic() >= deadline:
            break
        time.sleep(1)
    swap_max = None
    group = state.get("ControlGroup", "")
    if group:
        try:
            with open(f"/sys/fs/cgroup{group}/memory.swap.max") as file:
                swap_max = file.read().strip()
        except OSError:
            swap_max = None
    journal: list[str] = []
    if not healthy and state.get("LoadState") == "loaded":
        # the server's own words, which what systemd says of its end would push out; only one that never ran has none
        for whose in (f"_SYSTEMD_UNIT={unit}", f"--unit={unit}"):
            command = ["journalctl", whose, "--boot", "--no-pager", "--quiet", "--output=cat", "--lines=15"]
            _rc, out, _err = module.run_command(command, errors="replace")
            journal = journal or [line for line in out.splitlines() if line.strip()]
    module.exit_json(
        changed=False,
        server={
            "load_state": state.get("LoadState", "unknown"),
            "active_state": active,
            "main_pid": int(state.get("MainPID") or 0),
            "healthy": healthy,
            "memory_swap_max": swap_max,
            "journal": journal,
        },
    )


if __name__ == "__main__":
    main()
