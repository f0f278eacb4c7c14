# SPDX-License-Identifier: GPL-3.0-or-later
"""When the floor should be up. Pure: events and times in, an action out; no I/O and no clock of its own.

A call in flight is (pid, tid, function). The floor goes up when the first one begins and comes down `hold_s` after
the last one ended. Three things that would leave it up for ever are ruled out here:

- a call that never returns because its process or thread died: `process_gone`, `thread_gone`;
- a return that was lost with an overflowing ring buffer: `lost` forgets what is in flight;
- a begin that is delivered after its own end (each CPU has its own ring): it carries an earlier time, and is dropped.

A function re-entered by the same thread counts once: a missed return then heals at the next call.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Call(NamedTuple):
    pid: int
    tid: int
    function: str


class Action(Enum):
    NONE = "none"
    RAISE = "raise"
    RELEASE = "release"


class Activity:
    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._calls: dict[Call, float] = {}
        self._ended: dict[Call, float] = {}
        self._idle_since: float | None = None
        self.active = False

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(self._calls)

    @property
    def deadline(self) -> float | None:
        """When `tick` will release, if nothing begins before; None while calls are in flight or all is idle."""
        if not self.active or self._idle_since is None:
            return None
        return self._idle_since + self._hold_s

    def begin(self, call: Call, when: float) -> Action:
        if when < self._ended.get(call, when):
            return Action.NONE
        self._calls[call] = when
        self._idle_since = None
        if self.active:
            return Action.NONE
        self.active = True
        return Action.RAISE

    def end(self, call: Call, when: float) -> Action:
        self._ended[call] = max(when, self._ended.get(call, when))
        # An end older than the begin that is known belongs to an earlier call of the same thread.
        if call in self._calls and self._calls[call] <= when:
            del self._calls[call]
            self._settle(when)
        return Action.NONE

    def process_gone(self, pid: int, when: float) -> Action:
        self._drop([call for call in self._calls if call.pid == pid], when)
        for call in [call for call in self._ended if call.pid == pid]:
            del self._ended[call]
        return Action.NONE

    def thread_gone(self, pid: int, tid: int, when: float) -> Action:
        self._drop([call for call in self._calls if (call.pid, call.tid) == (pid, tid)], when)
        for call in [call for call in self._ended if (call.pid, call.tid) == (pid, tid)]:
            del self._ended[call]
        return Action.NONE

    def lost(self, when: float) -> Action:
        """Events were dropped: nothing known to be in flight can be trusted to ever end."""
        self._drop(list(self._calls), when)
        return Action.NONE

    def tick(self, now: float) -> Action:
        deadline = self.deadline
        if deadline is None or now < deadline:
            return Action.NONE
        self.active = False
        self._idle_since = None
        # Nothing is delivered this late any more, and threads come and go.
        self._ended.clear()
        return Action.RELEASE

    def _drop(self, calls: list[Call], when: float) -> None:
        for call in calls:
            del self._calls[call]
        if calls:
            self._settle(when)

    def _settle(self, when: float) -> None:
        if self.active and not self._calls:
            self._idle_since = when
