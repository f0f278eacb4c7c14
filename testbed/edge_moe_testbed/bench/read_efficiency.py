# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes a second in the cache's miss path over the drive's best, which is fio's for reads of that size.

fio is tuned first for each kind of buffers; then each kind's best and the miss path are measured in interleaved rounds.
The miss path reads layer after layer: all misses of a batch are queued, awaited and released before the next layer. The
value is over the better of fio with small pages and fio with huge pages in as much memory as no processor caches; the
detail tells the ratio over each, and over a few buffers that are used again and again. A round waits until others leave
the drive alone, but not for ever: the detail tells what they read.
"""

from __future__ import annotations

import statistics
from typing import Any

from edge_moe_testbed.bench import reading
from edge_moe_testbed.bench.figure import Figure, machine
from edge_moe_testbed.bench.harness import block_device

ROUNDS = 7
MISSES = 16  # as many experts of a layer as a slab of 700 MiB has slots for
DECODE_MISSES = (1, 2, 4)
FIO_HUGE_PAGES = 96
CACHE = "cache"
OTHERS = "others"  # what other programs read from the drive just before the round


def measure() -> Figure:
    path = reading.MissPath()
    size = path.read_bytes()
    device = block_device(path.model)
    with reading.huge_pages(FIO_HUGE_PAGES) as huge:
        kinds = [reading.SMALL_PAGES]
        if huge:
            kinds += [reading.HUGE_PAGES_SPREAD, reading.HUGE_PAGES_REUSED]
        best: dict[str, dict[str, Any]] = {}
        tried: dict[str, list[dict[str, Any]]] = {}
        for kind in kinds:
            best[kind.label], tried[kind.label] = reading.fio_best(path.model, size, kind)
            print(f"  fio's best for {size} bytes into {kind.label}: {best[kind.label]}", flush=True)
        runs: list[dict[str, float]] = []
        for number in range(ROUNDS):
            rates: dict[str, float] = {}
            others = reading.quiet_drive(device)
            for side in [CACHE, *best][:: 1 if number % 2 == 0 else -1]:
                if side == CACHE:
                    rates[side] = path.run(misses=MISSES, seed=number)["bytes_per_s"]
                else:
                    rates[side] = reading.fio(path.model, size, best[side], reading.SECONDS)
            runs.append({**rates, OTHERS: others})
            text = ", ".join(f"{side} {rate / 1e6:.0f}" for side, rate in runs[-1].items())
            print(f"  round {number + 1}/{ROUNDS}, MB/s: {text}", flush=True)
    over = {side: statistics.median(run[CACHE] / run[side] for run in runs) for side in best}
    comparable = [kind.label for kind in (reading.SMALL_PAGES, reading.HUGE_PAGES_SPREAD) if kind.label in over]
    return Figure(
        name="read_efficiency",
        value=min(over[label] for label in comparable),
        unit="x",
        goal=0.90,
        better="higher",
        detail={
            "machine": machine(),
            "file": str(path.model),
            "read_bytes": size,
            "misses": MISSES,
            "over_fio": over,
            "fio": best,
            "fio_tried": tried,
            "runs": runs,
            "decode_batches": [path.run(misses=misses) for misses in DECODE_MISSES],
        },
    )
