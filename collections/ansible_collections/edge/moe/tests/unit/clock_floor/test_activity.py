# SPDX-License-Identifier: GPL-3.0-or-later
"""When the floor is up: single cases, then random histories against a plain model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edge_moe_clock_floor.activity import Action, Activity, Call
from hypothesis import given, settings
from hypothesis import strategies as st

A = Call(10, 10, "llama_decode")
B = Call(10, 11, "llama_decode")
C = Call(20, 20, "llama_synchronize")


def test_up_at_the_first_call_down_after_the_hold() -> None:
    activity = Activity(1.0)
    assert activity.begin(A, 5.0) is Action.RAISE
    assert activity.begin(C, 5.1) is Action.NONE
    assert activity.end(A, 6.0) is Action.NONE
    assert activity.deadline is None, "a call is in flight"
    assert activity.tick(1e6) is Action.NONE
    activity.end(C, 7.0)
    assert activity.deadline == 8.0
    assert activity.tick(7.999) is Action.NONE
    assert activity.tick(8.0) is Action.RELEASE
    assert activity.tick(9.0) is Action.NONE
    assert not activity.active


def test_a_call_within_the_hold_goes_on_without_a_new_raise() -> None:
    activity = Activity(1.0)
    activity.begin(A, 0.0)
    activity.end(A, 1.0)
    assert activity.begin(A, 1.9) is Action.NONE
    assert activity.tick(2.5) is Action.NONE
    activity.end(A, 3.0)
    assert activity.tick(4.0) is Action.RELEASE


def test_a_process_that_dies_in_a_call_leaves_nothing_in_flight() -> None:
    activity = Activity(1.0)
    activity.begin(A, 0.0)
    activity.begin(B, 0.0)
    activity.begin(C, 0.0)
    activity.process_gone(10, 2.0)
    assert activity.calls == (C,)
    activity.process_gone(20, 3.0)
    assert activity.in_flight == 0
    assert activity.tick(3.9) is Action.NONE
    assert activity.tick(4.0) is Action.RELEASE


def test_a_thread_that_dies_in_a_call() -> None:
    activity = Activity(1.0)
    activity.begin(A, 0.0)
    activity.begin(B, 0.0)
    activity.thread_gone(10, 11, 1.0)
    assert activity.calls == (A,)


def test_death_of_a_process_that_was_idle_does_not_prolong_the_hold() -> None:
    activity = Activity(1.0)
    activity.begin(A, 0.0)
    activity.end(A, 0.5)
    activity.process_gone(10, 1.2)
    assert activity.tick(1.5) is Action.RELEASE


def test_lost_events_do_not_hold_the_floor_for_ever() -> None:
    activity = Activity(1.0)
    activity.begin(A, 0.0)
    activity.lost(5.0)
    assert activity.tick(6.0) is Action.RELEASE


def test_a_begin_delivered_after_its_own_end_is_dropped() -> None:
    activity = Activity(1.0)
    activity.begin(C, 0.0)
    activity.end(A, 2.0)
    activity.begin(A, 1.9)
    assert activity.calls == (C,)


def test_an_end_of_an_earlier_call_does_not_end_the_present_one() -> None:
    activity = Activity(1.0)
    activity.begin(A, 3.0)
    activity.end(A, 2.0)
    assert activity.calls == (A,)


def test_a_missed_return_heals_at_the_next_call() -> None:
    activity = Activity(1.0)
    activity.begin(A, 0.0)
    activity.begin(A, 5.0)
    activity.end(A, 6.0)
    assert activity.in_flight == 0


def test_nothing_is_remembered_after_release() -> None:
    """Threads come and go in a server that runs for months."""
    activity = Activity(0.0)
    for tid in range(1000):
        call = Call(1, tid, "llama_decode")
        activity.begin(call, float(tid))
        activity.end(call, tid + 0.5)
        assert activity.tick(tid + 0.5) is Action.RELEASE
    assert activity._ended == {}


CALLS = st.builds(
    Call, st.sampled_from([1, 2]), st.sampled_from([1, 2, 3]), st.sampled_from(["llama_decode", "llama_process"])
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "end", "end", "tick", "process", "thread", "lost"]),
        CALLS,
        st.floats(-0.4, 2.0),  # time also steps back: CPUs deliver out of order
    ),
    max_size=80,
)


class Model:
    """The rules in their plainest form: every fact is searched for in the whole history each time."""

    def __init__(self, hold_s: float) -> None:
        self.hold_s = hold_s
        self.begun: dict[Call, float] = {}
        self.ends: list[tuple[Call, float]] = []
        self.quiet_since: float | None = None
        self.up = False

    def step(self, kind: str, call: Call, now: float) -> Action:
        before = set(self.begun)
        if kind == "begin":
            if not any(other == call and when > now for other, when in self.ends):
                self.begun[call] = now
                self.quiet_since = None
                if not self.up:
                    self.up = True
                    return Action.RAISE
        elif kind == "end":
            self.ends.append((call, now))
            if self.begun.get(call, now + 1) <= now:
                del self.begun[call]
        elif kind == "tick":
            if self.up and not self.begun and self.quiet_since is not None and now >= self.quiet_since + self.hold_s:
                self.up, self.quiet_since, self.ends = False, None, []
                return Action.RELEASE
        else:
            gone = {
                "process": lambda c: c.pid == call.pid,
                "thread": lambda c: (c.pid, c.tid) == (call.pid, call.tid),
                "lost": lambda c: True,
            }[kind]
            self.begun = {c: when for c, when in self.begun.items() if not gone(c)}
            if kind != "lost":
                self.ends = [(c, when) for c, when in self.ends if not gone(c)]
        if before and not self.begun and self.up:
            self.quiet_since = now
        return Action.NONE


@settings(max_examples=400, deadline=None)
@given(steps=STEPS, hold_s=st.sampled_from([0.0, 0.25, 1.0]))
def test_random_histories_agree_with_the_model(steps: list[tuple[str, Call, float]], hold_s: float) -> None:
    activity, model, now = Activity(hold_s), Model(hold_s), 100.0
    for kind, call, delta in steps:
        now += delta
        steps_of: dict[str, Callable[[], Action]] = {
            "begin": partial(activity.begin, call, now),
            "end": partial(activity.end, call, now),
            "tick": partial(activity.tick, now),
            "process": partial(activity.process_gone, call.pid, now),
            "thread": partial(activity.thread_gone, call.pid, call.tid, now),
            "lost": partial(activity.lost, now),
        }
        assert steps_of[kind]() is model.step(kind, call, now)
        assert activity.active == model.up
        assert set(activity.calls) == set(model.begun)
        # The two ways in which the floor could stay up for ever.
        assert activity.active or not activity.calls
        assert not activity.active or activity.calls or activity.deadline is not None


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, hold_s=st.sampled_from([0.0, 1.0]))
def test_after_all_processes_died_the_hold_always_ends_it(steps: list[tuple[str, Call, float]], hold_s: float) -> None:
    activity, now = Activity(hold_s), 100.0
    for kind, call, delta in steps:
        now += delta
        if kind == "begin":
            activity.begin(call, now)
        elif kind == "end":
            activity.end(call, now)
    for pid in (1, 2):
        activity.process_gone(pid, now)
    # A call whose end was seen "in the future" of a clock that stepped back may hold a little longer.
    activity.tick(now + 200 + hold_s)
    assert not activity.active
