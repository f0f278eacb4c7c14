# SPDX-License-Identifier: GPL-3.0-or-later
"""Each planted fault once on the converged board: found by its own class, and taken back without a trace."""

from __future__ import annotations

from typing import Any

import pytest
from edge_moe_testbed import faults
from edge_moe_testbed.board import Board

SERVER, FLOOR = "edge-moe-server.service", "edge-moe-clock-floor.service"


@pytest.fixture(scope="module")
def seen(host: Any) -> dict[str, faults.Seen]:
    """All faults one after the other in one command, and what each was taken for."""
    board = Board(host.backend.get_hostname())
    faults.ship(board)
    planted = faults.plant(board, list(faults.FAULTS), faults.Verified(board.name), rounds=1, seed=1)
    found = {each.fault: each for each in planted}
    print(faults.table(list(found.values())))
    return found


@pytest.mark.parametrize("fault", list(faults.FAULTS))
def test_fault_is_found_by_its_class(fault: str, seen: dict[str, faults.Seen]) -> None:
    assert seen[fault].right, seen[fault].verdict["failures"]


@pytest.mark.usefixtures("seen")
def test_nothing_planted_is_left(host: Any) -> None:
    # one command, as each costs seconds here
    script = (
        "find /run/systemd/system /run/systemd/system.control -name '*edge-moe*'; "
        f"systemctl is-active {SERVER} {FLOOR}; systemctl show --value -p CPUQuotaPerSecUSec {SERVER}; "
        "cat /sys/fs/cgroup/edge.slice/edge-moe.slice/memory.swap.max "
        f"/sys/fs/cgroup/edge.slice/edge-moe.slice/{SERVER}/memory.swap.max"
    )
    assert host.check_output("sh -c %s", script).split() == ["active", "active", "infinity", "0", "0"]
