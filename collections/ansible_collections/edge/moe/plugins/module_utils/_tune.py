# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the fastest way to serve one model on one board, by trials that are noisy and slow. Pure: no clock, no I/O.

Private to this collection: it may change in any release.

`space_of` says what can be tried, from the plan's own arithmetic. `Search` says what to try next and is told what came
of it; it knows the time from what it is handed. Its state is the list of its trials: told the same ones again, it goes
on where it was.

    search = Search(space)
    while (setting := search.next(remaining_s)) is not None:
        ...serve with it, for at most search.limit_s seconds...
        search.tell(setting, tokens_per_s, text_equal, cost_s)
    search.result()

How it searches. The first trial is the stock mmap path, whose text every other has to repeat. From the plan's own
setting it goes one step along one value at a time. A step is judged against the setting it leaves, which is tried
again between challengers, so that a board that grows warm slows both sides alike. What counts as slower follows from
how much trials of one setting differ: a step that is clearly slower goes after one trial, a clearly faster one is
taken, and the close ones get more trials, the most promising first. What a step along one value gained is remembered
as that value's, also when another value moves. At the end the winner runs against the plan's own setting in pairs that
alternate, and only a gain beyond the noise of those is one: otherwise the plan's own setting stays.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ansible_collections.edge.moe.plugins.module_utils import _plan

FORMAT = 1
# Names of a setting's values, those that moved speed most in published and own measurements first.
VALUES = {
    "mmap": ("threads", "read_ahead_kb"),
    "cache": ("threads", "cache_mib", "lookahead", "io_depth", "read_kib", "read_ahead_kb"),
}
# Compute threads as parts of the cores: the two paths have their optima at opposite ends.
THREAD_SHARES = (1 / 3, 1 / 2, 2 / 3, 5 / 6, 1, 3 / 2, 2, 3)
IO_DEPTHS = (4, 8, 16, 32)
READ_KIBS = (256, 512, 1024, 2048)
READ_AHEAD_KBS = (16, 32, 64, 128)
LOOKAHEADS = ("auto", "0", "1")
# Cache sizes go up and down from the plan's by this factor, since less is within the noise: down so many steps, up as
# far as they fit.
SIZE_STEP, SIZE_STEPS = 1.2, 3
# What of the user's own sets a value behind the plan's back.
ENVIRONMENT_OF = {
    "EDGE_MOE_CACHE_MIB": "cache_mib",
    "EDGE_MOE_IO_DEPTH": "io_depth",
    "EDGE_MOE_READ_KIB": "read_kib",
    "EDGE_MOE_LOOKAHEAD": "lookahead",
}
THREAD_ARGUMENTS = ("-t", "--threads")

# Standard deviation of a trial before any is repeated, and how many repetitions that guess counts for.
NOISE_GUESS, NOISE_GUESS_WEIGHT = 0.05, 3
NOISE_LEAST = 0.005
# Of a normal distribution.
MEDIAN_TO_DEVIATION = 1.4826
# A step is clearly better or worse beyond this many standard errors: one in twenty is misjudged.
CLEAR = 1.65
# A step that cannot gain as much is not worth another trial.
LEAST_GAIN = 0.02
FIRST_ROUNDS, ROUNDS_MAX = 2, 6
# All steps that looked better are taken together, and that leap gets so many trials.
LEAP_ROUNDS = 3
# Trials of challengers between two of the setting that they challenge.
CHALLENGERS_BETWEEN = 3
# The other path's values can make up for so much; further behind it is dropped as it stands.
RIVAL_RATIO = 1.4
# Pairs of the confirmation: the fewest that time is kept for, and how far it goes on while it is undecided.
PAIRS_LEAST, PAIRS_MOST = 3, 8
# Standard errors that a gain has to be above after the last pair, and more after fewer, as each is a look of its own:
# "a gain" is wrong on about one of fifty boards.
CONFIRMED = 2.4
# A trial that takes so much longer than others of its path is slower, whatever it would give; not among quick ones.
SLOWER_CLEARLY, SLOWER_LEAST_S = 3.0, 10.0
COST_MARGIN = 1.15
TRIALS_MAX = 400
EVIDENCE_MAX = 500

Setting = dict[str, Any]


class TuneError(Exception):
    """Why nothing can be searched, or a state that is none."""


# What can be tried


