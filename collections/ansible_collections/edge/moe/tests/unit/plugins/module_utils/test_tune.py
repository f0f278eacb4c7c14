# SPDX-License-Identifier: GPL-3.0-or-later
"""The search against boards that are formulas: where the optimum lies, how noisy trials are, what fails."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _plan, _tune

MIB = 1024 * 1024
Case = Callable[[dict[str, Any]], bool]


def model(dense: float, experts: float, cycle: float, expert: float, kv: int, recurrent: int = 0) -> dict[str, Any]:
    return {
        "path": "m.gguf",
        "dense_bytes": int(dense * MIB),
        "experts_total_bytes": int(experts * MIB),
        "cycle_bytes": int(cycle * MIB),
        "expert_bytes": int(expert * MIB),
        "kv_bytes_per_token": kv,
        "recurrent_bytes": recurrent,
        "embedding": 2048,
        "vocabulary": 200_000,
        "context_train": 131072,
        "shards": {"count": 1, "present": 1, "missing": []},
    }


# Two of the published models: the plan serves one by a cache, the other by the mapping.
QWEN35B = model(2355, 18125, 567, 1.77, kv=20480, recurrent=65863680)
GPT_OSS_20B = model(1843, 9682, 1210.3, 12.607, kv=49152)
LFM2_8B = model(614, 4200, 525, 5.5, kv=24576)
DENSE = model(16000, 0, 0, 0, kv=65536)
ORIN_NANO = {"board": "orin-nano-8gb", "memory": {"total_bytes": 7620 * MIB}, "cores": 6, "cuda": {"version": "12.6"}}


class Board:
    """A board that is a formula, modelled on published and own measurements.

    Compute threads have their optimum at opposite ends on the two paths; the cache is 0.7 to 1.5 times as fast as the
    mapping; the queue's depth, sizes of reads and read-ahead have a top somewhere; a larger cache hits more until
    memory is short, where speed collapses; lookahead loses or gains. A trial takes 17 s and 64 tokens, and as it
    grows warm the board becomes `drift` slower. Something else disturbs a share of the trials, which are then a good
    part slower.
    """

    def __init__(
        self,
        seed: int,
        space: _tune.Space,
        noise: float,
        drift: float = 0.03,
        flat: bool = False,
        disturbed: float = 0.0,
    ) -> None:
        shape, self.random = random.Random(seed), random.Random(seed + 1000)
        self.space, self.noise, self.drift, self.flat, self.trials = space, noise, drift, flat, 0
        self.disturbed = disturbed
        self.base = {"mmap": 3.37, "cache": 3.37 * shape.choice([0.68, 1.1, 1.3, 1.47])}
        self.top = {
            "mmap": {"threads": shape.choice([9, 12, 18]), "read_ahead_kb": shape.choice([16, 32, 64, 128])},
            "cache": {
                "threads": shape.choice([3, 4, 5, 6]),
                "io_depth": shape.choice([4, 8, 16, 32]),
                "read_kib": shape.choice([256, 512, 1024, 2048]),
                "read_ahead_kb": shape.choice([32, 64, 128]),
            },
        }
        self.slope = {
            "threads": shape.uniform(0.15, 0.35),
            "io_depth": shape.uniform(0, 0.10),
            "read_kib": shape.uniform(0, 0.06),
            "read_ahead_kb": shape.uniform(0, 0.05),
        }
        self.lookahead = {"auto": 0, "1": shape.uniform(-0.06, 0.05), "0": shape.uniform(-0.18, 0.05)}
        self.hits, self.cliff = shape.uniform(0.1, 0.5), shape.choice([1.0, 1.1, 1.3, 9])

    def speed(self, setting: dict[str, Any]) -> float:
        """Tokens a second without noise."""
        if self.flat:
            return 4.0
        path = setting["decision"]
        log = math.log(self.base[path])
        for name, top in self.top[path].items():
            log -= self.slope[name] * abs(math.log2(setting[name] / top)) ** 1.5
        if path == "cache":
            size = setting["cache_mib"] / 2268
            log += self.lookahead[setting["lookahead"]] + self.hits * math.log(size)
            log -= 3 * max(0.0, size - self.cliff)
        return math.exp(log)

    def best(self) -> float:
        return max(
            self.speed({"decision": path, **dict(zip(values, choice, strict=True))})
            for path, values in self.space.values.items()
            for choice in itertools.product(*values.values())
        )

    def measure(self, setting: dict[str, Any]) -> tuple[float, float]:
        """Tokens a second as a trial gives them, and the seconds that it took."""
        self.trials += 1
        warm = 1 - self.drift * min(1.0, self.trials / 20)
        speed = self.speed(setting) * math.exp(self.random.gauss(0, self.noise)) * warm
        if self.random.random() < self.disturbed:
            speed *= self.random.uniform(0.3, 0.8)
        return speed, 17 + 64 / speed


def never(_setting: dict[str, Any]) -> bool:
    return False


def step(search: _tune.Search, board: Board, left: float, other_text: Case = never, dies: Case = never) -> float | None:
    """One trial; the seconds that are then left, or None at the end."""
    setting = search.next(left)
    if setting is None:
        return None
    speed, cost = board.measure(setting)
    if dies(setting):
        search.tell(setting, None, False, 8.0, "llama-server ended with -9")
        return left - 8
    if cost > search.limit_s:
        search.tell(setting, None, False, search.limit_s, "slower than the time it was given")
        return left - search.limit_s
    search.tell(setting, speed, not other_text(setting), cost, "prompt en-1: character 7")
    return left - cost


def searched(board: Board, budget_s: float, **more: Any) -> _tune.Search:
    search = _tune.Search(board.space)
    left: float | None = budget_s
    while left is not None:
        assert left >= 0, "the budget is spent and a trial was started"
        left = step(search, board, left, **more)
    return search


def regret(board: Board, setting: dict[str, Any]) -> float:
    return 1 - board.speed(setting) / board.best()


@pytest.fixture(scope="module", params=[QWEN35B, GPT_OSS_20B], ids=["plan-cache", "plan-mmap"])
def space(request: pytest.FixtureRequest) -> _tune.Space:
    return _tune.space_of(request.param, ORIN_NANO)


# What can be tried


def test_the_space_begins_at_the_plan_and_holds_what_the_plan_says_fits() -> None:
    plan = _plan.make_plan(QWEN35B, ORIN_NANO)
    space = _tune.space_of(QWEN35B, ORIN_NANO)
    assert space.own == space.start == _tune.setting_of(plan)
    assert space.own["decision"] == "cache"
    assert space.reference == {"decision": "mmap", "threads": 12, "read_ahead_kb": 32}
    sizes = space.values["cache"]["cache_mib"]
    assert min(sizes) < 2268 < max(sizes) <= _plan.largest_cache_mib(plan, QWEN35B["experts_total_bytes"])
    assert space.values["cache"]["threads"] == [2, 3, 4, 5, 6, 9, 12, 18]
    for path, values in space.values.items():
        for choice in itertools.product(*values.values()):
            setting = {"decision": path, **dict(zip(values, choice, strict=True))}
            assert _tune.setting_of(_plan.make_plan(QWEN35B, ORIN_NANO, {}, setting)) == setting


@pytest.mark.parametrize(
    ("overrides", "environment", "arguments", "held"),
    [
        ({"threads": 3, "io_depth": ""}, {}, [], {"threads"}),
        ({"cache_mib": 2000}, {}, [], {"cache_mib", "decision"}),
        ({"decision": "cache"}, {"EDGE_MOE_LOOKAHEAD": "0", "OTHER": "1"}, [], {"decision", "lookahead"}),
        ({"extra_args": ["-t", "5"]}, {}, [], {"extra_args", "threads"}),
        ({}, {}, ["--threads=5"], {"threads"}),
    ],
)
def test_what_the_user_has_set_is_not_searched(
    overrides: dict[str, Any], environment: dict[str, Any], arguments: list[str], held: set[str]
) -> None:
    assert _tune.held_values(overrides, environment, arguments) == held
    space = _tune.space_of(QWEN35B, ORIN_NANO, {}, overrides, held=held)
    for values in space.values.values():
        assert all(len(values[name]) == 1 for name in held & set(values))
    assert ("mmap" in space.values) == ("decision" not in held)
    assert space.reference["decision"] == "mmap"
    board = Board(1, space, 0.02)
    for trial in searched(board, 3000).trials[1:]:
        start = space.starts[trial.setting["decision"]]
        assert all(trial.setting[name] == start[name] for name in held & set(start))


def test_nothing_to_search_where_nothing_is_streamed() -> None:
    with pytest.raises(_tune.TuneError, match="nothing to search"):
        _tune.space_of(LFM2_8B, ORIN_NANO)
    dense = _tune.space_of(DENSE, ORIN_NANO)
    assert set(dense.values) == {"mmap"}
    assert dense.own == dense.reference


def test_it_begins_at_an_earlier_result_that_could_be_found_again(space: _tune.Space) -> None:
    found = {"decision": "mmap", "threads": 9, "read_ahead_kb": 16}
    assert _tune.space_of(QWEN35B, ORIN_NANO, tuned=found).start == found
    for strange in ({"decision": "mmap", "threads": 10**9}, {"decision": "resident"}, {"threads": 2}, {}):
        assert _tune.space_of(QWEN35B, ORIN_NANO, tuned=strange).start["decision"] == "cache"


# The search on boards that are formulas


def test_regret_is_small_with_time_and_bounded_without(space: _tune.Space) -> None:
    lost: dict[tuple[int, float], list[float]] = {}
    for budget, noise in ((1200, 0.03), (2400, 0.03), (3600, 0.06)):
        for seed in range(30):
            board = Board(seed, space, noise)
            found = searched(board, budget).result()["setting"]
            # never clearly worse than without a search, whatever the time
            assert board.speed(found) > 0.98 * board.speed(space.own), (seed, budget, noise)
            lost.setdefault((budget, noise), []).append(regret(board, found))
    untuned = statistics.median(regret(Board(seed, space, 0), space.own) for seed in range(30))
    assert statistics.median(lost[1200, 0.03]) <= untuned / 2
    assert statistics.median(lost[2400, 0.03]) <= 0.03
    assert max(lost[2400, 0.03]) <= 0.15
    assert statistics.median(lost[3600, 0.06]) <= 0.05


@pytest.mark.parametrize("noise", [0.03, 0.10])
def test_noise_alone_is_no_gain(space: _tune.Space, noise: float) -> None:
    gains = 0
    for seed in range(40):
        result = searched(Board(seed, space, noise, flat=True), 1800).result()
        gains += result["gain"]["confirmed"]
        if not result["gain"]["confirmed"]:
            assert result["setting"] == space.own
    assert gains <= 2


def test_a_few_disturbed_trials_do_not_hide_the_gain() -> None:
    space = _tune.space_of(QWEN35B, ORIN_NANO)
    boards = [Board(seed, space, 0.03, disturbed=0.08) for seed in range(20)]
    lost = [regret(board, searched(board, 3600).result()["setting"]) for board in boards]
    assert statistics.median(lost) <= statistics.median(regret(board, space.own) for board in boards) / 2


def test_a_board_that_grows_warm_is_no_gain() -> None:
    space = _tune.space_of(QWEN35B, ORIN_NANO)
    gains = [searched(Board(seed, space, 0.02, drift=0.2, flat=True), 1800).result()["gain"] for seed in range(20)]
    assert sum(gain["confirmed"] for gain in gains) <= 1


def test_a_setting_with_another_text_never_wins(space: _tune.Space) -> None:
    """The faster settings may be the wrong ones, as a slot that is used too early is fast."""

    def wrong(setting: dict[str, Any]) -> bool:
        return bool(setting["threads"] != space.starts[setting["decision"]]["threads"])

    for seed in range(8):
        search = searched(Board(seed, space, 0.03), 2400, other_text=wrong)
        result = search.result()
        assert not wrong(result["setting"])
        told = [trial for trial in search.trials if wrong(trial.setting)]
        assert told, "none of them was even tried"
        names = [_tune.name_of(trial.setting) for trial in told]
        assert len(set(names)) == len(names), "a discarded setting was tried again"
        assert {entry["setting"] for entry in result["discarded"]} >= set(names)
        assert all("character 7" in entry["why"] for entry in result["discarded"] if entry["setting"] in names)


def test_a_leader_that_fails_later_gives_way_to_the_one_before() -> None:
    space = _tune.space_of(QWEN35B, ORIN_NANO)
    board = Board(3, space, 0.02)
    seen: dict[str, int] = {}

    def third_time(setting: dict[str, Any]) -> bool:
        name = _tune.name_of(setting)
        seen[name] = seen.get(name, 0) + 1
        return setting not in (space.own, space.reference) and seen[name] >= 3

    result = searched(board, 4000, dies=third_time).result()
    assert any("ended with -9" in entry["why"] for entry in result["discarded"])
    assert _tune.name_of(result["setting"]) not in {entry["setting"] for entry in result["discarded"]}


def test_a_winner_that_fails_in_the_confirmation_has_gained_nothing() -> None:
    space = _tune.space_of(QWEN35B, ORIN_NANO)
    board, left = Board(3, space, 0.02), 4000.0
    search = _tune.Search(space)
    failed: list[dict[str, Any]] = []
    while left > 0:
        confirming = search.gain is not None and search.gain["pairs"] >= _tune.PAIRS_LEAST - 1
        winner = search.leader
        # called within this turn of the loop, so the values it closes over are this turn's
        after = step(search, board, left, dies=lambda setting: confirming and setting == winner)  # noqa: B023
        if after is None:
            break
        left = after
        failed += [winner] if _tune.name_of(winner) in search.discarded else []
    assert failed, "no winner was ever confirmed"
    result = search.result()
    assert result["setting"] not in failed
    assert result["gain"]["confirmed"] == (result["setting"] != space.own)
    assert _tune.name_of(result["setting"]) not in search.discarded


def test_without_a_reference_or_the_plan_itself_there_is_no_result() -> None:
    space = _tune.space_of(QWEN35B, ORIN_NANO)
    for broken, said in ((space.reference, "stock mmap"), (space.own, "the plan itself")):
        search = searched(Board(1, space, 0.02), 900, dies=lambda setting, broken=broken: setting == broken)
        with pytest.raises(_tune.TuneError, match=f"{said} could not be measured: llama-server ended"):
            search.result()
    search = searched(Board(1, space, 0.02), 900, other_text=lambda setting: setting == space.own)
    with pytest.raises(_tune.TuneError, match="another text than the reference's"):
        search.result()
    times = {"own": 0}

    def later(setting: dict[str, Any]) -> bool:
        times["own"] += setting == space.own
        return times["own"] > 2 and setting == space.own

    with pytest.raises(_tune.TuneError, match="the plan's own setting failed in a later trial"):
        searched(Board(1, space, 0.02), 2400, dies=later).result()


@pytest.mark.parametrize("budget", [0, 1, 30, 100, 200])
def test_little_time_is_not_exceeded(space: _tune.Space, budget: float) -> None:
    search = searched(Board(2, space, 0.05), budget)
    if search.problem:
        assert budget <= 30, search.problem
    else:
        # no time for a confirmation, so no gain
        assert search.result()["setting"] == space.own


def test_it_goes_on_from_what_was_tried(space: _tune.Space) -> None:
    """A search that is cut at any trial and told the earlier ones ends as one that was not cut."""

    def wrong(setting: dict[str, Any]) -> bool:
        return setting["threads"] in (3, 9)

    whole = searched(Board(5, space, 0.05), 1500, other_text=wrong)
    assert whole.discarded
    board, left = Board(5, space, 0.05), 1500.0
    search = _tune.Search(space)
    for number in range(1000):
        if number % 7 == 6:
            kept = json.loads(json.dumps([asdict(trial) for trial in search.trials]))
            search = _tune.Search(space)
            search.replay(kept)
        after = step(search, board, left, other_text=wrong)
        if after is None:
            break
        left = after
    assert search.result() == whole.result()


def test_a_state_of_something_else_is_refused(space: _tune.Space) -> None:
    kept = [asdict(trial) for trial in searched(Board(5, space, 0.05), 600).trials]
    strange: list[list[Any]] = [
        [{**kept[0], "setting": {"decision": "mmap"}}],
        [{}],
        [None],
        ["x"],
        [{**kept[0], "cost_s": "long"}],
        [{**kept[0], "remaining_s": None}],
        kept[1:],
    ]
    for trials in strange:
        with pytest.raises(_tune.TuneError):
            _tune.Search(space).replay(trials)


def test_what_was_not_asked_for_is_refused(space: _tune.Space) -> None:
    search = _tune.Search(space)
    with pytest.raises(_tune.TuneError, match="not what was asked for"):
        search.tell(space.own, 3.0, True, 1.0)
    asked = search.next(1000)
    assert asked == search.next(1000) == space.reference
    search.tell(asked, float("nan"), True, 1.0)
    assert search.next(900) is None
    with pytest.raises(_tune.TuneError, match="it gave no speed"):
        search.result()
