# SPDX-License-Identifier: GPL-3.0-or-later
"""How far the plan's estimate is from decode as measured, at five cache sizes on the bench model.

The board's own measurements are the smallest and the largest size; the plan then estimates all five, and the value is
the greatest relative error over the three between, which it has not seen. Memory is limited as in ``decode_ratio``.

Goal: 20 %. Between the sizes a user chooses from, decode differs by more than that.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _gguf, _plan

from edge_moe_testbed import models
from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import BenchError, Figure, bench_dir, machine
from edge_moe_testbed.prompts import prompts

LIMIT_BYTES = 1000 * 10**6
# Shares of the largest size, which leaves dense weights, keys and buffers their room under the limit.
LARGEST_MIB = 720
SHARES = (0.25, 0.4, 0.55, 0.75, 1.0)
ROUNDS = 3
N_PREDICT = 48
PROMPT_IDS = ("en-1", "ko-1")
GOAL = 0.20


def own_reads(server: harness.Server) -> int:
    """Bytes that the server itself has had read from drives, whatever else the machine does."""
    lines = Path(f"/proc/{server.process.pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def decode_at(root: Path, model: Path, cache_mib: int, limit: harness.MemoryLimit, texts: list[str]) -> dict[str, Any]:
    """Decode tokens a second, and MiB that a token reads: what a long answer reads beyond one of a single token."""
    threads = os.cpu_count() or 2
    harness.drop_page_cache(model)
    log = bench_dir() / "log" / f"plan_error-{cache_mib}.log"
    environment = {"EDGE_MOE_CACHE_MIB": str(cache_mib), "EDGE_MOE_IO_DEPTH": "4", "EDGE_MOE_READ_KIB": "1024"}
    with harness.server(root, model, log, threads=threads, environment=environment, limit=limit) as server:
        # The first request fills the cache; a plan is about the ones after it.
        server.complete(texts[0], N_PREDICT)
        speeds, read, decoded = [], 0, 0
        for text in texts:
            marks = [own_reads(server)]
            server.complete(text, 1)
            marks.append(own_reads(server))
            answer = server.complete(text, N_PREDICT)
            marks.append(own_reads(server))
            read += max(0, (marks[2] - marks[1]) - (marks[1] - marks[0]))
            speeds.append(answer["timings"]["predicted_per_second"])
            decoded += answer["timings"]["predicted_n"] - 1
        if "edge-moe: cache on" not in server.log_text():
            raise BenchError(f"the cache of {cache_mib} MiB is not on, so this run measures something else: {log}")
    return {"decode_tokens_per_s": statistics.mean(speeds), "mib_per_token": read / 2**20 / decoded}


def measure() -> Figure:
    if os.geteuid() != 0:
        raise BenchError("needs root to limit memory: sudo make bench NAME=plan_error")
    root = harness.unpacked_artifact()
    model = models.ensure_moe("bench-moe", models.BENCH)
    header = _gguf.info_from_path(str(model))
    texts = [prompts()[name] for name in PROMPT_IDS]
    sizes = [int(LARGEST_MIB * share) for share in SHARES]
    rounds: list[dict[int, dict[str, Any]]] = []
    with harness.memory_limit("edge-moe-plan-error", LIMIT_BYTES) as limit:
        for number in range(ROUNDS):
            # Every other round goes the other way, so that no size always follows the same one.
            order = sizes if number % 2 == 0 else sizes[::-1]
            rounds.append({size: decode_at(root, model, size, limit, texts) for size in order})
            print(f"  round {number + 1}/{ROUNDS}: {rounds[-1]}", flush=True)
    measured = {
        size: {
            "path": "cache",
            "cache_mib": size,
            **{
                key: statistics.median(found[size][key] for found in rounds)
                for key in ("decode_tokens_per_s", "mib_per_token")
            },
        }
        for size in sizes
    }
    # The limit holds the server alone: a board with as much room for it has as much again for the rest.
    board = {"board": None, "memory": {"total_bytes": 2 * LIMIT_BYTES}, "cores": os.cpu_count(), "cuda": None}
    rows = []
    for size in sizes:
        plan = _plan.make_plan(
            header, board, {}, {"decision": "cache", "cache_mib": size}, [measured[sizes[0]], measured[sizes[-1]]]
        )
        real = measured[size]["decode_tokens_per_s"]
        estimate = plan["estimate"]["tokens_per_s"]
        rows.append(
            {
                "cache_mib": size,
                "cycles": plan["cycles"],
                "measured": real,
                "estimated": estimate,
                "error": abs(estimate - real) / real,
                "mib_per_token": {"measured": measured[size]["mib_per_token"], **plan["estimate"]},
            }
        )
    return Figure(
        name="plan_error",
        value=max(row["error"] for row in rows[1:-1]),
        unit="of speed",
        goal=GOAL,
        better="lower",
        detail={
            "machine": machine(),
            "limit_bytes": LIMIT_BYTES,
            "model": asdict(models.BENCH),
            "prompts": PROMPT_IDS,
            "n_predict": N_PREDICT,
            "sizes": rows,
            "rounds": rounds,
        },
    )
