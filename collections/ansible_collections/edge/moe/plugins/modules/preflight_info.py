#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that the roles ask of a machine before they touch it, in one trip."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_info
short_description: What the roles check before they touch a machine
version_added: 1.0.0
description:
  - Reads, in one trip, what the preflight steps of the roles need, so that a role costs one task, not one a question.
  - Changes nothing.
author: edge.moe contributors (@edge-moe)
options:
  paths:
    description: Directories whose free space is told. One that is not there yet counts as its nearest parent.
    type: list
    elements: path
    default: []
  ports:
    description: TCP ports; for each the process that listens on it is told.
    type: list
    elements: int
    default: []
  packages:
    description: Debian packages that should be installed. Two names with a bar between them are satisfied by either.
    type: list
    elements: str
    default: []
  hold_globs:
    description: Installed packages of these names that are not on hold are told.
    type: list
    elements: str
    default: []
  audit:
    description: Whether to run C(dpkg --audit).
    type: bool
    default: false
  programs:
    description: Programs whose version line is told. A path is taken as it is, a name is looked up.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Can run in check mode and return the same.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
"""

EXAMPLES = r"""
- name: Ask all that is needed before the server is installed
  edge.moe.preflight_info:
    paths: [/var/lib/edge-moe/models]
    ports: [8080]
  register: before
"""

RETURN = r"""
preflight:
  description: What was read.
  returned: always
  type: dict
  contains:
    root: {description: Whether the module ran as root., type: bool, returned: always}
    machine: {description: The machine's architecture as the kernel names it., type: str, returned: always}
    cores: {description: CPUs this process may use., type: int, returned: always}
    jobs: {description: Compile jobs that cores and available memory allow., type: int, returned: always}
    free_bytes: {description: "Free bytes by asked path, C(~) and variables expanded.", type: dict, returned: always}
    ports: {description: "C(pid), C(command), C(unit) of the holder, by taken port.", type: dict, returned: always}
    missing_packages: {description: Asked packages that are missing., type: list, elements: str, returned: always}
    unheld_packages: {description: Matching packages not on hold., type: list, elements: str, returned: always}
    audit: {description: "Lines of C(dpkg --audit); empty is good.", type: list, elements: str, returned: always}
    programs: {description: "Version line by asked program, null when it is not there.", type: dict, returned: always}
"""

import os
import platform
import shutil
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import _board_probe as probe


def read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def free_bytes(path: str) -> int:
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


def port_holder(port: int) -> dict[str, Any] | None:
    inodes = [inode for table in ("tcp", "tcp6") for inode in probe.listening_inodes(read(f"/proc/net/{table}"), port)]
    if not inodes:
        return None
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:  # gone meanwhile, or not ours to look into
            continue
        if sockets.intersection(links):
            return {
                "pid": int(pid),
                "command": read(f"/proc/{pid}/comm").strip(),
                "unit": probe.unit_of_cgroup(read(f"/proc/{pid}/cgroup")),
            }
    return {"pid": None, "command": "a process that only root can see", "unit": ""}


def version_line(module: AnsibleModule, program: str) -> str | None:
    path = program if program.startswith("/") else shutil.which(program)
    if not path or not os.path.exists(path):
        return None
    rc, out, err = module.run_command([path, "--version"], errors="replace")
    # nvcc opens with its own name and licence and tells the release further down
    lines = [line.strip() for line in (out or err).splitlines() if line.strip()]
    telling = [line for line in lines if "release" in line] if "nvcc" in program else lines
    return (telling or lines or [f"{program}: no version told (rc {rc})"])[0]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "hold_globs": {"type": "list", "elements": "str", "default": []},
            "audit": {"type": "bool", "default": False},
            "programs": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    params = module.params
    installed: dict[str, str] = {}
    if params["packages"] or params["hold_globs"]:
        installed = probe.parse_dpkg_status(read("/var/lib/dpkg/status"))
    audit: list[str] = []
    if params["audit"] and shutil.which("dpkg"):
        _rc, out, _err = module.run_command(["dpkg", "--audit"], errors="replace")
        audit = [line.strip() for line in out.splitlines() if line.strip()]
    cores = len(os.sched_getaffinity(0))
    holders = {str(port): port_holder(port) for port in params["ports"]}
    module.exit_json(
        changed=False,
        preflight={
            "root": os.geteuid() == 0,
            "machine": platform.machine(),
            "cores": cores,
            "jobs": probe.build_jobs(cores, probe.parse_mem_available(read("/proc/meminfo"))),
            "free_bytes": {path: free_bytes(path) for path in params["paths"]},
            "ports": {port: holder for port, holder in holders.items() if holder},
            "missing_packages": probe.missing_packages(installed, params["packages"]),
            "unheld_packages": probe.unheld_packages(installed, params["hold_globs"]),
            "audit": audit,
            "programs": {program: version_line(module, program) for program in params["programs"]},
        },
    )


if __name__ == "__main__":
    main()
