# SPDX-License-Identifier: GPL-3.0-or-later
"""One way to serve a model under a memory limit, and what a run of prompts with it gives."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_moe_testbed import models
from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import BenchError, bench_dir, machine

LIMIT_BYTES = 1000 * 10**6
AUTO = -1


@dataclass(frozen=True)
class Setting:
    """One way to serve. ``cache_mib`` 0 is the stock mmap path, AUTO leaves the choice to the cache."""

    threads: int
    read_ahead_kb: int
    cache_mib: int = 0
    io_depth: int = 16
    read_kib: int = 1024
    lookahead: str = "auto"

    def environment(self) -> dict[str, str]:
        if not self.cache_mib:
            return {"EDGE_MOE_CACHE_MIB": "0"}
        return {
            "EDGE_MOE_CACHE_MIB": "auto" if self.cache_mib == AUTO else str(self.cache_mib),
            "EDGE_MOE_IO_DEPTH": str(self.io_depth),
            "EDGE_MOE_READ_KIB": str(self.read_kib),
            "EDGE_MOE_LOOKAHEAD": self.lookahead,
        }


class Bench:
    """The built server, a model and its device, for the figure ``name``. Made by ``prepared``."""

    def __init__(self, name: str, limit: harness.MemoryLimit, model: str, shape: models.MoeShape) -> None:
        self.name = name
        self.limit = limit
        self.root = harness.unpacked_artifact()
        self.model = models.ensure_moe(model, shape)
        self.device = harness.block_device(self.model)
        self.read_ahead = harness.ReadAhead(self.model)

    def once(self, setting: Setting, prompts: Sequence[str], n_predict: int) -> list[dict[str, Any]]:
        """Drop the page cache, start a server with ``setting`` and run the prompts one after the other.

        Returns for each the server's timings, the bytes read from the device, the token ids, the cache's line, and (the
        same for all) the cache's counters at the end: those of decode where there is one for each phase.
        """
        self.read_ahead.set(setting.read_ahead_kb)
        harness.drop_page_cache(self.model)
        side = {0: "mmap", AUTO: "auto"}.get(setting.cache_mib, "cache")
        log = bench_dir() / "log" / f"{self.name}-{side}.log"
        with (
            tempfile.TemporaryDirectory() as stats,
            harness.server(
                self.root,
                self.model,
                log,
                threads=setting.threads,
                environment={**setting.environment(), "EDGE_MOE_STATS_DIR": stats},
                limit=self.limit,
            ) as server,
        ):
            results = []
            for prompt in prompts:
                before = harness.bytes_read(self.device)
                answer = server.complete(prompt, n_predict)
                read = harness.bytes_read(self.device) - before
                results.append({**answer["timings"], "read_bytes": read, "tokens": answer["tokens"]})
            wanted = {0: "edge-moe: cache off", AUTO: "edge-moe: cache "}.get(setting.cache_mib, "edge-moe: cache on")
            said = [line for line in server.log_text().splitlines() if line.startswith("edge-moe: cache")]
            if not said or not said[-1].startswith(wanted):
                raise BenchError(
                    f"the server's log does not say '{wanted}', so this run measures something else: {log}"
                )
            time.sleep(1.2)  # the health file is written once a second
            counters = {}
            for line in (Path(stats) / f"cache-{server.process.pid}.prom").read_text().splitlines():
                if found := re.match(r'edge_moe_cache_(\w+)\{pid="\d+"(?:,phase="decode")?\} (\S+)$', line):
                    counters[found[1]] = float(found[2])
        # the last word: auto may leave the model to the mapping once the context has its memory
        return [{**result, "said": said[-1], "cache": counters} for result in results]


def conditions(prompt_ids: Sequence[str], n_predict: int) -> dict[str, Any]:
    """What every figure on the bench model under the usual limit says of its making; all of them compare texts."""
    return {
        "machine": machine(),
        "limit_bytes": LIMIT_BYTES,
        "model": asdict(models.BENCH),
        "prompts": list(prompt_ids),
        "n_predict": n_predict,
        "text_equal": True,
    }


@contextlib.contextmanager
def prepared(
    name: str, model: str = "bench-moe", shape: models.MoeShape = models.BENCH, limit_bytes: int = LIMIT_BYTES
) -> Iterator[Bench]:
    """A bench under the memory limit; the device's read-ahead is put back at the end."""
    if os.geteuid() != 0:
        raise BenchError("needs root to limit memory and to tune read_ahead_kb: sudo make bench")
    # a group of its own: two benchmarks at once must not share one limit
    with harness.memory_limit(f"edge-moe-{name}-{os.getpid()}", limit_bytes) as limit:
        bench = Bench(name, limit, model, shape)
        try:
            yield bench
        finally:
            try:
                bench.read_ahead.restore()
            except OSError as error:
                print(f"read_ahead_kb could not be put back to {bench.read_ahead.found}: {error}", file=sys.stderr)


def mmap_settings() -> list[Setting]:
    """What the mmap side is tuned over: read-ahead, and as many threads as cores or thrice that (a fault stops one)."""
    cores = os.cpu_count() or 2
    return [Setting(threads, kib) for kib in (16, 32, 64, 128) for threads in (cores, 3 * cores)]


def cache_settings() -> list[Setting]:
    """What the cache side is tuned over. 1000 MB must hold dense weights, KV and compute buffers beside the slab."""
    cores = os.cpu_count() or 2
    return [Setting(cores, 128, mib, depth) for mib in (650, 720) for depth in (4, 16)]


def alternating(number: int, mmap: Setting, cache: Setting) -> list[tuple[str, Setting]]:
    """Both sides of a pair. Who goes first alternates, so that neither always inherits the other's drive state."""
    return [("mmap", mmap), ("cache", cache)][:: 1 if number % 2 == 0 else -1]
