# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode speed of the expert cache over what nothing could exceed: all resident, or the drive alone.

The bound of a round is the lower of two speeds: that of a server with room for the whole model, whose second pass over
the prompts reads nothing; and the drive's best (fio, for the cache's read size) over the bytes that a token of the
cache's own run missed. Reads on wrong guesses are not among those bytes: they are the cache's loss. The value is the
median over interleaved rounds.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict
from typing import Any

from edge_moe_testbed import models
from edge_moe_testbed.bench import reading, serving
from edge_moe_testbed.bench.figure import BenchError, Figure
from edge_moe_testbed.bench.serving import Setting
from edge_moe_testbed.prompts import prompts

ROUNDS = 5
N_PREDICT = 48
PROMPT_IDS = ("en-1", "ko-1", "en-2")
CACHE_MIB = 720
AMPLE_BYTES = 8 * 10**9
FIO_HUGE_PAGES = 96


def measure() -> Figure:
    by_id = prompts()
    texts = [by_id[name] for name in PROMPT_IDS]
    cores = os.cpu_count() or 2
    cache, resident = Setting(cores, 128, CACHE_MIB), Setting(cores, 128)
    path = reading.MissPath()
    size = path.read_bytes()
    runs: list[dict[str, Any]] = []
    with (
        reading.huge_pages(FIO_HUGE_PAGES) as huge,
        serving.prepared("decode_bound") as limited,
        serving.prepared("decode_bound_resident", limit_bytes=AMPLE_BYTES) as ample,
    ):
        kind = reading.HUGE_PAGES_SPREAD if huge else reading.SMALL_PAGES
        best, _tried = reading.fio_best(path.model, size, kind)
        for number in range(ROUNDS):
            run: dict[str, Any] = {}
            tokens = {}
            for side in ("cache", "resident", "drive")[:: 1 if number % 2 == 0 else -1]:
                if side == "drive":
                    run["drive_bytes_per_s"] = reading.fio(path.model, size, best, reading.SECONDS)
                elif side == "cache":
                    answers = limited.once(cache, texts, N_PREDICT)
                    counted = answers[-1]["cache"]
                    missed = counted["misses_total"] + counted["guessed_used_total"]
                    run["missed_bytes"] = missed * models.BENCH.expert_bytes() / counted["decode_tokens_total"]
                else:
                    answers = ample.once(resident, [*texts, *texts], N_PREDICT)[len(texts) :]
                if side != "drive":
                    run[side] = statistics.mean(answer["predicted_per_second"] for answer in answers)
                    tokens[side] = [answer["tokens"] for answer in answers]
            if tokens["cache"] != tokens["resident"]:
                raise BenchError(f"texts differ in round {number + 1}: the cache is wrong, its speed means nothing")
            run["bound"] = min(run["resident"], run["drive_bytes_per_s"] / run["missed_bytes"])
            run["share"] = run["cache"] / run["bound"]
            runs.append(run)
            print(
                f"  round {number + 1}/{ROUNDS}: cache {run['cache']:.2f}, resident {run['resident']:.2f}, "
                f"drive {run['drive_bytes_per_s'] / run['missed_bytes']:.2f} tok/s, share {run['share']:.2f}",
                flush=True,
            )
    return Figure(
        name="decode_bound",
        value=statistics.median(run["share"] for run in runs),
        unit="x",
        goal=0.80,
        better="higher",
        detail={
            **serving.conditions(PROMPT_IDS, N_PREDICT),
            "cache": asdict(cache),
            "fio": best,
            "read_bytes": size,
            "runs": runs,
        },
    )
