# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of perf_event_open(2) that uprobes need: the attribute structure, the call, and a ring of records.

To a traced program a record is cheap, and waking its reader is not: the kernel sends itself an interrupt for it, which
was three quarters of a traced call's whole cost (docs/clock-floor.md). So records wake nobody here. What wakes is a
bell: events of their own, in a group that the ring's owner leads, so that one ioctl a CPU switches them on or off.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
from typing import NamedTuple

_SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "armv7l": 364, "i686": 336}
_TYPE_SOFTWARE, _COUNT_DUMMY = 1, 9
_SAMPLE_TID, _SAMPLE_TIME, _SAMPLE_IDENTIFIER = 1 << 1, 1 << 2, 1 << 16
_DISABLED, _USE_CLOCKID = 1 << 0, 1 << 25
_CLOCK_MONOTONIC = 1
_NOBODY = -1
_FLAG_CLOEXEC = 1 << 3
_IOC_ENABLE, _IOC_DISABLE, _IOC_SET_OUTPUT = 0x2400, 0x2401, 0x2405
_IOC_ID = 0x80082407 if struct.calcsize("P") == 8 else 0x80042407
_RECORD_LOST, _RECORD_SAMPLE = 2, 9
_HEAD, _TAIL = 1024, 1032  # data_head and data_tail in struct perf_event_mmap_page
_RING_PAGES = 16  # 64 KiB: two thousand records a CPU between two looks


class ProbeError(Exception):
    """Why a probe could not be opened, with the remedy where there is one."""


class Attr(ctypes.Structure):
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


def load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def perf_event_open(libc: ctypes.CDLL, attr: Attr, cpu: int, leader: int = _NOBODY) -> int:
    """A descriptor for every process on one CPU. Records carry identity, pid, tid and time. Raises ProbeError."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise ProbeError(f"perf_event_open is not known for the machine type {platform.machine()}")
    attr.size = ctypes.sizeof(Attr)
    attr.sample_type = _SAMPLE_IDENTIFIER | _SAMPLE_TID | _SAMPLE_TIME
    # The clock of time.monotonic(). A group is refused unless all of it has one clock.
    attr.flags |= _USE_CLOCKID
    attr.clockid = _CLOCK_MONOTONIC
    descriptor = libc.syscall(
        ctypes.c_long(number),
        ctypes.byref(attr),
        ctypes.c_long(_NOBODY),
        ctypes.c_long(cpu),
        ctypes.c_long(leader),
        ctypes.c_ulong(_FLAG_CLOEXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        hint = " (CAP_PERFMON is needed, CAP_SYS_ADMIN before Linux 5.8)" if code in (1, 13) else ""
        raise ProbeError(f"perf_event_open on CPU {cpu}: {os.strerror(code)}{hint}")
    return int(descriptor)


class Record(NamedTuple):
    identity: int  # which event; Ring.take said it
    pid: int
    tid: int
    when_ns: int  # CLOCK_MONOTONIC


class Ring:
    """The records of all events of one CPU. Its descriptor is readable after the bell, or when it is half full."""

    def __init__(self, libc: ctypes.CDLL, cpu: int) -> None:
        self._libc = libc
        self._cpu = cpu
        attr = Attr(type=_TYPE_SOFTWARE, config=_COUNT_DUMMY, flags=_DISABLED)
        self.fd = perf_event_open(libc, attr, cpu)
        try:
            self._map = mmap.mmap(self.fd, (1 + _RING_PAGES) * mmap.PAGESIZE)
        except OSError as error:
            os.close(self.fd)
            raise ProbeError(f"no memory for the event ring of CPU {cpu}: {error}") from error
        self._size = _RING_PAGES * mmap.PAGESIZE

    def take(self, attr: Attr, bell: bool = False) -> tuple[int, int]:
        """Open an event whose records come here: its descriptor, which the caller closes, and its identity.

        A bell needs a `wakeup_events` and counts for nothing while the bells are off.
        """
        descriptor = perf_event_open(self._libc, attr, self._cpu, self.fd if bell else _NOBODY)
        try:
            fcntl.ioctl(descriptor, _IOC_SET_OUTPUT, self.fd)
            (identity,) = struct.unpack("=Q", fcntl.ioctl(descriptor, _IOC_ID, bytes(8)))
        except OSError as error:
            os.close(descriptor)
            raise ProbeError(f"an event of CPU {self._cpu} cannot be directed to its ring: {error}") from error
        return descriptor, identity

    def arm(self, on: bool) -> None:
        """Switch this CPU's bells."""
        fcntl.ioctl(self.fd, _IOC_ENABLE if on else _IOC_DISABLE, 0)

    def drain(self) -> tuple[list[Record], int]:
        """Samples since the last look, and how many records the kernel had to drop."""
        # Native format: one load of eight bytes. The standard formats go byte by byte, and the kernel writes meanwhile.
        (head,) = struct.unpack_from("Q", self._map, _HEAD)
        (tail,) = struct.unpack_from("Q", self._map, _TAIL)
        records, lost = [], 0
        while tail < head:
            kind, _misc, size = struct.unpack("=IHH", self._bytes(tail, 8))
            if size < 8:
                break
            body = self._bytes(tail + 8, size - 8)
            if kind == _RECORD_SAMPLE:
                records.append(Record._make(struct.unpack_from("=QiiQ", body)))
            elif kind == _RECORD_LOST:
                lost += struct.unpack_from("=Q", body, 8)[0]
            tail += size
        struct.pack_into("Q", self._map, _TAIL, head)
        return records, lost

    def _bytes(self, at: int, count: int) -> bytes:
        start = at % self._size
        first = mmap.PAGESIZE + start
        direct = min(count, self._size - start)
        data = self._map[first : first + direct]
        return data if direct == count else data + self._map[mmap.PAGESIZE : mmap.PAGESIZE + count - direct]

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)
