# SPDX-License-Identifier: GPL-3.0-or-later
"""User-space probes through perf_event_open: no compiler, no BTF, nothing left in the kernel when we die.

One ring buffer a CPU, owned by a dummy event, takes the records of every probe on that CPU: probes come and go with
libraries while the rings (and what the selector watches) stay. A probe is bound to the file that an open descriptor
names, not to a path, so the offsets and the probe always belong to the same file.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
from typing import NamedTuple

from ._devfreq import Sysfs, parse_hz, read_text

PMU = "sys/bus/event_source/devices/uprobe"
ONLINE = "sys/devices/system/cpu/online"

_SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "armv7l": 364, "i686": 336}
_TYPE_SOFTWARE, _COUNT_DUMMY = 1, 9
_SAMPLE_TID, _SAMPLE_TIME, _SAMPLE_IDENTIFIER = 1 << 1, 1 << 2, 1 << 16
_USE_CLOCKID = 1 << 25
_CLOCK_MONOTONIC = 1
_FLAG_CLOEXEC = 1 << 3
_IOC_SET_OUTPUT = 0x2405
_IOC_ID = 0x80082407 if struct.calcsize("P") == 8 else 0x80042407
_RECORD_LOST, _RECORD_SAMPLE = 2, 9
_HEAD, _TAIL = 1024, 1032  # data_head and data_tail in struct perf_event_mmap_page
_RING_PAGES = 16  # 64 KiB: two thousand records a CPU between two looks


class ProbeError(Exception):
    """Why a probe could not be opened, with the remedy where there is one."""


class Event(NamedTuple):
    when: float  # CLOCK_MONOTONIC, which is time.monotonic()
    begins: bool
    function: str
    pid: int
    tid: int
    library: tuple[int, int]  # (st_dev, st_ino)


class _Attr(ctypes.Structure):
    """struct perf_event_attr up to the fields used here (PERF_ATTR_SIZE_VER1 plus what clockid needs, VER5)."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
        ("config2", ctypes.c_uint64),
        ("branch_sample_type", ctypes.c_uint64),
        ("sample_regs_user", ctypes.c_uint64),
        ("sample_stack_user", ctypes.c_uint32),
        ("clockid", ctypes.c_int32),
        ("sample_regs_intr", ctypes.c_uint64),
        ("aux_watermark", ctypes.c_uint32),
        ("sample_max_stack", ctypes.c_uint16),
        ("reserved", ctypes.c_uint16),
    ]


def parse_cpus(text: str | None) -> tuple[int, ...]:
    """ "0-3,5" -> (0, 1, 2, 3, 5)"""
    cpus: list[int] = []
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first.strip().isdigit():
            cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def online_cpus() -> tuple[int, ...]:
    return parse_cpus(read_text("/" + ONLINE)) or tuple(range(os.cpu_count() or 1))