@dataclass(frozen=True)
class Space:
    """What is searched. `own` is the plan's own setting without a tuned one, `start` where the search begins,
    `reference` the stock mmap path; `values` has for each path the values of each name in order, one where it is held;
    `starts` the plan's own setting on each path."""

    own: Setting
    start: Setting
    reference: Setting
    starts: dict[str, Setting]
    values: dict[str, dict[str, list[Any]]]


def name_of(setting: Setting) -> str:
    """One text for one setting, for a table and as a key."""
    path = str(setting["decision"])
    return " ".join([path, *(f"{name}={setting[name]}" for name in VALUES[path])])


def setting_of(plan: dict[str, Any]) -> Setting:
    """What of a plan is searched."""
    path = plan["decision"]
    setting = {"decision": path, **{name: plan[name] for name in VALUES[path] if name != "lookahead"}}
    if path == "cache":
        setting["lookahead"] = plan.get("lookahead", "auto")
    return setting


def held_values(overrides: dict[str, Any], environment: dict[str, Any], arguments: Sequence[str]) -> set[str]:
    """Names that the user has set, in any of the ways there are: those are not searched."""
    held = {name for name, value in overrides.items() if value not in (None, "")}
    held |= {ENVIRONMENT_OF[name] for name in environment if name in ENVIRONMENT_OF}
    given = [str(argument).partition("=")[0] for argument in [*arguments, *(overrides.get("extra_args") or [])]]
    if any(argument in THREAD_ARGUMENTS for argument in given):
        held.add("threads")
    if "cache_mib" in held:
        held.add("decision")  # naming a size means wanting the cache, naming 0 means not wanting it
    return held


def space_of(
    gguf: dict[str, Any],
    jetson: dict[str, Any],
    devfreq: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    tuned: dict[str, Any] | None = None,
    held: set[str] | None = None,
) -> Space:
    """What can be tried on a board, of which `overrides` (and whatever else is in `held`) is left as it is.

    `tuned` is an earlier result's setting to begin with. Raises TuneError where nothing is streamed, PlanError where
    the plan itself cannot be made.
    """
    overrides = {name: value for name, value in (overrides or {}).items() if value not in (None, "")}
    held = held_values(overrides, {}, ()) if held is None else held
    plan = _plan.make_plan(gguf, jetson, devfreq, overrides)
    if plan["decision"] == "resident":
        raise TuneError("the whole model is in memory here, nothing is read while decoding: there is nothing to search")
    moe = int(gguf["experts_total_bytes"]) > 0 and int(gguf["cycle_bytes"]) > 0
    plans = {plan["decision"]: plan}
    for path in ("mmap", *(["cache"] if moe and "decision" not in held else [])):
        if path in plans:
            continue
        try:
            # the reference is the mmap path even where the user wants the cache
            plans[path] = _plan.make_plan(gguf, jetson, devfreq, {**overrides, "decision": path})
        except _plan.PlanError:
            if path == "mmap":
                raise
    cores = max(1, int(jetson.get("cores") or 1))
    starts = {path: setting_of(made) for path, made in plans.items()}
    reference = starts["mmap"]
    if "decision" in held:
        starts = {plan["decision"]: starts[plan["decision"]]}
    values: dict[str, dict[str, list[Any]]] = {}
    for path, start in starts.items():
        candidates: dict[str, Sequence[Any]] = {
            "threads": [max(1, round(cores * share)) for share in THREAD_SHARES],
            "read_ahead_kb": READ_AHEAD_KBS,
        }
        if path == "cache":
            candidates |= {
                "cache_mib": _sizes(plans[path], gguf),
                "lookahead": LOOKAHEADS,
                "io_depth": IO_DEPTHS,
                "read_kib": READ_KIBS,
            }
        values[path] = {
            name: [start[name]] if name in held else sorted({start[name], *candidates[name]}) for name in VALUES[path]
        }
    own = setting_of(plan)
    return Space(own, _start(own, starts, values, tuned), reference, starts, values)


def _sizes(plan: dict[str, Any], gguf: dict[str, Any]) -> list[int]:
    """Cache sizes in MiB around the plan's, none that is of no use or leaves the page cache less than a plan would."""
    own, least = int(plan["cache_mib"]), math.ceil(_plan.MIN_CYCLES * int(gguf["cycle_bytes"]) / _plan.MIB)
    most = _plan.largest_cache_mib(plan, int(gguf["experts_total_bytes"]))
    up = int(math.log(most / own, SIZE_STEP))
    sizes = [round(own * SIZE_STEP**step) for step in range(-SIZE_STEPS, up + 1)]
    return [size for size in sizes if least <= size <= most]


