# SPDX-License-Identifier: GPL-3.0-or-later
"""What the preflight checks make of the text of dpkg and /proc."""

from __future__ import annotations

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _board_probe as probe

STATUS = """\
Package: nvidia-l4t-core
Status: hold ok installed
Version: 36.4.7

Package: nvidia-l4t-bootloader
Status: install ok installed
Description: two
 Package: not-a-package

Package: cmake
Status: install ok half-configured

Package: libgomp1
Status: install ok installed
"""

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000   997        0 20042 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000   997        0 20043 1 0 20 4 30 10 -1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 17001 1 0 100 0 0 10 0
"""


def test_only_fully_installed_packages_count() -> None:
    installed = probe.parse_dpkg_status(STATUS)
    assert installed == {"nvidia-l4t-core": "hold", "nvidia-l4t-bootloader": "install", "libgomp1": "install"}


def test_missing_packages_keep_their_order_and_take_either_choice() -> None:
    installed = probe.parse_dpkg_status(STATUS)
    assert probe.missing_packages(installed, ["cmake", "libgomp1", "gone|libgomp1", "a|b"]) == ["cmake", "a"]


def test_packages_on_hold_are_left_out() -> None:
    assert probe.unheld_packages(probe.parse_dpkg_status(STATUS), ["nvidia-l4t-*"]) == ["nvidia-l4t-bootloader"]


@pytest.mark.parametrize(("port", "inodes"), [(8080, ["20042"]), (22, ["17001"]), (80, [])])
def test_only_listening_sockets_of_the_port_count(port: int, inodes: list[str]) -> None:
    assert probe.listening_inodes(TCP, port) == inodes


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/edge.slice/edge-moe.slice/edge-moe-server.service\n", "edge-moe-server.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "session-3.scope"),
        ("0::/system.slice/docker.service/sub\n", "docker.service"),
        ("0::/\n", ""),
        ("", ""),
    ],
)
def test_the_unit_is_the_innermost_of_the_path(text: str, unit: str) -> None:
    assert probe.unit_of_cgroup(text) == unit


@pytest.mark.parametrize(("cores", "gib", "jobs"), [(6, 7.4, 3), (6, 1.5, 1), (2, 16, 2), (12, 30, 12), (1, 0, 1)])
def test_jobs_follow_memory_before_cores(cores: int, gib: float, jobs: int) -> None:
    assert probe.build_jobs(cores, int(gib * 1024**3)) == jobs


def test_available_memory_is_in_bytes_and_absent_is_none() -> None:
    assert probe.parse_mem_available("MemTotal: 8 kB\nMemAvailable:    4 kB\n") == 4096
    assert probe.parse_mem_available("MemTotal: 8 kB\n") == 0
