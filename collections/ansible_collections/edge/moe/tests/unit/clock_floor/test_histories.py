# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole decision under random histories: calls, deaths, power modes, jetson_clocks, and kills at any write.

The plain model knows one thing: which `min_freq` everybody but us wants. Whatever happens, that is what has to be
there whenever the floor is down, and right after a kill at any write, once `restore` has run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from edge_moe_clock_floor import baseline, controller
from edge_moe_clock_floor._devfreq import Node, Sysfs
from edge_moe_clock_floor.activity import Action, Activity, Call
from edge_moe_clock_floor.baseline import Entry, Journal
from edge_moe_clock_floor.controller import VERIFY_S, Controller
from hypothesis import given, settings
from hypothesis import strategies as st

TABLE = (306000000, 408000000, 510000000, 612000000, 714000000, 816000000, 918000000, 1020000000)
PATH = "/node"
HOLD_S = 1.0


class Killed(BaseException):
    """SIGKILL at this very point: nothing of ours may run on."""


class Kernel(Sysfs):
    """One GPU node with the kernel's own rules for its limits, CPU clusters, and a fuse for each write of ours."""

    def __init__(self) -> None:
        self.min_raw, self.max_raw = TABLE[0], TABLE[-1]
        self.cpus_are_pinned = False
        self.fuse: float | None = None  # writes until the kill; a half: after the write took effect

    def mortal(self, write: Callable[[], None]) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse == -1.0:
                raise Killed
        write()
        if self.fuse == -0.5:
            raise Killed

    def effective(self, min_hz: int) -> int:
        return min(max(min_hz, TABLE[0]), self.max_raw)

    def gpu_nodes(self) -> list[Node]:
        return [self.read_node(PATH)]

    def read_node(self, path: str, name: str | None = None, of_node_name: str | None = None) -> Node:
        minimum = self.effective(self.min_raw)
        return Node("gpu", PATH, "gpu", TABLE, minimum, self.max_raw, minimum, "nvhost_podgov", 0)

    def min_hz(self, path: str) -> int:
        return self.effective(self.min_raw)

    def write_min(self, path: str, value_hz: int) -> int:
        self.mortal(lambda: setattr(self, "min_raw", value_hz))
        return self.min_hz(path)

    def at(self, path: str) -> str:
        raise AssertionError(f"{path} is read behind the back of this kernel")


