# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens a second of several streams at once over stock mmap: four slots of one server, and two servers side by side.

All servers of a run share one memory limit, and the streams start together; what counts is all that they decode over
the time until the last has ended. The mmap side is tuned over read-ahead and threads for each way. Interleaved pairs,
each from a cold page cache; the figure is the lower way's median.

Texts must be equal. Which requests share a batch depends on when they come, and llama.cpp's sums on who shares a batch:
the stock server does not always give a slot the same text. So each text has to be one that the stock server gave.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from edge_moe_testbed.bench import harness, serving
from edge_moe_testbed.bench.figure import BenchError, Figure, bench_dir
from edge_moe_testbed.bench.serving import AUTO, Setting
from edge_moe_testbed.prompts import prompts

PAIRS = 5
N_PREDICT = 48
PROMPT_IDS = ("en-1", "ko-1", "en-2", "ko-2")
Tokens = tuple[int, ...]
# how many servers, and how many slots each
WAYS = {"four slots": (1, 4), "two servers": (2, 1)}


def _arguments(slots: int) -> list[str]:
    arguments = list(harness.STREAMING_ARGS)
    arguments[arguments.index("--parallel") + 1] = str(slots)
    return arguments


def run_streams(bench: serving.Bench, setting: Setting, way: str, texts: Sequence[str]) -> tuple[float, list[Tokens]]:
    """Tokens a second of all streams together, and each stream's token ids."""
    servers, slots = WAYS[way]
    streams = servers * slots
    bench.read_ahead.set(setting.read_ahead_kb)
    harness.drop_page_cache(bench.model)
    with contextlib.ExitStack() as stack:
        # servers of one board have one folder, by which those that size themselves find each other
        stats = stack.enter_context(tempfile.TemporaryDirectory())
        running = [
            stack.enter_context(
                harness.server(
                    bench.root,
                    bench.model,
                    bench_dir() / "log" / f"several_at_once-{number}.log",
                    threads=setting.threads,
                    args=_arguments(slots),
                    environment={**setting.environment(), "EDGE_MOE_STATS_DIR": stats},
                    limit=bench.limit,
                )
            )
            for number in range(servers)
        ]
        with ThreadPoolExecutor(streams) as pool:
            started = time.monotonic()
            calls = [
                pool.submit(running[number % servers].complete, texts[number], N_PREDICT, ignore_eos=True)
                for number in range(streams)
            ]
            answers = [call.result() for call in calls]
            wall_s = time.monotonic() - started
    tokens = [tuple(answer["tokens"]) for answer in answers]
    return sum(len(stream) for stream in tokens) / wall_s, tokens


def run_way(bench: serving.Bench, way: str, texts: Sequence[str]) -> dict[str, Any]:
    cores = os.cpu_count() or 2
    # servers that have more threads than cores together wait for each other at every barrier
    own_cores = max(1, cores // WAYS[way][0])
    candidates = [Setting(threads, kib) for kib in (32, 128) for threads in sorted({own_cores, cores, 3 * cores})]
    tried = {setting: run_streams(bench, setting, way, texts) for setting in candidates}
    tuned = max(tried, key=lambda setting: tried[setting][0])
    stock = [set(given) for given in zip(*(tokens for _, tokens in tried.values()), strict=True)]
    served: list[set[Tokens]] = [set() for _ in stock]
    sides = {"mmap": tuned, "cache": Setting(own_cores, tuned.read_ahead_kb, AUTO)}
    pairs: list[dict[str, float]] = []
    for number in range(PAIRS):
        pair = {}
        for side in list(sides)[:: 1 if number % 2 == 0 else -1]:
            pair[side], tokens = run_streams(bench, sides[side], way, texts)
            for known, given in zip(stock if side == "mmap" else served, tokens, strict=True):
                known.add(given)
        pairs.append(pair)
        print(
            f"  {way}, pair {number + 1}/{PAIRS}: mmap {pair['mmap']:.2f}, cache {pair['cache']:.2f} tok/s",
            flush=True,
        )
    for number, (allowed, seen) in enumerate(zip(stock, served, strict=True), 1):
        if seen - allowed:
            raise BenchError(
                f"{way}: stream {number} has a text that none of the stock server's runs gave, speed means nothing"
            )
    ratio = statistics.median(pair["cache"] / pair["mmap"] for pair in pairs)
    return {
        "way": way,
        "ratio": ratio,
        "mmap": asdict(tuned),
        "pairs": pairs,
        "stock_texts": [len(allowed) for allowed in stock],
    }


def measure() -> Figure:
    by_id = prompts()
    texts = [by_id[name] for name in PROMPT_IDS]
    with serving.prepared("several_at_once") as bench:
        ways = [run_way(bench, way, texts) for way in WAYS]
    return Figure(
        name="several_at_once",
        value=min(float(way["ratio"]) for way in ways),
        unit="x",
        goal=1.0,
        better="higher",
        detail={**serving.conditions(PROMPT_IDS, N_PREDICT), "ways": ways},
    )
