# SPDX-License-Identifier: GPL-3.0-or-later
"""Each planted fault once on the converged board: found by its own class, and taken back without a trace."""

from __future__ import annotations

from typing import Any

import pytest
from edge_moe_testbed import faults
from edge_moe_testbed.board import Board

SERVER, FLOOR = "edge-moe-server.service", "edge-moe-clock-floor.service"


@pytest.fixture(scope="module")
def board(host: Any) -> Board:
    found = Board(host.backend.get_hostname())
    faults.ship(found)
    return found


@pytest.fixture(scope="module")
def verified(board: Board) -> faults.Verified:
    return faults.Verified(board.name)


@pytest.mark.parametrize("name", list(faults.FAULTS))
def test_fault_is_found_by_its_class(name: str, board: Board, verified: faults.Verified) -> None:
    (seen,) = faults.plant(board, name, verified, rounds=1, seed=1)
    assert seen.is_right(faults.FAULTS[name]), seen.verdict["failures"]


def test_nothing_planted_is_left(host: Any, board: Board) -> None:
    for folder in ("/run/systemd/system", "/run/systemd/system.control"):
        assert host.check_output("find %s -name '*edge-moe*' 2> /dev/null || true", folder) == ""
    assert host.check_output("systemctl is-active %s %s", SERVER, FLOOR).split() == ["active", "active"]
    assert host.check_output("systemctl show --value -p CPUQuotaPerSecUSec %s", SERVER) == "infinity"
    for unit in (SERVER, "edge-moe.slice"):
        group = host.check_output("systemctl show --value -p ControlGroup %s", unit)
        assert host.file(f"/sys/fs/cgroup{group}/memory.swap.max").content_string.strip() == "0"
