# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory (Pss) of the whole clock-floor service: all its processes, the higher of idle and raised."""

from __future__ import annotations

from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import Figure, machine
from edge_moe_testbed.bench.floor_service import TOP_HZ, moe_server, need_probes, real_library, service

HOLD_S = 1.0
RAISES = 5


def measure() -> Figure:
    need_probes()
    root = harness.unpacked_artifact()
    library = real_library(root)
    raised: list[float] = []
    with moe_server(root, "floor_memory_mib") as server, service(library, HOLD_S) as running:
        for _ in range(RAISES):
            server.complete("Once", 8)
            running.wait(lambda: running.min_hz == TOP_HZ, "the floor up")
            raised.append(running.pss_bytes() / 2**20)
            running.wait(lambda: running.min_hz != TOP_HZ, "the floor down")
        idle = running.pss_bytes() / 2**20
        count = len(running.processes())
    detail = {
        "machine": machine(),
        "idle_mib": idle,
        "raised_mib": raised,
        "processes": count,
        "library": library.resolve().name,
    }
    return Figure("floor_memory_mib", max([idle, *raised]), "MiB", 18.0, "lower", detail)