def _start(
    own: Setting, starts: dict[str, Setting], values: dict[str, dict[str, list[Any]]], tuned: dict[str, Any] | None
) -> Setting:
    """The setting to begin with: the tuned one where each of its values is one that could be found again."""
    path = (tuned or {}).get("decision")
    if not tuned or path not in starts:
        return own
    start = {"decision": path, **{name: tuned.get(name, starts[path][name]) for name in VALUES[path]}}
    known = all(start[name] in values[path][name] for name in VALUES[path])
    return start if known else own


# The search


def _middle(values: Sequence[float]) -> float:
    """The median of all pairs' means: nearly as sharp as the mean, and a few values that are far out do not move it."""
    return statistics.median((one + other) / 2 for one, other in itertools.combinations_with_replacement(values, 2))


@dataclass(frozen=True)
class Trial:
    """One trial. `tokens_per_s` is None where it gave none; `evidence` is what speaks against it."""

    setting: Setting
    tokens_per_s: float | None
    text_equal: bool
    cost_s: float
    remaining_s: float
    evidence: str

    @property
    def problem(self) -> str:
        """Why its setting is out for ever; empty if it is not."""
        if self.tokens_per_s is None:
            return self.evidence or "it gave no speed"
        if not self.text_equal:
            return "another text than the reference's" + (f": {self.evidence}" if self.evidence else "")
        return ""


class _OutOfTime(Exception):
    """No trial fits any more."""


class _Discarded(Exception):
    """A setting that was asked for is out."""


class _Hopeless(Exception):
    """There is nothing to compare with."""


_Steps = Generator[Setting, Trial, Any]


class _Move(NamedTuple):
    """A step of one value of a path."""

    path: str
    name: str
    old: Any
    new: Any

    def applied(self, setting: Setting) -> Setting:
        return {**setting, self.name: self.new}

    def reverse(self) -> _Move:
        return self._replace(old=self.new, new=self.old)


