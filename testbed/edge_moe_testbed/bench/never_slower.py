# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``EDGE_MOE_CACHE_MIB=auto`` gives over the better of mmap and a forced cache, for shapes hard on a cache.

For each shape the mmap side is tuned over read-ahead and threads. Then mmap, a cache of a size that suits the limit,
and auto run in turn, each from a cold page cache. A shape's value is the median over the rounds of auto's decode speed
over that of whichever of the other two is faster by median; the figure is the lowest shape's. Where auto leaves the
model to the mapping, both sides run the same code, and a second mmap side shows what a ratio of two such servers is
worth: `control` of the shape's detail.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge_moe_testbed.bench import serving
from edge_moe_testbed.bench.figure import BenchError, Figure, machine
from edge_moe_testbed.bench.serving import AUTO, Setting
from edge_moe_testbed.models import MoeShape
from edge_moe_testbed.prompts import prompts

ROUNDS = 5
# Where a run takes seconds, one server differs from the next by a tenth on either side.
QUICK_ROUNDS = 15
QUICK_TOKENS_PER_S = 100
# Small models answer within a fifth of a second otherwise, and who computes when decides.
N_PREDICT = 160
PROMPT_IDS = ("en-1", "ko-1")


@dataclass(frozen=True)
class Case:
    """A shape under a memory limit. ``cache_mib`` is what the forced cache gets."""

    name: str
    shape: MoeShape
    limit_mb: int
    cache_mib: int


SMALL = MoeShape(layers=16, experts=256, experts_used=8, embedding=512, expert_hidden=256, heads=8, kv_heads=2)
LARGE = MoeShape(layers=6, experts=16, experts_used=2, embedding=2048, expert_hidden=2048, heads=16, kv_heads=4)
MIDDLE = MoeShape(layers=12, experts=64, experts_used=4, embedding=768, expert_hidden=512, heads=12, kv_heads=4)
CASES = (
    Case("many small experts", SMALL, 700, 400),
    Case("few experts of 12.8 MiB", LARGE, 900, 480),
    Case("nearly fits", MIDDLE, 1050, 640),
    Case("fits", MIDDLE, 2000, 1000),
    Case("one cycle", replace(MIDDLE, experts_used=16, seed=2), 700, 260),
)


def run_case(case: Case) -> dict[str, Any]:
    by_id = prompts()
    texts = [by_id[name] for name in PROMPT_IDS]
    cores = os.cpu_count() or 2
    model = "never-slower-" + case.name.replace(" ", "-")
    with serving.prepared("never_slower", model, case.shape, case.limit_mb * 10**6) as bench:

        def decode(setting: Setting, texts: list[str], n_predict: int) -> tuple[float, list[Any], str]:
            answers = bench.once(setting, texts, n_predict)
            speed = statistics.mean(answer["predicted_per_second"] for answer in answers)
            return speed, [answer["tokens"] for answer in answers], answers[0]["said"]

        candidates = [Setting(threads, kib) for kib in (32, 128) for threads in (cores, 3 * cores)]
        speeds_seen = {setting: decode(setting, texts[:1], 24)[0] for setting in candidates}
        tuned = max(candidates, key=lambda setting: speeds_seen[setting])
        number_of_rounds = QUICK_ROUNDS if speeds_seen[tuned] > QUICK_TOKENS_PER_S else ROUNDS
        sides = {
            "mmap": tuned,
            "cache": Setting(cores, tuned.read_ahead_kb, case.cache_mib),
            # where auto serves by the mapping, it does so with the threads that suit the mapping
            "auto": Setting(cores, tuned.read_ahead_kb, AUTO),
        }
        said = decode(sides["auto"], texts[:1], 1)[2]
        if "cache off" in said:
            sides["auto"] = replace(sides["auto"], threads=tuned.threads)
            sides["control"] = tuned
        rounds: list[dict[str, float]] = []
        for number in range(number_of_rounds):
            seen: dict[str, tuple[float, list[Any], str]] = {}
            first = number % len(sides)
            order = list(sides)[first:] + list(sides)[:first]
            for side in order:
                seen[side] = decode(sides[side], texts, N_PREDICT)
            if len({str(tokens) for _, tokens, _ in seen.values()}) != 1:
                raise BenchError(f"{case.name}: texts differ, speed means nothing")
            rounds.append({side: speed for side, (speed, _, _) in seen.items()})
        better = max(("mmap", "cache"), key=lambda side: statistics.median(r[side] for r in rounds))
        ratio = statistics.median(r["auto"] / r[better] for r in rounds)
        control = statistics.median(r["control"] / r["mmap"] for r in rounds) if "control" in sides else None
        speeds = ", ".join(f"{side} {statistics.median(r[side] for r in rounds):.2f}" for side in sides)
        print(f"  {case.name}: {speeds} tok/s; auto over {better} {ratio:.3f} ({said})", flush=True)
        bench.model.unlink()  # five models are gigabytes
        return {
            "case": asdict(case),
            "ratio": ratio,
            "control": control,
            "better": better,
            "said": said,
            "mmap": asdict(tuned),
            "rounds": rounds,
        }


def measure() -> Figure:
    cases = [run_case(case) for case in CASES]
    return Figure(
        name="never_slower",
        value=min(float(case["ratio"]) for case in cases),
        unit="x",
        goal=0.98,
        better="higher",
        detail={
            "machine": machine(),
            "n_predict": N_PREDICT,
            "prompts": PROMPT_IDS,
            "cases": cases,
            "text_equal": True,
        },
    )
