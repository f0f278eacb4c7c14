# SPDX-License-Identifier: GPL-3.0-or-later
"""What the cache's health file costs: the part of decode speed that writing it takes, beside not writing it.

Interleaved pairs of servers on the bench model under the memory limit, each from a cold page cache, one with
``EDGE_MOE_STATS_DIR`` and one without. Servers differ from start to start by more than the health file can cost, so
``detail`` has the spread that the figure is to be read with.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from typing import Any

from edge_moe_testbed.bench import harness, serving
from edge_moe_testbed.bench.figure import BenchError, Figure, bench_dir
from edge_moe_testbed.bench.serving import Setting
from edge_moe_testbed.prompts import prompts

PAIRS = 11
N_PREDICT = 96
PROMPT_IDS = ("en-1", "ko-1")
CACHE_MIB = 680


def measure() -> Figure:
    by_id = prompts()
    texts = [by_id[name] for name in PROMPT_IDS]
    setting = Setting(os.cpu_count() or 2, 128, CACHE_MIB)
    pairs: list[dict[str, Any]] = []
    with serving.prepared("health_cost") as bench, tempfile.TemporaryDirectory() as stats:
        bench.read_ahead.set(setting.read_ahead_kb)

        def decode(more: dict[str, str]) -> tuple[float, list[Any]]:
            harness.drop_page_cache(bench.model)
            log = bench_dir() / "log" / "health_cost.log"
            environment = {**setting.environment(), **more}
            with harness.server(
                bench.root, bench.model, log, threads=setting.threads, environment=environment, limit=bench.limit
            ) as server:
                answers = [server.complete(text, N_PREDICT) for text in texts]
            speeds = [answer["timings"]["predicted_per_second"] for answer in answers]
            return statistics.mean(speeds), [answer["tokens"] for answer in answers]

        sides: dict[str, dict[str, str]] = {"without": {}, "with": {"EDGE_MOE_STATS_DIR": stats}}
        for number in range(PAIRS):
            seen = {side: decode(sides[side]) for side in list(sides)[:: 1 if number % 2 == 0 else -1]}
            if seen["with"][1] != seen["without"][1]:
                raise BenchError(f"texts differ in pair {number + 1}, speed means nothing")
            pairs.append({side: speed for side, (speed, _) in seen.items()})
            print(
                f"  pair {number + 1}/{PAIRS}: without {pairs[-1]['without']:.2f}, with {pairs[-1]['with']:.2f} tok/s",
                flush=True,
            )
    costs = [1 - pair["with"] / pair["without"] for pair in pairs]
    return Figure(
        name="health_cost",
        value=max(0.0, statistics.median(costs)),
        unit="share",
        goal=0.01,
        better="lower",
        detail={
            **serving.conditions(PROMPT_IDS, N_PREDICT),
            "spread": statistics.stdev(costs),
            "pairs": pairs,
        },
    )