def pmu_type(sysfs: Sysfs) -> int | None:
    """The kernel's number for uprobe events; None where it has none."""
    return parse_hz(sysfs.text(f"{PMU}/type"))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _perf_event_open(libc: ctypes.CDLL, attr: _Attr, cpu: int) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise ProbeError(f"perf_event_open is not known for the machine type {platform.machine()}")
    attr.size = ctypes.sizeof(_Attr)
    descriptor = libc.syscall(
        ctypes.c_long(number),
        ctypes.byref(attr),
        ctypes.c_long(-1),
        ctypes.c_long(cpu),
        ctypes.c_long(-1),
        ctypes.c_ulong(_FLAG_CLOEXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        hint = " (CAP_PERFMON is needed, CAP_SYS_ADMIN before Linux 5.8)" if code in (1, 13) else ""
        raise ProbeError(f"perf_event_open on CPU {cpu}: {os.strerror(code)}{hint}")
    return int(descriptor)


class _Ring:
    def __init__(self, libc: ctypes.CDLL, cpu: int) -> None:
        attr = _Attr(
            type=_TYPE_SOFTWARE,
            config=_COUNT_DUMMY,
            sample_type=_SAMPLE_IDENTIFIER | _SAMPLE_TID | _SAMPLE_TIME,
            flags=_USE_CLOCKID,
            clockid=_CLOCK_MONOTONIC,
            wakeup_events=1,
        )
        self.fd = _perf_event_open(libc, attr, cpu)
        try:
            self._map = mmap.mmap(self.fd, (1 + _RING_PAGES) * mmap.PAGESIZE)
        except OSError as error:
            os.close(self.fd)
            raise ProbeError(f"no memory for the event ring of CPU {cpu}: {error}") from error
        self._size = _RING_PAGES * mmap.PAGESIZE

    def drain(self) -> tuple[list[bytes], int]:
        """Bodies of the samples since the last look, and how many records the kernel had to drop."""
        (head,) = struct.unpack_from("=Q", self._map, _HEAD)
        (tail,) = struct.unpack_from("=Q", self._map, _TAIL)
        bodies, lost = [], 0
        while tail < head:
            kind, _, size = struct.unpack("=IHH", self._bytes(tail, 8))
            if size < 8:
                break
            body = self._bytes(tail + 8, size - 8)
            if kind == _RECORD_SAMPLE:
                bodies.append(body)
            elif kind == _RECORD_LOST:
                lost += struct.unpack_from("=Q", body, 8)[0]
            tail += size
        struct.pack_into("=Q", self._map, _TAIL, head)
        return bodies, lost

    def _bytes(self, at: int, count: int) -> bytes:
        start = at % self._size
        first = mmap.PAGESIZE + start
        direct = min(count, self._size - start)
        data = self._map[first : first + direct]
        return data if direct == count else data + self._map[mmap.PAGESIZE : mmap.PAGESIZE + count - direct]

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


class Probes:
    """All rings and probes. `attach` and `detach` go by library; `drain` gives what happened, in order of time."""

    def __init__(self, sysfs: Sysfs) -> None:
        kind = pmu_type(sysfs)
        if kind is None:
            raise ProbeError(f"this kernel has no uprobe events: /{PMU}/type is missing (CONFIG_UPROBE_EVENTS)")
        self._type = kind
        self._libc = _libc()
        self.cpus = online_cpus()
        self._rings: list[_Ring] = []
        self._ids: dict[int, tuple[str, bool, tuple[int, int]]] = {}
        self._fds: dict[tuple[int, int], list[tuple[int, int]]] = {}
        try:
            for cpu in self.cpus:
                self._rings.append(_Ring(self._libc, cpu))
        except ProbeError:
            self.close()
            raise

    @property
    def fds(self) -> list[int]:
        """Readable when a call has begun. An end alone wakes nobody."""
        return [ring.fd for ring in self._rings]

    @property
    def attached(self) -> int:
        """Probes (function entries and returns), not counted again for each CPU."""
        return len({self._ids[identity] for probes in self._fds.values() for _, identity in probes})

    def attach(self, library: tuple[int, int], file: int, offsets: dict[str, int]) -> None:
        """Probe entry and return of each function in the open `file`. All or nothing."""
        opened: list[tuple[int, int]] = []
        self._fds[library] = opened
        try:
            for function, offset in offsets.items():
                for begins in (True, False):
                    for cpu, ring in zip(self.cpus, self._rings, strict=True):
                        opened.append(self._open(library, file, function, offset, begins, cpu, ring))
        except (ProbeError, OSError) as error:
            self.detach(library)
            raise ProbeError(str(error)) from error

    def _open(
        self, library: tuple[int, int], file: int, function: str, offset: int, begins: bool, cpu: int, ring: _Ring
    ) -> tuple[int, int]:
        path = ctypes.create_string_buffer(f"/proc/self/fd/{file}".encode())
        attr = _Attr(
            type=self._type,
            config=0 if begins else 1,
            sample_period=1,
            sample_type=_SAMPLE_IDENTIFIER | _SAMPLE_TID | _SAMPLE_TIME,
            flags=_USE_CLOCKID,
            clockid=_CLOCK_MONOTONIC,
            # Waking us costs the traced thread more than the record does. Only a beginning is urgent; who looks after
            # the end of a call looks at the ring by itself (see loop.py).
            wakeup_events=1 if begins else 0,
            config1=ctypes.addressof(path),
            config2=offset,
        )
        descriptor = _perf_event_open(self._libc, attr, cpu)
        try:
            fcntl.ioctl(descriptor, _IOC_SET_OUTPUT, ring.fd)
            (identity,) = struct.unpack("=Q", fcntl.ioctl(descriptor, _IOC_ID, bytes(8)))
        except OSError:
            os.close(descriptor)
            raise
        self._ids[identity] = (function, begins, library)
        return descriptor, identity

    def detach(self, library: tuple[int, int]) -> None:
        for descriptor, identity in self._fds.pop(library, []):
            os.close(descriptor)
            self._ids.pop(identity, None)

    def drain(self) -> tuple[list[Event], int]:
        events, lost = [], 0
        for ring in self._rings:
            bodies, dropped = ring.drain()
            lost += dropped
            for body in bodies:
                identity, pid, tid, when = struct.unpack_from("=QiiQ", body)
                known = self._ids.get(identity)
                # Records of a probe closed a moment ago, or of a process outside our pid namespace.
                if known is not None and pid > 0:
                    events.append(Event(when / 1e9, known[1], known[0], pid, tid, known[2]))
        events.sort()
        return events, lost

    def close(self) -> None:
        for library in list(self._fds):
            self.detach(library)
        for ring in self._rings:
            ring.close()
        self._rings.clear()
