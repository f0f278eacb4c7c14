# SPDX-License-Identifier: GPL-3.0-or-later
"""Prefill speed of the expert cache over the best-tuned mmap run, memory limited for both sides alike.

Two lengths: prompts of about 30 tokens (the mean of three), and one of about 400. A run drops the page cache of the
model, starts a server under the limit and sends all of them, each with some decoded tokens after it, so that every
prompt but the first meets what decode has left. Both sides are tuned for each length on their own, then measured in
interleaved pairs. The value is the lower of the two lengths' median ratios.

Texts must be equal. A long text may depend on how many threads attention is split over, so what the cache gives is
compared with an mmap run of as many threads.
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
N_PREDICT = 16
SHORT_IDS = ("en-1", "ko-1", "en-2")
LONG_REPEATS = 2  # all the prompts in a row, so many times, cut to the share below
LONG_SHARE = 0.58
LENGTHS = ("30", "400")


def texts() -> list[str]:
    by_id = prompts()
    everything = " ".join([*by_id.values()] * LONG_REPEATS)
    return [*(by_id[name] for name in SHORT_IDS), everything[: int(len(everything) * LONG_SHARE)]]


def once(bench: Bench, setting: Setting) -> dict[str, Any]:
    """Prefill in tokens a second by length, what was read, and the texts."""
    answers = bench.once(setting, texts(), N_PREDICT)
    result: dict[str, Any] = {"tokens": [answer["tokens"] for answer in answers]}
    for length, part in zip(LENGTHS, (answers[:-1], answers[-1:]), strict=True):
        result[length] = sum(a["prompt_n"] for a in part) / sum(a["prompt_ms"] for a in part) * 1000
        result[f"{length}_ms"] = [a["prompt_ms"] for a in part]
        result[f"{length}_n"] = [a["prompt_n"] for a in part]
    result["decode"] = [a["predicted_per_second"] for a in answers]
    return result


def tune(bench: Bench, candidates: list[Setting]) -> tuple[dict[str, Setting], list[dict[str, Any]]]:
    """The fastest candidate for each length, and what each gave."""
    seen = []
    for setting in candidates:
        result = once(bench, setting)
        seen.append({**asdict(setting), **{length: result[length] for length in LENGTHS}})
        print(
            f"  tune {setting}: {', '.join(f'{length}: {result[length]:.1f} tok/s' for length in LENGTHS)}", flush=True
        )
    best = {}
    for length in LENGTHS:
        speeds = [float(result[length]) for result in seen]
        best[length] = candidates[speeds.index(max(speeds))]
    return best, seen


def measure() -> Figure:
    runs: dict[str, list[dict[str, Any]]] = {length: [] for length in LENGTHS}
    with serving.prepared("prefill_ratio") as bench:
        mmap_best, mmap_seen = tune(bench, serving.mmap_settings())
        cache_best, cache_seen = tune(bench, serving.cache_settings())
        reference = {
            threads: once(bench, Setting(threads, mmap_best["30"].read_ahead_kb))["tokens"]
            for threads in {setting.threads for setting in cache_best.values()}
        }
        for number in range(PAIRS):
            done: dict[Setting, dict[str, Any]] = {}  # a setting that is best for both lengths runs once
            for length in LENGTHS:
                for side, setting in serving.alternating(number, mmap_best[length], cache_best[length]):
                    if setting not in done:
                        done[setting] = once(bench, setting)
                        if side == "cache" and done[setting].pop("tokens") != reference[setting.threads]:
                            raise BenchError(
                                f"texts differ in pair {number + 1}: the cache is wrong, its speed means nothing"
                            )
                        done[setting].pop("tokens", None)
                pair = {"mmap": done[mmap_best[length]], "cache": done[cache_best[length]]}
                ratio = pair["cache"][length] / pair["mmap"][length]
                runs[length].append({**pair, "ratio": ratio})
                print(
                    f"  pair {number + 1}/{PAIRS}, {length} tokens: mmap {pair['mmap'][length]:.1f}, "
                    f"cache {pair['cache'][length]:.1f} tok/s, ratio {ratio:.2f}",
                    flush=True,
                )
    ratios = {length: statistics.median(pair["ratio"] for pair in runs[length]) for length in LENGTHS}
    return Figure(
        name="prefill_ratio",
        value=min(ratios.values()),
        unit="x",
        goal=2.5,
        better="higher",
        detail={
            **serving.conditions(SHORT_IDS, N_PREDICT),
            "ratios": ratios,
            "mmap": {length: asdict(setting) for length, setting in mmap_best.items()},
            "cache": {length: asdict(setting) for length, setting in cache_best.items()},
            "mmap_tuning": mmap_seen,
            "cache_tuning": cache_seen,
            "runs": runs,
        },
    )
