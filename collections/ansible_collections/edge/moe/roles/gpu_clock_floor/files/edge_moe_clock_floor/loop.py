# SPDX-License-Identifier: GPL-3.0-or-later
"""The one loop: probe events, deaths, signals and timers in; calls to activity and controller out.

While the floor is down, the bells are armed and the first call wakes us. While it is up nothing is urgent: the bells,
which are most of what a call costs its caller, are off, and the records are looked at every POLL_S. A server that makes
a thousand calls a second costs us no more than one that makes one. Records carry their own time, so the hold is
measured from the true end of the last call.

Calls of a process that does not count must not wake us each time either. After one the bells stay off for DENSE_S, and
for as long as such calls go on; a process that counts and begins in between is answered that much later.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Callable
from typing import Protocol

from . import metrics
from .activity import Action, Activity, Call
from .config import Config
from .controller import Controller, mhz
from .libraries import Identity, Libraries
from .notify import Notifier
from .perf import ProbeError
from .processes import Processes
from .uprobe import Event, online_cpus

POLL_S = 0.25
DENSE_S = 0.02
METRICS_S = 1.0


class Source(Protocol):
    """Where events come from: uprobe.Probes, or a fake in a test."""

    cpus: tuple[int, ...]

    @property
    def fds(self) -> list[int]: ...

    @property
    def attached(self) -> int: ...

    def attach(self, library: Identity, file: int, offsets: dict[str, int]) -> None: ...

    def detach(self, library: Identity) -> None: ...

    def arm(self, on: bool) -> bool: ...

    def drain(self) -> tuple[list[Event], int]: ...

    def close(self) -> None: ...


class Loop:
    def __init__(
        self,
        config: Config,
        controller: Controller,
        open_source: Callable[[], Source],
        notifier: Notifier,
        metrics_path: str,
        log: Callable[[str], None],
    ) -> None:
        self._config = config
        self._controller = controller
        self._open_source = open_source
        self._notifier = notifier
        self._metrics_path = metrics_path
        self._log = log
        self._activity = Activity(config.hold_s)
        self._processes = Processes(config)
        self._libraries = Libraries(config)
        self._source: Source | None = None
        self._source_problem = ""
        self._metrics_problem = ""
        self._selector = selectors.DefaultSelector()
        self._rings: set[int] = set()
        self._deaths: dict[int, int] = {}
        self._deaf_until = 0.0
        self._poll_s = max(0.02, min(POLL_S, config.hold_s / 4))
        self._lost = 0
        self._reaction_s = 0.0
        self._stop = False

    # -- life ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until SIGTERM or SIGINT. The floor is down again when it returns, also if it raises."""
        wake, wakened = socket.socketpair()
        wake.setblocking(False)
        wakened.setblocking(False)
        signal.set_wakeup_fd(wakened.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._selector.register(wake, selectors.EVENT_READ)
        try:
            self._controller.start()
            self._rescan(time.monotonic())
            self._notifier.ready(self._status())
            self._write_metrics(time.monotonic())
            self._loop(wake)
        finally:
            self._notifier.stopping()
            now = time.monotonic()
            self._controller.release(now)
            self._activity = Activity(self._config.hold_s)
            self._write_metrics(now)
            self._processes.close()
            if self._source is not None:
                self._source.close()
            signal.set_wakeup_fd(-1)
            wake.close()
            wakened.close()
            self._selector.close()

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._stop = True

    def _loop(self, wake: socket.socket) -> None:
        now = time.monotonic()
        rescan_at, metrics_at = now + self._config.rescan_s, now + METRICS_S
        beat_s = self._notifier.watchdog_s
        beat_at = now
        told = self._controller.transitions
        while not self._stop:
            self._watch_rings()
            self._set_bells(now)
            due = [rescan_at]
            if self._activity.active:
                due += [now + self._poll_s, metrics_at]
            elif self._deaf_until > now:
                due.append(self._deaf_until)
            if self._activity.deadline is not None:
                due.append(self._activity.deadline)
            if beat_s is not None:
                due.append(beat_at)
            ready = self._selector.select(max(0.0, min(due) - time.monotonic()))
            now = time.monotonic()
            for key, _events in ready:
                if key.fileobj is wake:
                    wake.recv(64)
                elif key.data is not None:
                    self._process_gone(key.data, now)
            self._drain(now)
            if self._activity.tick(now) is Action.RELEASE:
                self._controller.release(now)
            if now >= rescan_at:
                rescan_at = now + self._config.rescan_s
                self._rescan(now)
                metrics_at = now
            if self._controller.transitions != told or (self._activity.active and now >= metrics_at):
                metrics_at = now
            if metrics_at == now:
                told = self._controller.transitions
                metrics_at = now + METRICS_S
                self._write_metrics(now)
                self._notifier.status(self._status())
            if beat_s is not None and now >= beat_at:
                beat_at = now + beat_s
                self._notifier.alive()

    # -- events -------------------------------------------------------------------------------------------------

    def _drain(self, now: float) -> None:
        if self._source is None:
            return
        events, lost = self._source.drain()
        dense = False
        if lost:
            self._lost += lost
            self._activity.lost(now)
        for event in events:
            call = Call(event.pid, event.tid, event.function)
            if not event.begins:
                if self._processes.known_to_count(event.pid):
                    self._activity.end(call, event.when)
            elif self._processes.counts(event.pid, now):
                raised = self._controller.raised
                self._activity.begin(call, event.when)
                self._controller.call(event.pid, now)
                if self._controller.raised and not raised:
                    self._reaction_s = time.monotonic() - event.when
            else:
                dense = True
        if dense:
            self._deaf_until = now + DENSE_S
        if self._activity.in_flight:
            # Long calls (a prefill takes seconds) bring no events, and the floor can be wiped in the middle of one.
            self._controller.call(self._activity.calls[0].pid, now)
        self._watch_deaths()

    def _process_gone(self, pid: int, now: float) -> None:
        # What it did before it died is still in the rings, and comes first.
        self._drain(now)
        self._processes.forget(pid)
        self._watch_deaths()
        self._activity.process_gone(pid, now)

    def _set_bells(self, now: float) -> None:
        if self._source is None:
            return
        wanted = not self._activity.active and now >= self._deaf_until
        if self._source.arm(wanted) and wanted:
            # What began before the bells were on has rung for nobody.
            self._drain(now)

    def _watch_rings(self) -> None:
        wanted = set(self._source.fds) if self._source is not None else set()
        for descriptor in self._rings - wanted:
            self._selector.unregister(descriptor)
        for descriptor in wanted - self._rings:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._rings = wanted

    def _watch_deaths(self) -> None:
        wanted = self._processes.pidfds
        for descriptor in self._deaths.keys() - wanted.keys():
            self._selector.unregister(descriptor)
        for descriptor in wanted.keys() - self._deaths.keys():
            self._selector.register(descriptor, selectors.EVENT_READ, wanted[descriptor])
        self._deaths = wanted

    # -- what does not hurry --------------------------------------------------------------------------------------

    def _rescan(self, now: float) -> None:
        for pid in self._processes.reap():
            self._activity.process_gone(pid, now)
        self._watch_deaths()
        for call in self._activity.calls:
            if not self._processes.thread_lives(call.pid, call.tid):
                self._activity.thread_gone(call.pid, call.tid, now)
        self._controller.look()
        self._keep_source(now)
        if self._source is not None:
            for line in self._libraries.look(self._source, now):
                self._log(line)

    def _keep_source(self, now: float) -> None:
        """Probes sit on the CPUs that were online when they were opened; a power mode may switch cores on or off."""
        if self._source is not None and self._source.cpus != online_cpus():
            self._log("CPUs went on or off line: attaching again")
            self._close_source(self._source, now)
        if self._source is not None:
            return
        try:
            self._source = self._open_source()
            self._source_problem = ""
        except ProbeError as error:
            if self._source_problem != str(error):
                self._source_problem = str(error)
                self._log(f"degraded: {error}")

    def _close_source(self, source: Source, now: float) -> None:
        self._drain(now)
        for descriptor in self._rings:
            self._selector.unregister(descriptor)
        self._rings = set()
        source.close()
        self._source = None
        self._libraries.forget_all()
        self._activity.lost(now)

    # -- what others see ------------------------------------------------------------------------------------------

    def _degraded(self) -> str:
        return self._controller.degraded or self._source_problem or self._libraries.problem

    def _status(self) -> str:
        if self._degraded():
            return f"degraded: {self._degraded()}"
        if self._controller.raised and self._controller.applied is not None:
            return f"floor {mhz(self._controller.applied.effective_hz)} (inference)"
        return f"floor {mhz(self._controller.baseline_hz)} (idle)"

    def _write_metrics(self, now: float) -> None:
        applied = self._controller.applied
        snapshot = metrics.Snapshot(
            raised=self._controller.raised,
            requested_hz=applied.requested_hz if applied else 0,
            applied_hz=applied.applied_hz if applied else 0,
            effective_hz=self._controller.effective_hz() or 0,
            baseline_hz=self._controller.baseline_hz or 0,
            transitions=self._controller.transitions,
            raised_seconds=self._controller.raised_seconds(now),
            in_flight=self._activity.in_flight,
            probes_attached=self._source.attached if self._source is not None else 0,
            write_errors=self._controller.write_errors,
            lost_events=self._lost,
            reaction_seconds=self._reaction_s,
            degraded=self._degraded(),
            updated=time.time(),
        )
        try:
            metrics.write(self._metrics_path, metrics.render(snapshot))
            self._metrics_problem = ""
        except OSError as error:
            # Not worth the clock: said once, and tried again.
            if self._metrics_problem != str(error):
                self._metrics_problem = str(error)
                self._log(f"cannot write {self._metrics_path}: {error}")
