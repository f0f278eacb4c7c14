# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode speed of the expert cache over the best-tuned mmap run, memory limited for both sides alike.

Both sides are tuned on the first prompt (mmap: read_ahead_kb and threads; cache: size and I/O depth), then measured
in interleaved pairs: page cache of the model dropped, server started under the limit, all prompts greedy.
The value is the median of the pairs' ratios; every text must be equal on both sides.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any

from edge_moe_testbed.bench import serving
from edge_moe_testbed.bench.figure import BenchError, Figure
from edge_moe_testbed.bench.serving import Bench, Setting
from edge_moe_testbed.prompts import prompts

PAIRS = 5
N_PREDICT = 48
TUNE_N_PREDICT = 32
PROMPT_IDS = ("en-1", "ko-1", "en-2")


def once(bench: Bench, setting: Setting, texts: list[str], n_predict: int) -> dict[str, Any]:
    answers = bench.once(setting, texts, n_predict)
    return {
        "decode": statistics.mean(answer["predicted_per_second"] for answer in answers),
        "prefill_ms": statistics.mean(answer["prompt_ms"] for answer in answers),
        "read_mib": sum(answer["read_bytes"] for answer in answers) / 2**20,
        "tokens": [answer["tokens"] for answer in answers],
    }


def tune(bench: Bench, candidates: list[Setting], text: str) -> tuple[Setting, list[dict[str, Any]]]:
    """The fastest candidate, and what each gave."""
    seen = []
    for setting in candidates:
        result = once(bench, setting, [text], TUNE_N_PREDICT)
        seen.append({**asdict(setting), "decode": result["decode"]})
        print(f"  tune {setting}: {result['decode']:.2f} tok/s", flush=True)
    best = max(zip(seen, candidates, strict=True), key=lambda pair: float(pair[0]["decode"]))[1]
    return best, seen


def measure() -> Figure:
    by_id = prompts()
    texts = [by_id[name] for name in PROMPT_IDS]
    runs: list[dict[str, Any]] = []
    with serving.prepared("decode_ratio") as bench:
        mmap_best, mmap_seen = tune(bench, serving.mmap_settings(), texts[0])
        cache_best, cache_seen = tune(bench, serving.cache_settings(), texts[0])
        for number in range(PAIRS):
            pair: dict[str, dict[str, Any]] = {}
            for side, setting in serving.alternating(number, mmap_best, cache_best):
                pair[side] = once(bench, setting, texts, N_PREDICT)
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
    return Figure(
        name="decode_ratio",
        value=statistics.median(pair["ratio"] for pair in runs),
        unit="x",
        goal=4.0,
        better="higher",
        detail={
            **serving.conditions(PROMPT_IDS, N_PREDICT),
            "mmap": asdict(mmap_best),
            "cache": asdict(cache_best),
            "mmap_tuning": mmap_seen,
            "cache_tuning": cache_seen,
            "runs": runs,
        },
    )
