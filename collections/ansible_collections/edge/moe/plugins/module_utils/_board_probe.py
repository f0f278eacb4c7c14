# SPDX-License-Identifier: GPL-3.0-or-later
"""Private to edge.moe, may change at any time: what the preflight checks read. Pure functions over text."""

from __future__ import annotations

import fnmatch
import re

LISTEN = "0A"
UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?:/|$)")


def parse_dpkg_status(text: str) -> dict[str, str]:
    """Package name to its want ("install", "hold" ...) for every package that is fully installed."""
    packages: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        name, status = "", ""
        for line in paragraph.splitlines():
            if line.startswith("Package:"):
                name = line.partition(":")[2].strip()
            elif line.startswith("Status:"):
                status = line.partition(":")[2].strip()
        want, _blank, state = status.partition(" ")
        if name and state == "ok installed":
            packages[name] = want
    return packages


def missing_packages(installed: dict[str, str], wanted: list[str]) -> list[str]:
    """Those of `wanted` that are not installed; "a|b" is satisfied by either and asks for the first."""
    missing = []
    for entry in wanted:
        choices = entry.split("|")
        if not any(choice in installed for choice in choices):
            missing.append(choices[0])
    return missing


def unheld_packages(installed: dict[str, str], globs: list[str]) -> list[str]:
    """Installed packages that match one of `globs` and are not on hold."""
    return sorted(
        name
        for name, want in installed.items()
        if want != "hold" and any(fnmatch.fnmatchcase(name, glob) for glob in globs)
    )


def listening_inodes(proc_net_tcp: str, port: int) -> list[str]:
    """Socket inodes that listen on `port`, from the text of /proc/net/tcp or tcp6."""
    inodes = []
    for line in proc_net_tcp.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != LISTEN:
            continue
        if int(fields[1].rpartition(":")[2], 16) == port:
            inodes.append(fields[9])
    return inodes


def unit_of_cgroup(text: str) -> str:
    """The systemd unit that a process belongs to, from the text of /proc/PID/cgroup; empty when it has none."""
    for line in text.splitlines():
        units = UNIT.findall(line)
        if units:
            return str(units[-1])
    return ""


def parse_mem_available(meminfo: str) -> int:
    """Bytes of MemAvailable in the text of /proc/meminfo; 0 when it is not told."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def build_jobs(cores: int, available_bytes: int) -> int:
    """Compile jobs that neither idle the cores nor run the machine out of memory: one for each 2 GiB available."""
    return max(1, min(cores, available_bytes // (2 * 1024**3)))
