# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from edge_moe_clock_floor.notify import Notifier


@pytest.mark.parametrize("abstract", [False, True])
def test_messages_arrive_in_order_and_a_status_is_said_once(tmp_path: Path, abstract: bool) -> None:
    name = f"edge-moe-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(5)
        manager.bind("\0" + name if abstract else name)
        notifier = Notifier({"NOTIFY_SOCKET": "@" + name if abstract else name})
        notifier.ready("floor 306 MHz (idle)")
        notifier.status("floor 306 MHz (idle)")
        notifier.status("degraded: no node")
        notifier.alive()
        notifier.stopping()
        assert [manager.recv(256).decode() for _turn in range(4)] == [
            "READY=1\nSTATUS=floor 306 MHz (idle)",
            "STATUS=degraded: no node",
            "WATCHDOG=1",
            "STOPPING=1",
        ]


def test_silent_without_a_manager_or_with_one_that_went_away(tmp_path: Path) -> None:
    Notifier({}).ready("x")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready("x")


OWN = "own"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": OWN}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_at_half_its_limit(environment: dict[str, str], expected: float | None) -> None:
    # not before it runs: a test may run in a fork of what has collected it
    environment = {name: str(os.getpid()) if value is OWN else value for name, value in environment.items()}
    assert Notifier(environment).watchdog_s == expected