class Search:
    """Asks for trials with `next`, is told their outcome with `tell`; `limit_s` is what the asked one may take."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.trials: list[Trial] = []
        self.discarded: dict[str, str] = {}
        self.limit_s = math.inf
        self.problem = ""
        self.ended = ""
        self.gain: dict[str, Any] | None = None
        self._remaining = 0.0
        self._asked: Setting | None = None
        self._told: Trial | None = None
        # Of each step, where in the list of trials it was tried, and which setting it challenged there.
        self._evidence: dict[_Move, list[tuple[int, str]]] = {}
        self._leapt: set[str] = set()
        # Who led in turn; the last that is not discarded does now.
        self._leaders: list[Setting] = [space.own]
        self._steps = self._run()

    def next(self, remaining_s: float) -> Setting | None:
        """The setting to try now, or None when the search has ended. Asked again before `tell`, it is the same."""
        if self._asked is not None and self._told is None:
            return dict(self._asked)
        self._remaining = remaining_s
        try:
            asked = self._steps.send(self._told) if self._told else next(self._steps)
        except StopIteration:
            self._asked = self._told = None
            return None
        self._asked, self._told = asked, None
        return dict(asked)

    def tell(
        self, setting: Setting, tokens_per_s: float | None, text_equal: bool, cost_s: float, evidence: str = ""
    ) -> None:
        """What came of what `next` gave; no speed, or another text, discards it for ever with `evidence`."""
        if self._asked is None or setting != self._asked:
            raise TuneError(f"told of {setting}, which is not what was asked for ({self._asked})")
        usable = tokens_per_s is not None and 0 < tokens_per_s < math.inf
        trial = Trial(
            dict(setting),
            tokens_per_s if usable else None,
            text_equal,
            cost_s,
            self._remaining,
            evidence[:EVIDENCE_MAX],
        )
        self._told = trial
        self.trials.append(trial)
        if trial.problem:
            self.discarded[name_of(setting)] = trial.problem

    def replay(self, trials: Sequence[dict[str, Any]]) -> None:
        """Go on from the `trials` of an earlier `state`. Raises TuneError if they are not this search's."""
        try:
            for trial in trials[:TRIALS_MAX]:
                asked = self.next(float(trial["remaining_s"]))
                if asked is None or asked != trial["setting"]:
                    raise TuneError(f"trial {len(self.trials) + 1} was {trial['setting']} and would be {asked}")
                speed = trial["tokens_per_s"]
                self.tell(
                    asked,
                    None if speed is None else float(speed),
                    trial["text_equal"] is True,
                    float(trial["cost_s"]),
                    str(trial["evidence"]),
                )
        except (KeyError, TypeError, ValueError) as error:
            raise TuneError(f"no list of trials: {type(error).__name__}: {error}") from error

    # What is known so far

    @property
    def leader(self) -> Setting:
        """The last that won and is not discarded."""
        return next(
            (setting for setting in reversed(self._leaders) if name_of(setting) not in self.discarded), self.space.own
        )

    def _log(self, place: int) -> float:
        return math.log(self.trials[place].tokens_per_s or math.inf)

    def _logs(self, name: str, first: int = 0) -> list[tuple[int, float]]:
        """Place in the list of trials and logarithm of the speed of each good trial of a setting, from `first` on."""
        return [
            (place, self._log(place))
            for place, trial in enumerate(self.trials)
            if place >= first and not trial.problem and name_of(trial.setting) == name
        ]

    def noise(self) -> float:
        """Standard deviation of one trial's log speed, from trials of one setting that follow each other.

        Differences of neighbours, so that a slow drift of the board is not taken for noise, and their median, so that
        neither are the few trials that something else on the board has disturbed.
        """
        steps: list[float] = []
        last: dict[str, float] = {}
        for place, trial in enumerate(self.trials):
            if not trial.problem:
                name = name_of(trial.setting)
                if name in last:
                    steps.append(abs(self._log(place) - last[name]))
                last[name] = self._log(place)
        seen = MEDIAN_TO_DEVIATION * statistics.median(steps) / math.sqrt(2) if steps else 0.0
        squares = NOISE_GUESS_WEIGHT * NOISE_GUESS**2 + len(steps) * seen**2
        return max(NOISE_LEAST, math.sqrt(squares / (NOISE_GUESS_WEIGHT + len(steps))))

    def _edge(self, tried: Sequence[tuple[int, str]], back: Sequence[tuple[int, str]] = ()) -> tuple[float, float]:
        """Gain of trials over what they challenged, as a logarithm, and its standard error.

        Each is set against the two trials before and the two after it of the setting that it challenged. Trials of
        `back` went the other way: what they gained is a loss.
        """
        edges, variance = [], 0.0
        for sign, (place, against) in [*((1, one) for one in tried), *((-1, one) for one in back)]:
            known = self._logs(against)
            near = [log for other, log in known if other < place][-2:]
            near += [log for other, log in known if other > place][:2]
            if near:
                edges.append(sign * (self._log(place) - _middle(near)))
                variance += 1 + 1 / len(near)
        if not edges:
            return 0.0, math.inf
        return _middle(edges), self.noise() * math.sqrt(variance) / len(edges)

    def _cost(self, setting: Setting) -> float:
        """Seconds that a trial of it will take: the longest of its own, else of its path, else of any."""
        good = [trial for trial in self.trials if trial.tokens_per_s]
        for like in (
            [trial for trial in good if trial.setting == setting],
            [trial for trial in good if trial.setting["decision"] == setting["decision"]],
            good,
        ):
            if like:
                return COST_MARGIN * max(trial.cost_s for trial in like)
        return 0.0

    # Its steps

    def _try(self, setting: Setting, keep_s: float | None = None) -> _Steps:
        """One trial, if it can end in the time that is left beside what the confirmation needs."""
        key = name_of(setting)
        if key in self.discarded:
            raise _Discarded(key)
        if len(self.trials) >= TRIALS_MAX:
            raise _OutOfTime
        keep = PAIRS_LEAST * (self._cost(self.space.own) + self._cost(self.leader)) if keep_s is None else keep_s
        cost = self._cost(setting)
        if self._remaining - keep < cost or self._remaining <= 0:
            raise _OutOfTime
        self.limit_s = self._remaining - keep
        if cost and keep_s is None:
            self.limit_s = min(self.limit_s, max(SLOWER_LEAST_S, SLOWER_CLEARLY * cost))
        trial = yield setting
        if trial.problem:
            raise _Discarded(key)

    def _run(self) -> _Steps:
        own = self.space.own
        try:
            yield from self._try(self.space.reference, keep_s=0)
            if own != self.space.reference:
                yield from self._try(own, keep_s=0)
        except _OutOfTime:
            self.problem = (
                f"the time is too short: {self._remaining:.0f} s were left for a trial, which takes about "
                f"{self._cost(own):.0f} s: ask for more (budget_s)"
            )
            return
        except _Discarded:
            self.problem = (
                f"{'stock mmap' if len(self.trials) == 1 else 'the plan itself'} could not be measured: "
                f"{self.trials[-1].problem}"
            )
            return
        try:
            yield from self._explore()
            self.ended = "nothing is left to try"
        except _OutOfTime:
            self.ended = "the time is over"
        except _Hopeless:
            pass
        while name_of(own) not in self.discarded and (winner := self.leader) != own:
            try:
                yield from self._confirm(winner)
            except _Discarded:
                self.gain = None  # what it had gained until then is nothing
                continue
            break
        if name_of(own) in self.discarded:
            self.problem = f"the plan's own setting failed in a later trial: {self.discarded[name_of(own)]}"

    def _explore(self) -> _Steps:
        if self.space.start != self.space.own:
            yield from self._duel(self.space.start, ROUNDS_MAX)
        best = self.leader
        rival = next((start for path, start in self.space.starts.items() if path != best["decision"]), None)
        if rival is not None:
            if not self._logs(name_of(rival)):
                with contextlib.suppress(_Discarded):
                    yield from self._step(rival)
            edge, error = self._edge([(place, name_of(best)) for place, _log in self._logs(name_of(rival))])
            if edge > CLEAR * error:
                self._leaders.append(rival)
                rival = best
        yield from self._climb(FIRST_ROUNDS)
        if rival is not None and self._level(rival) > self._level(self.leader) - math.log(RIVAL_RATIO):
            best = self.leader
            self._leaders.append(rival)
            try:
                yield from self._climb(FIRST_ROUNDS)
            finally:
                rival = self.leader
                self._leaders.append(best)
            if rival != self.leader:
                yield from self._duel(rival, ROUNDS_MAX)
        yield from self._climb(ROUNDS_MAX)

    def _level(self, setting: Setting) -> float:
        """Mean log speed of a setting; of one without a good trial, minus infinity."""
        logs = [log for _place, log in self._logs(name_of(setting))]
        return sum(logs) / len(logs) if logs else -math.inf

    def _duel(self, other: Setting, rounds: int) -> _Steps:
        """A whole setting against the leader, in turns, until one is clearly faster or the rounds are over."""
        tried: list[tuple[int, str]] = []
        edge = 0.0
        with contextlib.suppress(_Discarded):
            for _round in range(rounds):
                tried.append((yield from self._step(other)))
                edge, error = self._edge(tried)
                if abs(edge) > CLEAR * error:
                    break
            if edge > 0:
                self._leaders.append(other)

    def _step(self, setting: Setting) -> Generator[Setting, Trial, tuple[int, str]]:
        """One trial of a challenger, after one of the leader's where the last of those is too long ago.

        Returns its place in the list of trials and the name of whom it challenged.
        """
        if self.leader not in [trial.setting for trial in self.trials[-CHALLENGERS_BETWEEN:]]:
            try:
                yield from self._try(self.leader)
            except _Discarded:
                if name_of(self.space.own) in self.discarded:
                    raise _Hopeless from None
        best = name_of(self.leader)
        yield from self._try(setting)
        return len(self.trials) - 1, best

    def _moves_from(self, setting: Setting) -> list[_Move]:
        """Steps of one place along one value, in the order of the names, without those that are out."""
        path, moves = setting["decision"], []
        for name in VALUES[path]:
            values = self.space.values[path][name]
            here = values.index(setting[name])
            near = [place for place in (here - 1, here + 1) if 0 <= place < len(values)]
            if name == "lookahead":  # has no order
                near = [place for place in range(len(values)) if place != here]
            moves += [_Move(path, name, setting[name], values[place]) for place in near]
        return [move for move in moves if not self._out(move) and name_of(move.applied(setting)) not in self.discarded]

    def _tried(self, move: _Move) -> int:
        return len(self._evidence.get(move, [])) + len(self._evidence.get(move.reverse(), []))

    def _known(self, move: _Move) -> tuple[float, float]:
        """What is known of a step, from its trials and those of the way back: mean gain and standard error."""
        there, back = self._evidence.get(move, []), self._evidence.get(move.reverse(), [])
        return self._edge(there, back)

    def _out(self, move: _Move) -> bool:
        """Whether a step is clearly worse, or cannot gain what a further trial is worth."""
        edge, error = self._known(move)
        return edge + CLEAR * error < math.log1p(LEAST_GAIN)

    def _leap(self, setting: Setting) -> Setting:
        """All steps that looked better than the setting, taken at once: together they stand out of the noise sooner."""
        leap, best = dict(setting), dict.fromkeys(VALUES[setting["decision"]], 0.0)
        for move in self._moves_from(setting):
            edge, _error = self._known(move)
            if edge > best[move.name]:
                best[move.name] = edge
                leap[move.name] = move.new
        return leap

    def _climb(self, rounds: int) -> _Steps:
        """Steps from the leader until none is left that could gain, each tried at most `rounds` times."""
        while True:
            best = self.leader
            moves = self._moves_from(best)
            fresh = [move for move in moves if not self._tried(move)]
            leap = self._leap(best)
            worth = [move for move in moves if self._tried(move) < rounds]
            if fresh:
                move = fresh[0]
            elif sum(leap[name] != best[name] for name in leap) > 1 and name_of(leap) not in self._leapt:
                self._leapt.add(name_of(leap))
                yield from self._duel(leap, LEAP_ROUNDS)
                continue
            elif worth:
                move = max(worth, key=lambda move: sum(self._known(move)))
            else:
                return
            # a setting that fails is out for ever, the value is not: it may suit another setting
            with contextlib.suppress(_Discarded):
                self._evidence.setdefault(move, []).append((yield from self._step(move.applied(best))))
                edge, error = self._known(move)
                last = rounds == ROUNDS_MAX and self._tried(move) >= rounds
                if edge > CLEAR * error or (last and edge > 0):
                    self._leaders.append(move.applied(best))

    def _confirm(self, winner: Setting) -> _Steps:
        """Pairs of the winner and the plan's own setting; who goes first alternates."""
        own = self.space.own
        first = len(self.trials)
        number = 0
        while number < PAIRS_MOST:
            # the time for the first pairs was kept back, further ones take what is over
            if self._remaining < self._cost(own) + self._cost(winner):
                break
            try:
                for setting in (own, winner)[:: 1 if number % 2 == 0 else -1]:
                    yield from self._try(setting, keep_s=0)
            except _OutOfTime:
                break
            number += 1
            self.gain = self._gain(own, winner, first, number)
            if number >= PAIRS_LEAST and not self.gain["low"] <= 1 <= self.gain["high"]:
                break

    def _gain(self, own: Setting, winner: Setting, first: int, number: int) -> dict[str, Any]:
        """The ratio of the pairs so far, with its bounds; a gain only where the lower bound is above 1."""
        sides = [[log for _place, log in self._logs(name_of(side), first)][:number] for side in (own, winner)]
        ratios = [new - old for old, new in zip(*sides, strict=True)]
        middle = _middle(ratios)
        # A few pairs that agree by chance know less than all trials together.
        error = self.noise() * math.sqrt(2 / number)
        bound = CONFIRMED * error * (PAIRS_MOST / number) ** 0.25
        confirmed = number >= PAIRS_LEAST and middle > bound
        return {
            "confirmed": confirmed,
            "ratio": math.exp(middle),
            "low": math.exp(middle - bound),
            "high": math.exp(middle + bound),
            "pairs": number,
            "own_tokens_per_s": math.exp(statistics.median(sides[0])),
            "tokens_per_s": math.exp(statistics.median(sides[1])),
        }

    def result(self) -> dict[str, Any]:
        """What was found: the setting to serve with, whether it is a gain, and everything that was tried.

        Raises TuneError where there was nothing to compare with.
        """
        if self.problem:
            raise TuneError(self.problem)
        gain = self.gain or {"confirmed": False, "ratio": 1.0, "pairs": 0}
        won = bool(gain["confirmed"])
        return {
            "setting": dict(self.leader if won else self.space.own),
            "own": dict(self.space.own),
            "start": dict(self.space.start),
            "best_seen": dict(self.leader),
            "gain": gain,
            "noise": self.noise(),
            "ended": self.ended,
            "discarded": [{"setting": name, "why": why} for name, why in self.discarded.items()],
            "trials": [asdict(trial) for trial in self.trials],
        }
