# SPDX-License-Identifier: GPL-3.0-or-later
"""What the search for a setting leaves on the table: 1 - its setting's decode speed over the best found at all.

The search of `edge.moe.tune` runs on the bench model under the memory limit with ten minutes of time, from the plan for
a board that has as much room for the server. Then, not counted in its time, a grid over the same space is measured. The
best of grid and search together run with the setting that the search gave in interleaved rounds, and the value is what
the median of the fastest is above the found one's.

Goal: 5 %, which is what one server differs from the next.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import asdict
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _gguf, _plan, _tune, _tuned

from edge_moe_testbed.bench import serving
from edge_moe_testbed.bench.figure import BenchError, Figure, machine
from edge_moe_testbed.bench.serving import Bench, Setting
from edge_moe_testbed.prompts import prompts

BUDGET_S = 600
N_PREDICT = 32
PROMPT_IDS = ("en-1", "ko-1")
FINALISTS = 6
ROUNDS = 5
# How many of each value's steps the grid has; one stands for the plan's own, three for both ends and the middle.
GRID = {
    "mmap": {"threads": 3, "read_ahead_kb": 2},
    "cache": {"threads": 3, "cache_mib": 3, "lookahead": 3, "io_depth": 2, "read_kib": 1, "read_ahead_kb": 1},
}
GOAL = 0.05


def board(cores: int) -> dict[str, Any]:
    """The limit holds the server alone: a board as the plan sees it has what its system takes beside that."""
    total = int((serving.LIMIT_BYTES + _plan.SYSTEM_BYTES) / (1 - _plan.SYSTEM_SHARE))
    return {"board": None, "memory": {"total_bytes": total}, "cores": cores, "cuda": None}


def setting_for(setting: _tune.Setting) -> Setting:
    """The bench's own form. It names threads and read-ahead for both paths, all else for the cache."""
    return Setting(**{name: value for name, value in setting.items() if name != "decision"})


def spread(values: list[Any], own: Any, count: int) -> list[Any]:
    """So many of the values: the plan's own alone, else evenly from the first to the last."""
    if count == 1 or len(values) == 1:
        return [own]
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(min(count, len(values)))]


def grid(space: _tune.Space) -> list[_tune.Setting]:
    settings = []
    for path, values in space.values.items():
        choices = [spread(values[name], space.starts[path][name], GRID[path][name]) for name in values]
        settings += [
            {"decision": path, **dict(zip(values, choice, strict=True))} for choice in itertools.product(*choices)
        ]
    return settings


class Trials:
    """Runs settings; all of them have to give the text of the first."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.texts = [prompts()[name] for name in PROMPT_IDS]
        self.tokens: list[Any] | None = None

    def run(self, setting: _tune.Setting) -> tuple[float | None, bool, str]:
        """Decoded tokens a second, whether the text is the first's, and what went wrong."""
        try:
            answers = self.bench.once(setting_for(setting), self.texts, N_PREDICT)
        except (BenchError, OSError) as error:
            return None, False, str(error)
        tokens = [answer["tokens"] for answer in answers]
        self.tokens = self.tokens or tokens
        decoded = sum(answer["predicted_n"] for answer in answers)
        speed = 1000 * decoded / sum(answer["predicted_ms"] for answer in answers)
        return speed, tokens == self.tokens, "the token ids differ from the stock mmap path's"

    def speed(self, setting: _tune.Setting) -> float:
        """Raises BenchError for another text; a setting that cannot be served has no speed."""
        speed, equal, _why = self.run(setting)
        if speed is not None and not equal:
            raise BenchError(f"{_tune.name_of(setting)} gives another text: its speed means nothing")
        return speed or 0.0


def search(space: _tune.Space, trials: Trials) -> dict[str, Any]:
    """The result of the search, within its time."""
    searching = _tune.Search(space)
    began = time.monotonic()
    while (setting := searching.next(BUDGET_S - (time.monotonic() - began))) is not None:
        started = time.monotonic()
        speed, equal, why = trials.run(setting)
        searching.tell(setting, speed, equal, time.monotonic() - started, "" if speed and equal else why)
        print(f"  {time.monotonic() - began:4.0f} s {speed or 0:6.2f} tok/s {_tune.name_of(setting)}", flush=True)
    try:
        result = searching.result()
    except _tune.TuneError as error:
        raise BenchError(f"the search gave no result: {error}") from error
    print("  " + _tuned.table(result).replace("\n", "\n  "), flush=True)
    return {**result, "spent_s": time.monotonic() - began}


def final(trials: Trials, settings: list[_tune.Setting]) -> list[dict[str, float]]:
    """Speeds of the settings in rounds, by name; another one begins in each."""
    rounds = []
    for number in range(ROUNDS):
        start = number % len(settings)
        rounds.append(
            {_tune.name_of(setting): trials.speed(setting) for setting in settings[start:] + settings[:start]}
        )
        print(f"  round {number + 1}/{ROUNDS}: " + ", ".join(f"{v:.2f}" for v in rounds[-1].values()), flush=True)
    return rounds


def measure() -> Figure:
    with serving.prepared("tune_regret") as bench:
        header = _gguf.info_from_path(str(bench.model))
        space = _tune.space_of(header, board(machine()["cores"]))
        trials = Trials(bench)
        result = search(space, trials)
        seen: dict[str, list[float]] = {}
        settings: dict[str, _tune.Setting] = {}
        for trial in result["trials"]:
            if trial["tokens_per_s"] and trial["text_equal"]:
                settings[_tune.name_of(trial["setting"])] = trial["setting"]
                seen.setdefault(_tune.name_of(trial["setting"]), []).append(trial["tokens_per_s"])
        for setting in grid(space):
            name = _tune.name_of(setting)
            settings[name] = setting
            seen.setdefault(name, []).append(trials.speed(setting))
            print(f"  grid {seen[name][-1]:6.2f} tok/s {name}", flush=True)
        found = _tune.name_of(result["setting"])
        best = sorted((name for name in seen if name != found), key=lambda name: -statistics.mean(seen[name]))
        rounds = final(trials, [result["setting"], *(settings[name] for name in best[:FINALISTS])])
    medians = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
    fastest = max(medians, key=lambda name: medians[name])
    return Figure(
        name="tune_regret",
        value=1 - medians[found] / medians[fastest],
        unit="share",
        goal=GOAL,
        better="lower",
        detail={
            **serving.conditions(PROMPT_IDS, N_PREDICT),
            "budget_s": BUDGET_S,
            "space": asdict(space),
            "search": result,
            "grid": seen,
            "found": found,
            "fastest": fastest,
            "medians": medians,
            "rounds": rounds,
        },
    )