class Paper(Journal):
    """A journal that outlives its writer, as a file does."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__("/nowhere", "boot-1")
        self._kernel = kernel
        self._entries: list[Entry] = []

    def load(self) -> list[Entry]:
        return list(self._entries)

    def save(self, entries: list[Entry]) -> None:
        self._kernel.mortal(lambda: setattr(self, "_entries", list(entries)))

    def clear(self) -> None:
        self._kernel.mortal(lambda: setattr(self, "_entries", []))


class World:
    """The service as its loop drives it, and the others who use the same clock."""

    def __init__(self, floor_hz: int) -> None:
        self.floor_hz = floor_hz
        self.kernel = Kernel()
        self.journal = Paper(self.kernel)
        self.others_hz = TABLE[0]
        self.now = 100.0
        self._begin()

    def _begin(self) -> None:
        self.activity = Activity(HOLD_S)
        self.controller = Controller(self.kernel, self.journal, self.floor_hz, lambda line: None)
        self.controller.start()

    def serve(self, event: Callable[[float], object] | None, lag_s: float, pid: int = 0) -> None:
        """One round of the loop: an event that happened a moment ago, the floor looked after, the hold."""
        try:
            if event is not None:
                event(self.now - lag_s)
            if pid and self.activity.in_flight:
                self.controller.call(pid, self.now)
            if self.activity.in_flight:
                self.controller.call(self.activity.calls[0].pid, self.now)
            if self.activity.tick(self.now) is Action.RELEASE:
                self.controller.release(self.now)
        except Killed:
            self.killed()

    def killed(self) -> None:
        """Then systemd runs ExecStopPost, and starts the service again."""
        self.kernel.fuse = None
        baseline.restore(self.kernel, self.journal)
        assert self.journal.load() == []
        assert self.kernel.min_hz(PATH) == self.kernel.effective(self.others_hz), "after a kill"
        self._begin()

    def others(self, min_hz: int, max_hz: int, cpus_pinned: bool) -> None:
        self.kernel.max_raw = max_hz
        self.kernel.min_raw = self.others_hz = min_hz
        self.kernel.cpus_are_pinned = cpus_pinned

    def check(self) -> None:
        wanted = self.kernel.effective(self.others_hz)
        if not self.controller.raised:
            assert self.journal.load() == []
            assert self.kernel.min_hz(PATH) == wanted, "the floor is down"
        assert self.controller.raised <= self.activity.active, "up with nothing to be up for"

    def check_held(self) -> None:
        """A call is in flight and the service has just looked: the floor is up, unless others have a say."""
        floor = min(next(hz for hz in TABLE if hz >= (self.floor_hz or TABLE[-1])), self.kernel.max_raw)
        if self.kernel.effective(self.others_hz) < floor and "keeps writing" not in self.controller.degraded:
            assert self.kernel.min_hz(PATH) == floor, self.controller.degraded


class Step(NamedTuple):
    kind: str
    call: Call
    after_s: float
    lag_s: float  # how late the event is seen; CPUs deliver out of order
    clock: tuple[int, int]
    fuse: float


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(
            ["begin"] * 6 + ["end"] * 4 + ["poll"] * 4 + ["fuse"] * 3 + ["exit", "mode"] * 2 + ["lost", "jetson_clocks"]
        ),
        st.builds(Call, st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.just("llama_decode")),
        # A machine that was suspended sees hours go by between two events.
        st.one_of(st.floats(0.0, 3.0), st.just(7200.0)),
        st.floats(0.0, 0.3),
        st.sampled_from([(0, 612000000), (306000000, 918000000), (306000000, TABLE[-1]), (408000000, TABLE[-1])]),
        st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]),
    ),
    min_size=8,
    max_size=40,
)


def play(world: World, step: Step) -> None:
    world.now += step.after_s
    pid = step.call.pid
    if step.kind == "begin":
        world.serve(lambda when: world.activity.begin(step.call, when), step.lag_s, pid)
    elif step.kind == "end":
        world.serve(lambda when: world.activity.end(step.call, when), step.lag_s)
    elif step.kind == "exit":
        world.serve(lambda when: world.activity.process_gone(pid, when), 0.0)
    elif step.kind == "lost":
        world.serve(world.activity.lost, 0.0)
    elif step.kind == "mode":
        world.others(*step.clock, cpus_pinned=False)
    elif step.kind == "jetson_clocks":
        world.others(world.kernel.max_raw, world.kernel.max_raw, cpus_pinned=True)
    elif step.kind == "fuse":
        world.kernel.fuse = step.fuse
    else:
        world.now += VERIFY_S + 0.01
        world.serve(None, 0.0)
        if world.activity.in_flight:
            world.check_held()


@settings(max_examples=600, deadline=None)
@given(steps=STEPS, floor_hz=st.sampled_from([0, 612000000]))
def test_what_others_want_is_there_whenever_the_floor_is_down(steps: list[Step], floor_hz: int) -> None:
    # Patched by hand, as hypothesis runs all examples within one call of a test.
    real = baseline.cpus_pinned

    def pinned(sysfs: Kernel) -> bool:
        return sysfs.cpus_are_pinned

    baseline.cpus_pinned = controller.cpus_pinned = pinned
    try:
        world = World(floor_hz)
        for step in steps:
            play(world, step)
            world.check()
        # At the very end everybody dies, and the hold passes.
        world.kernel.fuse = None
        for pid in (1, 2):
            world.serve(lambda when, pid=pid: world.activity.process_gone(pid, when), 0.0)
        world.now += HOLD_S + 1.0
        world.serve(None, 0.0)
        assert not world.controller.raised
        world.check()
    finally:
        baseline.cpus_pinned = controller.cpus_pinned = real
