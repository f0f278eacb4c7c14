# SPDX-License-Identifier: GPL-3.0-or-later
"""What only a real kernel shows: units, swap and fences on the converged virtual board. Clocks: test_floor.py."""

from __future__ import annotations

from typing import Any

import pytest

SERVER = "edge-moe-server.service"
FLOOR = "edge-moe-clock-floor.service"


def show(host: Any, unit: str, name: str) -> str:
    return str(host.check_output("systemctl show --value -p %s %s", name, unit)).strip()


@pytest.mark.parametrize("unit", [SERVER, FLOOR])
def test_unit_is_active_and_comes_back_after_a_boot(host: Any, unit: str) -> None:
    assert host.service(unit).is_running
    assert host.service(unit).is_enabled


def test_reference_is_installed_but_neither_runs_nor_boots(host: Any) -> None:
    reference = host.service("edge-moe-reference.service")
    assert reference.exists
    assert not reference.is_running
    assert show(host, "edge-moe-reference.service", "UnitFileState") == "static"


def test_server_cannot_swap_while_the_board_does(host: Any) -> None:
    assert "zram" in host.file("/proc/swaps").content_string
    group = show(host, SERVER, "ControlGroup")
    assert group.startswith("/edge.slice/edge-moe.slice/")
    assert host.file(f"/sys/fs/cgroup{group}/memory.swap.max").content_string.strip() == "0"


def test_edge_moe_run_puts_a_command_where_it_cannot_swap(host: Any) -> None:
    script = 'group=$(cut -d: -f3 /proc/self/cgroup); echo "$group"; cat "/sys/fs/cgroup$group/memory.swap.max"'
    group, swap_max = host.check_output("/usr/local/bin/edge-moe-run sh -c %s", script).split()
    assert group.startswith("/edge.slice/edge-moe.slice/")
    assert swap_max == "0"


def test_model_is_larger_than_the_memory(host: Any) -> None:
    memory = int(host.check_output("awk '/^MemTotal/ {print $2}' /proc/meminfo")) * 1024
    assert host.file("/mnt/nvme/models/demo-moe.gguf").size > memory


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("User", "edge-moe"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("MemorySwapMax", "0"),
        ("Slice", "edge-moe.slice"),
        ("CapabilityBoundingSet", ""),
    ],
)
def test_server_is_fenced_in(host: Any, name: str, value: str) -> None:
    assert show(host, SERVER, name) == value


def test_server_listens_on_loopback_alone(host: Any) -> None:
    listening = [line for line in host.socket.get_listening_sockets() if line.endswith(":8080")]
    assert listening == ["tcp://127.0.0.1:8080"]
