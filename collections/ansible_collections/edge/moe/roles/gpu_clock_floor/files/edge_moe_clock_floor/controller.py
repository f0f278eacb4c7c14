# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done to the clock, and in which order: save, write, read back, record; later compare, restore, clear.

Only `min_freq` of GPU nodes is ever written. Nothing here knows why the floor should be up (activity.py does) and
nothing raises: a node that is gone, pinned or refuses a write is a reason in `degraded`, said once in the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from . import baseline
from ._devfreq import Applied, Node, Sysfs, choose_floor, same_hz
from .cpu_clocks import cpus_pinned

Log = Callable[[str], None]

VERIFY_S = 0.2  # how often at most a call in progress makes us read the floor back
FIGHT_COUNT, FIGHT_WINDOW_S, BACK_OFF_S = 5, 10.0, 60.0


def mhz(value_hz: int | None) -> str:
    return "unknown" if value_hz is None else f"{value_hz / 1e6:g} MHz"


class Controller:
    def __init__(self, sysfs: Sysfs, journal: baseline.Journal, floor_hz: int, log: Log) -> None:
        self._sysfs = sysfs
        self._journal = journal
        self._floor_hz = floor_hz
        self._log = log
        self._entries: list[baseline.Entry] = []
        self._verified_at = 0.0
        self._raised_at: float | None = None
        self._raised_before_s = 0.0
        self._wipes: deque[float] = deque()
        self._back_off_until = 0.0
        self.nodes: list[Node] = []
        self.applied: Applied | None = None
        self.baseline_hz: int | None = None
        self.transitions = 0
        self.write_errors = 0
        self.degraded = ""

    @property
    def raised(self) -> bool:
        return self._raised_at is not None

    def raised_seconds(self, now: float) -> float:
        return self._raised_before_s + (now - self._raised_at if self._raised_at is not None else 0.0)

    def effective_hz(self) -> int | None:
        """min_freq of the first node as it is now."""
        return self._sysfs.min_hz(self.nodes[0].path) if self.nodes else None

    def start(self) -> None:
        """Give back what a predecessor left up, then look for the node."""
        self._restore_owed("left by an earlier run")
        self.look()

    def look(self) -> None:
        """Find the GPU nodes again (they may come and go with their driver), and pay what is still owed."""
        if not self.raised and self._journal.load():
            self._restore_owed("second attempt")
        self.nodes = self._sysfs.gpu_nodes()
        if not self.nodes:
            self._degrade(f"no GPU devfreq node ({self._sysfs.seen()})")
        elif self.raised:
            # What was said about pinning or a fight stays until the floor is judged again.
            pass
        elif any(node.pinned for node in self.nodes):
            self._stand_down(self.nodes)
        elif not self._journal.load():
            self._degrade("")
            self.baseline_hz = self.nodes[0].min_hz

    def call(self, pid: int, now: float) -> None:
        """A call of a counted process is in progress: the floor belongs up."""
        if now - self._verified_at < VERIFY_S and self._verified_at > 0.0:
            return
        self._verified_at = now
        if now < self._back_off_until:
            return
        if not self.raised:
            self._raise(pid, now)
        elif not self._holds():
            self._wiped(pid, now)

    def release(self, now: float) -> None:
        """No call for the whole hold time, or we are stopping."""
        self._verified_at = 0.0
        if not self.raised:
            return
        self._raised_before_s = self.raised_seconds(now)
        self._raised_at = None
        self._entries = []
        self.transitions += 1
        self._restore_owed("idle")
        self.applied = None

    def _raise(self, pid: int, now: float) -> None:
        nodes = self._sysfs.gpu_nodes()
        self.nodes = nodes
        if not nodes:
            self.look()
            return
        owed = {entry.path: entry.original_hz for entry in self._journal.load()}
        if any(node.pinned and node.path not in owed for node in nodes):
            self._stand_down(nodes)
            return
        entries = []
        pinned = cpus_pinned(self._sysfs)
        for node in nodes:
            target = choose_floor(node, self._floor_hz)
            if target is None or node.min_hz is None:
                self._degrade(f"{node.name} does not say its frequencies")
                return
            # A restore that failed left its journal: that is the baseline then, not what is read now.
            original_hz = owed.get(node.path, node.min_hz)
            if original_hz < target and not same_hz(original_hz, target):
                entries.append(baseline.Entry(node.path, original_hz, target, cpus_pinned=pinned))
        if not entries:
            self._degrade(f"min_freq is already {mhz(nodes[0].min_hz)}, nothing to raise")
            return
        if self._write(entries):
            self._raised_at = now
            self.transitions += 1
            self._degrade("")
            self._log(f"floor {mhz(self._entries[0].ours_hz)} (pid {pid} inference)")

    def _write(self, entries: list[baseline.Entry]) -> bool:
        """The order of the restore protocol. What a failure leaves behind is in the journal."""
        try:
            self._journal.save(entries)
            written = [entry._replace(ours_hz=self._sysfs.write_min(entry.path, entry.applied_hz)) for entry in entries]
            self._journal.save(written)
        except OSError as error:
            self.write_errors += 1
            self._degrade(f"cannot write the floor: {error}")
            self._restore_owed("after a failed write")
            return False
        self._entries = written
        first = written[0]
        self.baseline_hz = first.original_hz
        self.applied = Applied(self._floor_hz or first.applied_hz, first.applied_hz, first.ours_hz or 0)
        if not same_hz(first.applied_hz, first.ours_hz):
            self._log(f"asked for {mhz(first.applied_hz)}, the kernel made it {mhz(first.ours_hz)}")
        return True

    def _holds(self) -> bool:
        for entry in self._entries:
            node = self._sysfs.read_node(entry.path)
            if node.min_hz is None or not baseline.still_ours(entry, node.min_hz, node.max_hz):
                return False
        return True

    def _wiped(self, pid: int, now: float) -> None:
        """Our floor is not there any more: a power-mode switch, a driver reload, or another writer."""
        nodes = {node.path: node for node in self._sysfs.gpu_nodes()}
        entries = []
        for entry in self._entries:
            node = nodes.get(entry.path)
            target = choose_floor(node, self._floor_hz) if node is not None else None
            if node is None or node.min_hz is None or target is None:
                continue
            if node.min_hz >= target:
                self._give_up(now)
                if node.pinned:
                    self._stand_down([node])
                else:
                    self._degrade(f"somebody else set min_freq to {mhz(node.min_hz)}, above our floor: standing down")
                return
            # What is there now was set by somebody after us, so it is what they want to find again.
            entries.append(entry._replace(original_hz=node.min_hz, applied_hz=target, ours_hz=None))
        while self._wipes and now - self._wipes[0] > FIGHT_WINDOW_S:
            self._wipes.popleft()
        self._wipes.append(now)
        if not entries:
            self._give_up(now)
            self.look()
        elif len(self._wipes) >= FIGHT_COUNT:
            self._wipes.clear()
            self._back_off_until = now + BACK_OFF_S
            self._give_up(now)
            self._degrade(f"something else keeps writing min_freq; leaving it alone for {BACK_OFF_S:g} s")
        else:
            found = nodes[entries[0].path].min_hz
            if self._write(entries):
                self._log(f"floor {mhz(self._entries[0].ours_hz)} again (pid {pid}): it had been set to {mhz(found)}")
            else:
                self._give_up(now)

    def _give_up(self, now: float) -> None:
        """Stop holding without writing: what is there is not ours."""
        self._raised_before_s = self.raised_seconds(now)
        self._raised_at = None
        self._entries = []
        self.applied = None
        self.transitions += 1
        self._journal_clear()

    def _stand_down(self, nodes: list[Node]) -> None:
        pinned = next(node for node in nodes if node.pinned)
        self.baseline_hz = None
        self._degrade(f"{pinned.name} is pinned at {mhz(pinned.min_hz)}, as after jetson_clocks: standing down")

    def _restore_owed(self, why: str) -> None:
        try:
            for result in baseline.restore(self._sysfs, self._journal):
                if result.note:
                    self._log(f"floor not restored on {result.path}: {result.note}")
                else:
                    self.baseline_hz = result.effective_hz
                    self._log(f"floor {mhz(result.effective_hz)} ({why})")
        except OSError as error:
            self.write_errors += 1
            self._degrade(f"cannot restore the floor: {error}")

    def _journal_clear(self) -> None:
        try:
            self._journal.clear()
        except OSError as error:
            self._degrade(f"cannot remove {self._journal.path}: {error}")

    def _degrade(self, reason: str) -> None:
        if reason != self.degraded:
            self.degraded = reason
            if reason:
                self._log(f"degraded: {reason}")
            else:
                self._log("no longer degraded")
