# SPDX-License-Identifier: GPL-3.0-or-later
"""The clock-floor service after other settings, off and on again, and everything that the role refused."""

from __future__ import annotations

import time
from typing import Any

UNIT = "edge-moe-clock-floor.service"
PACKAGE = "/usr/lib/edge-moe/edge_moe_clock_floor"


def show(host: Any, name: str) -> str:
    return str(host.check_output("systemctl show --value -p %s %s", name, UNIT)).strip()


def test_what_the_service_has_no_more_is_gone(host: Any) -> None:
    names = set(host.file(PACKAGE).listdir())
    assert "loop.py" in names
    assert "gone.py" not in names


def test_settings_are_those_of_the_second_converge(host: Any) -> None:
    lines = host.file("/etc/default/edge-moe-clock-floor").content_string.splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == [
        "FLOOR_HZ=612000000",
        "HOLD_S=2.5",
        'LIBRARIES="/opt/other/libllama.so /srv/llama/lib*/libllama.so*"',
        'FUNCTIONS="llama_decode llama_process llama_synchronize"',
        'MOE_FLAGS="--cpu-moe -ot"',
        "COUNT_ZERO_N_CPU_MOE=no",
        "RESCAN_S=5.0",
        "WATCH_RUNNING=no",
    ]


def test_a_killed_service_comes_back(host: Any) -> None:
    restarts, before = int(show(host, "NRestarts")), show(host, "MainPID")
    host.check_output("systemctl kill --signal=KILL %s", UNIT)
    deadline = time.monotonic() + 15
    while show(host, "ActiveState") != "active" or show(host, "MainPID") in (before, "0"):
        assert time.monotonic() < deadline, host.run("journalctl -n 20 -u %s", UNIT).stdout
        time.sleep(0.2)
    assert int(show(host, "NRestarts")) == restarts + 1
