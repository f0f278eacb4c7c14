# SPDX-License-Identifier: GPL-3.0-or-later
"""From the entry of a llama.cpp call to `min_freq` written, for calls of a server that was idle.

Both ends are seen from outside: the entry by a probe of this benchmark's own, stamped by the kernel, the write through
inotify by a thread that is preferred to all others. So the figure is never better than the truth.
"""

from __future__ import annotations

import ctypes
import os
import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import BenchError, Figure, machine
from edge_moe_testbed.bench.floor_service import (
    FUNCTIONS,
    LOW_HZ,
    Service,
    moe_server,
    need_probes,
    package,
    real_library,
    service,
)

TRANSITIONS = 300
HOLD_S = 0.1
SEED = 1
_IN_MODIFY, _IN_CLOEXEC = 0x2, 0o2000000


class Writes:
    """When a file was written, in seconds of CLOCK_MONOTONIC."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(_IN_CLOEXEC)
        if self._descriptor < 0 or libc.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_MODIFY) < 0:
            raise BenchError(f"cannot watch {path}: {os.strerror(ctypes.get_errno())}")
        self.times: list[float] = []
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
        while os.read(self._descriptor, 4096):
            self.times.append(time.monotonic())


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(share * 1000) // 1000) - 1)]


class Entries:
    """When the library's functions were entered, in seconds of CLOCK_MONOTONIC."""

    def __init__(self, library: Path) -> None:
        uprobe, libraries = package("uprobe"), package("libraries")
        self._probes = uprobe.Probes(package("_devfreq").Sysfs("/"))
        with library.open("rb") as file:
            self._probes.attach((0, 0), file.fileno(), libraries.offsets_of(file.fileno(), FUNCTIONS))

    def drain(self) -> list[float]:
        events, _lost = self._probes.drain()
        return [event.when for event in events if event.begins]

    def close(self) -> None:
        self._probes.close()


def one(running: Service, server: harness.Server, entries: Entries, writes: Writes) -> dict[str, float]:
    """One idle-to-active transition; milliseconds seen from outside, and as the service says itself."""
    running.wait(lambda: running.min_hz == LOW_HZ and running.metric("raised") == 0, "the floor down")
    entries.drain()
    before = running.metric("transitions_total")
    server.complete("Once", 1)
    running.wait(lambda: running.metric("transitions_total") >= before + 2, "the floor up and down again")
    began = entries.drain()[0]
    written = next((when for when in writes.times if when > began), None)
    if written is None:
        raise BenchError("the service says that it raised the floor, and nobody has written min_freq")
    result = {"outside_ms": 1e3 * (written - began)}
    if running.metric("transitions_total") == before + 2:  # otherwise what it says is of a later raise
        result["own_ms"] = 1e3 * running.metric("reaction_seconds")
    return result


def measure() -> Figure:
    need_probes()
    root = harness.unpacked_artifact()
    library = real_library(root)
    chance = random.Random(SEED)  # noqa: S311 - spreads the pauses, protects nothing
    runs: list[dict[str, float]] = []
    with moe_server(root, "floor_reaction_ms") as server, service(library, HOLD_S) as running:
        writes, entries = Writes(running.min_freq), Entries(library)
        try:
            for number in range(TRANSITIONS):
                runs.append(one(running, server, entries, writes))
                time.sleep(chance.uniform(0.0, 0.05))
                if (number + 1) % 50 == 0:
                    print(f"  {number + 1}/{TRANSITIONS} transitions", flush=True)
        finally:
            entries.close()
    outside = [run["outside_ms"] for run in runs]
    own = [run["own_ms"] for run in runs if "own_ms" in run]
    detail: dict[str, Any] = {
        "machine": machine(),
        "load_average": os.getloadavg(),
        "library": library.resolve().name,
        "hold_s": HOLD_S,
        "seed": SEED,
        "transitions": TRANSITIONS,
        "median_ms": statistics.median(outside),
        "worst_ms": max(outside),
        "own_median_ms": statistics.median(own),
        "own_p99_ms": percentile(own, 0.99),
        "runs": runs,
    }
    return Figure("floor_reaction_ms", percentile(outside, 0.99), "ms", 5.0, "lower", detail)
