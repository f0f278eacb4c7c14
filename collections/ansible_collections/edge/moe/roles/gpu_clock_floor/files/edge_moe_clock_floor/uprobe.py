# SPDX-License-Identifier: GPL-3.0-or-later
"""User-space probes through perf_event_open: no compiler, no BTF, nothing left in the kernel when we die.

One ring buffer a CPU, owned by a dummy event, takes the records of every probe on that CPU: probes come and go with
libraries while the rings (and what the selector watches) stay. A probe is bound to the file that an open descriptor
names, not to a path, so the offsets and the probe always belong to the same file.

Each function has three events on each CPU: its entries, its returns, and a bell on its entry (see perf.py). The bells
are armed while a first call is waited for; entries and returns are recorded always.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import NamedTuple

from ._devfreq import Sysfs, parse_hz, read_text
from .perf import Attr, ProbeError, Ring, load_libc

PMU = "sys/bus/event_source/devices/uprobe"
ONLINE = "sys/devices/system/cpu/online"


class Event(NamedTuple):
    when: float  # CLOCK_MONOTONIC, which is time.monotonic()
    begins: bool
    function: str
    pid: int
    tid: int
    library: tuple[int, int]  # (st_dev, st_ino)


def parse_cpus(text: str | None) -> tuple[int, ...]:
    """ "0-3,5" -> (0, 1, 2, 3, 5)"""
    cpus: list[int] = []
    for part in (text or "").split(","):
        first, _dash, last = part.partition("-")
        if first.strip().isdigit():
            cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def online_cpus() -> tuple[int, ...]:
    return parse_cpus(read_text("/" + ONLINE)) or tuple(range(os.cpu_count() or 1))


def pmu_type(sysfs: Sysfs) -> int | None:
    """The kernel's number for uprobe events; None where it has none."""
    return parse_hz(sysfs.text(f"{PMU}/type"))


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class Probes:
    """All rings and probes. `attach` and `detach` go by library; `drain` gives what happened, in order of time."""

    def __init__(self, sysfs: Sysfs) -> None:
        kind = pmu_type(sysfs)
        if kind is None:
            raise ProbeError(f"this kernel has no uprobe events: /{PMU}/type is missing (CONFIG_UPROBE_EVENTS)")
        self._type = kind
        self.cpus = online_cpus()
        self._rings: list[Ring] = []
        self._ids: dict[int, tuple[str, bool, tuple[int, int]]] = {}
        self._fds: dict[tuple[int, int], list[int]] = {}
        self._armed = False
        libc = load_libc()
        try:
            for cpu in self.cpus:
                self._rings.append(Ring(libc, cpu))
        except ProbeError:
            self.close()
            raise

    @property
    def fds(self) -> list[int]:
        """Readable when a call has begun while armed, or when records are about to be lost."""
        return [ring.fd for ring in self._rings]

    @property
    def attached(self) -> int:
        """Probes (function entries and returns), not counted again for each CPU."""
        return len(set(self._ids.values()))

    def arm(self, on: bool) -> bool:
        """Whether a beginning wakes us: it costs the traced thread more than the record does (see perf.py).

        True if that is a change. A call that began before has rung for nobody, so drain once more after arming.
        """
        if on == self._armed:
            return False
        self._armed = on
        for ring in self._rings:
            ring.arm(on)
        return True

    def attach(self, library: tuple[int, int], file: int, offsets: dict[str, int]) -> None:
        """Probe entry and return of each function in the open `file`. All or nothing; raises ProbeError."""
        self._fds[library] = []
        try:
            for function, offset in offsets.items():
                for ring in self._rings:
                    self._open(library, file, function, offset, ring)
        except ProbeError:
            self.detach(library)
            raise

    def _open(self, library: tuple[int, int], file: int, function: str, offset: int, ring: Ring) -> None:
        path = ctypes.create_string_buffer(f"/proc/self/fd/{file}".encode())
        for returns, wakeup_events in ((False, 0), (True, 0), (False, 1)):
            attr = Attr(
                type=self._type,
                config=int(returns),
                sample_period=1,
                wakeup_events=wakeup_events,
                config1=ctypes.addressof(path),
                config2=offset,
            )
            bell = bool(wakeup_events)
            descriptor, identity = ring.take(attr, bell)
            self._fds[library].append(descriptor)
            if not bell:
                self._ids[identity] = (function, not returns, library)

    def detach(self, library: tuple[int, int]) -> None:
        """From here on none of its calls is seen. The kernel takes the probes out by and by."""
        # Closing one waits for a grace period of the kernel (tens of milliseconds), and there are dozens.
        threading.Thread(target=_close_all, args=(self._fds.pop(library, []),), daemon=True).start()
        self._ids = {identity: known for identity, known in self._ids.items() if known[2] != library}

    def drain(self) -> tuple[list[Event], int]:
        """What happened since the last look in order of time, and how many records were lost."""
        events, lost = [], 0
        for ring in self._rings:
            records, dropped = ring.drain()
            lost += dropped
            for record in records:
                known = self._ids.get(record.identity)
                # Not a bell, a probe closed a moment ago, or a process outside our pid namespace.
                if known is not None and record.pid > 0:
                    function, begins, library = known
                    events.append(Event(record.when_ns / 1e9, begins, function, record.pid, record.tid, library))
        events.sort()
        return events, lost

    def close(self) -> None:
        for library in list(self._fds):
            self.detach(library)
        for ring in self._rings:
            ring.close()
        self._rings.clear()
