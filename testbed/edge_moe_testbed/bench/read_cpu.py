# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU seconds that a GiB costs in the miss path, over a pool of four pread threads with pieces of 128 KiB.

Both sides are the same cache, on the same slots; only the reader and the size of a read differ. User and system time
of all threads count.
"""

from __future__ import annotations

import statistics
from typing import Any

from edge_moe_testbed.bench import reading
from edge_moe_testbed.bench.figure import Figure, machine
from edge_moe_testbed.bench.read_efficiency import MISSES

PAIRS = 7
BASELINE = {"reader": "pread", "depth": 4, "read_kib": 128}


def measure() -> Figure:
    path = reading.MissPath()
    sides: dict[str, dict[str, Any]] = {"baseline": BASELINE, "ours": {}}
    runs: list[dict[str, Any]] = []
    for number in range(PAIRS):
        pair: dict[str, Any] = {}
        for side in list(sides)[:: 1 if number % 2 == 0 else -1]:
            pair[side] = path.run(misses=MISSES, seed=number, **sides[side])
        runs.append({**pair, "ratio": pair["ours"]["cpu_s_per_gib"] / pair["baseline"]["cpu_s_per_gib"]})
        print(
            f"  pair {number + 1}/{PAIRS}: baseline {pair['baseline']['cpu_s_per_gib']:.4f} s/GiB, "
            f"ours {pair['ours']['cpu_s_per_gib']:.4f} s/GiB",
            flush=True,
        )
    return Figure(
        name="read_cpu",
        value=statistics.median(run["ratio"] for run in runs),
        unit="x",
        goal=0.60,
        better="lower",
        detail={"machine": machine(), "file": str(path.model), "misses": MISSES, "runs": runs},
    )
