# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode speed of the expert cache over the best-tuned mmap run, memory limited for both sides alike.

Both sides are tuned on the first prompt (mmap: read_ahead_kb and threads; cache: size and I/O depth), then measured
in interleaved pairs: page cache of the model dropped, server started under the limit, all prompts greedy.
The value is the median of the pairs' ratios; every text must be equal on both sides.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import Any

from edge_moe_testbed import models
from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import BenchError, Figure, bench_dir, machine
from edge_moe_testbed.prompts import prompts

LIMIT_BYTES = 1000 * 10**6
PAIRS = 5
N_PREDICT = 48
TUNE_N_PREDICT = 32
PROMPT_IDS = ("en-1", "ko-1", "en-2")


@dataclass(frozen=True)
class Setting:
    """One way to serve. ``cache_mib`` 0 is the stock mmap path."""

    threads: int
    read_ahead_kb: int
    cache_mib: int = 0
    io_depth: int = 4
    read_kib: int = 1024

    def environment(self) -> dict[str, str]:
        if not self.cache_mib:
            return {"EDGE_MOE_CACHE_MIB": "0"}
        return {
            "EDGE_MOE_CACHE_MIB": str(self.cache_mib),
            "EDGE_MOE_IO_DEPTH": str(self.io_depth),
            "EDGE_MOE_READ_KIB": str(self.read_kib),
        }


class Bench:
    def __init__(self) -> None:
        self.root = harness.unpacked_artifact()
        self.model = models.ensure_moe("bench-moe", models.BENCH)
        by_id = prompts()
        self.prompts = [by_id[name] for name in PROMPT_IDS]
        self.device = harness.block_device(self.model)
        self.read_ahead = harness.ReadAhead(self.model)

    def once(self, setting: Setting, limit: harness.MemoryLimit, prompts: list[str], n_predict: int) -> dict[str, Any]:
        """Start a server with ``setting``, run the prompts, return speeds (tokens/s), bytes and token ids."""
        self.read_ahead.set(setting.read_ahead_kb)
        harness.drop_page_cache(self.model)
        log = bench_dir() / "log" / f"decode_ratio-{'cache' if setting.cache_mib else 'mmap'}.log"
        with harness.server(
            self.root, self.model, log, threads=setting.threads, environment=setting.environment(), limit=limit
        ) as server:
            before = harness.bytes_read(self.device)
            answers = [server.complete(prompt, n_predict) for prompt in prompts]
            read = harness.bytes_read(self.device) - before
            wanted = "edge-moe: cache on" if setting.cache_mib else "edge-moe: cache off"
            if wanted not in server.log_text():
                raise BenchError(
                    f"the server's log does not say '{wanted}', so this run measures something else: {log}"
                )
        return {
            "decode": statistics.mean(answer["timings"]["predicted_per_second"] for answer in answers),
            "prefill_ms": statistics.mean(answer["timings"]["prompt_ms"] for answer in answers),
            "read_mib": read / 2**20,
            "tokens": [answer["tokens"] for answer in answers],
        }

    def tune(self, candidates: list[Setting], limit: harness.MemoryLimit) -> tuple[Setting, list[dict[str, Any]]]:
        """The fastest candidate on the first prompt, and what each gave."""
        seen = []
        for setting in candidates:
            result = self.once(setting, limit, self.prompts[:1], TUNE_N_PREDICT)
            seen.append({**asdict(setting), "decode": result["decode"]})
            print(f"  tune {setting}: {result['decode']:.2f} tok/s", flush=True)
        best = max(zip(seen, candidates, strict=True), key=lambda pair: float(pair[0]["decode"]))[1]
        return best, seen


def measure() -> Figure:
    if os.geteuid() != 0:
        raise BenchError("needs root to limit memory and to tune read_ahead_kb: sudo make bench")
    bench = Bench()
    cores = os.cpu_count() or 2
    mmap_side = [Setting(threads, kib) for kib, threads in itertools.product((16, 32, 64, 128), (cores, 3 * cores))]
    # 1000 MB must hold dense weights, KV and compute buffers beside the slab.
    cache_side = [Setting(cores, 128, mib, depth) for mib, depth in itertools.product((650, 720), (2, 4))]
    try:
        with harness.memory_limit("edge-moe-bench", LIMIT_BYTES) as limit:
            mmap_best, mmap_seen = bench.tune(mmap_side, limit)
            cache_best, cache_seen = bench.tune(cache_side, limit)
            runs: list[dict[str, Any]] = []
            for number in range(PAIRS):
                pair: dict[str, dict[str, Any]] = {}
                # Who goes first alternates, so that neither side always inherits the other's drive state.
                for side, setting in (("mmap", mmap_best), ("cache", cache_best))[:: 1 if number % 2 == 0 else -1]:
                    pair[side] = bench.once(setting, limit, bench.prompts, N_PREDICT)
                if pair["mmap"]["tokens"] != pair["cache"]["tokens"]:
                    raise BenchError(f"texts differ in pair {number + 1}: the cache is wrong, its speed means nothing")
                for result in pair.values():
                    del result["tokens"]
                ratio = pair["cache"]["decode"] / pair["mmap"]["decode"]
                runs.append({**pair, "ratio": ratio})
                print(
                    f"  pair {number + 1}/{PAIRS}: mmap {pair['mmap']['decode']:.2f}, "
                    f"cache {pair['cache']['decode']:.2f}, ratio {ratio:.2f}",
                    flush=True,
                )
    finally:
        try:
            bench.read_ahead.restore()
        except OSError as error:
            print(f"read_ahead_kb could not be put back to {bench.read_ahead.found}: {error}", file=sys.stderr)
    return Figure(
        name="decode_ratio",
        value=statistics.median(pair["ratio"] for pair in runs),
        unit="x",
        goal=4.0,
        better="higher",
        detail={
            "machine": machine(),
            "limit_bytes": LIMIT_BYTES,
            "model": asdict(models.BENCH),
            "prompts": PROMPT_IDS,
            "n_predict": N_PREDICT,
            "mmap": asdict(mmap_best),
            "cache": asdict(cache_best),
            "mmap_tuning": mmap_seen,
            "cache_tuning": cache_seen,
            "runs": runs,
            "text_equal": True,
        },
    )
