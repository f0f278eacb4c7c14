# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode speed with lookahead over without, everything else alike: what reading ahead of the router is worth.

Interleaved pairs on the bench model under the memory limit, each from a cold page cache. ``detail`` has, for each run
with it, how many experts were read on a guess, the share of them that was then asked for (accuracy), and what of all
bytes read was for nothing (waste). Texts must be equal.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict, replace
from typing import Any

from edge_moe_testbed import models
from edge_moe_testbed.bench import serving
from edge_moe_testbed.bench.figure import BenchError, Figure
from edge_moe_testbed.bench.serving import Setting
from edge_moe_testbed.prompts import prompts

PAIRS = 7
N_PREDICT = 64
PROMPT_IDS = ("en-1", "ko-1", "en-2")
CACHE_MIB = 680


def measure() -> Figure:
    by_id = prompts()
    texts = [by_id[name] for name in PROMPT_IDS]
    without = Setting(os.cpu_count() or 2, 128, CACHE_MIB, lookahead="0")
    sides = {"without": without, "with": replace(without, lookahead="1")}
    runs: list[dict[str, Any]] = []
    with serving.prepared("lookahead_gain") as bench:
        for number in range(PAIRS):
            pair: dict[str, Any] = {}
            tokens = {}
            for side in list(sides)[:: 1 if number % 2 == 0 else -1]:
                answers = bench.once(sides[side], texts, N_PREDICT)
                tokens[side] = [answer["tokens"] for answer in answers]
                counted = answers[-1]["cache"]
                pair[side] = {
                    "decode": statistics.mean(answer["predicted_per_second"] for answer in answers),
                    "hits": counted["hits_total"] / (counted["hits_total"] + counted["misses_total"]),
                }
                if side == "with":
                    lost = counted["guessed_total"] - counted["guessed_used_total"]
                    pair[side] |= {
                        "guessed": counted["guessed_total"],
                        "accuracy": counted["guessed_used_total"] / max(1, counted["guessed_total"]),
                        "waste": lost * models.BENCH.expert_bytes() / counted["read_bytes_total"],
                    }
            if tokens["with"] != tokens["without"]:
                raise BenchError(f"texts differ in pair {number + 1}: lookahead is wrong, its speed means nothing")
            pair["ratio"] = pair["with"]["decode"] / pair["without"]["decode"]
            runs.append(pair)
            print(
                f"  pair {number + 1}/{PAIRS}: without {pair['without']['decode']:.2f}, "
                f"with {pair['with']['decode']:.2f} tok/s, ratio {pair['ratio']:.2f}, "
                f"accuracy {pair['with']['accuracy']:.2f}, waste {pair['with']['waste']:.2f}",
                flush=True,
            )
    return Figure(
        name="lookahead_gain",
        value=statistics.median(pair["ratio"] for pair in runs),
        unit="x",
        goal=1.0,
        better="higher",
        detail={
            **serving.conditions(PROMPT_IDS, N_PREDICT),
            "setting": asdict(without),
            "accuracy": statistics.median(pair["with"]["accuracy"] for pair in runs),
            "waste": statistics.median(pair["with"]["waste"] for pair in runs),
            "runs": runs,
        },
    )
