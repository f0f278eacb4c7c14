# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU that the clock-floor service takes, in per cent of one core, while the server that it watches is idle."""

from __future__ import annotations

import time

from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import BenchError, Figure, machine
from edge_moe_testbed.bench.floor_service import TOP_HZ, moe_server, need_probes, real_library, service

WATCH_S = 60.0
HOLD_S = 1.0


def measure() -> Figure:
    need_probes()
    root = harness.unpacked_artifact()
    library = real_library(root)
    with moe_server(root, "floor_idle_cpu") as server, service(library, HOLD_S) as running:
        # It has to know the server: an idle one that was never judged would be a lesser thing to watch.
        server.complete("Once", 8)
        running.wait(lambda: running.min_hz == TOP_HZ, "the floor up")
        running.wait(lambda: running.metric("raised") == 0 and running.min_hz != TOP_HZ, "the floor down")
        time.sleep(HOLD_S)
        transitions = running.metric("transitions_total")
        used_s, began = running.cpu_s(), time.monotonic()
        time.sleep(WATCH_S)
        used_s, took_s = running.cpu_s() - used_s, time.monotonic() - began
        if running.metric("transitions_total") != transitions:
            raise BenchError("the server was not idle: the floor moved meanwhile")
    detail = {"machine": machine(), "watched_s": took_s, "used_s": used_s, "library": library.resolve().name}
    return Figure("floor_idle_cpu", 100 * used_s / took_s, "%", 0.1, "lower", detail)
