# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes count, and which have died.

The answer for a process is kept under its pid and start time and behind a pidfd: a pid that is used again is another
process, and a death is news (the descriptor becomes readable) and not something to be polled for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from .cmdline import argv_places_experts, environment_places_experts
from .config import Config


@dataclass
class _Known:
    start_time: str
    counts: bool
    judged_at: float
    pidfd: int | None


class Processes:
    def __init__(self, config: Config, proc: str = "/proc") -> None:
        self._config = config
        self._proc = proc
        self._known: dict[int, _Known] = {}

    @property
    def pidfds(self) -> dict[int, int]:
        """pidfd -> pid of every process that is known."""
        return {known.pidfd: pid for pid, known in self._known.items() if known.pidfd is not None}

    def counts(self, pid: int, now: float) -> bool:
        """A no is asked again after `rescan_s`: the process may have been replaced by exec."""
        known = self._known.get(pid)
        if known is not None and (known.counts or now - known.judged_at < self._config.rescan_s):
            return known.counts
        start_time = self._start_time(pid)
        if start_time is None:
            return False
        counts = self._judge(pid)
        if known is not None and known.start_time == start_time:
            known.counts, known.judged_at = counts, now
        else:
            self.forget(pid)
            self._known[pid] = _Known(start_time, counts, now, self._pidfd(pid))
        return counts

    def known_to_count(self, pid: int) -> bool:
        known = self._known.get(pid)
        return known is not None and known.counts

    def forget(self, pid: int) -> None:
        known = self._known.pop(pid, None)
        if known is not None and known.pidfd is not None:
            os.close(known.pidfd)

    def reap(self) -> list[int]:
        """Processes that are gone, also where there was no pidfd to say so. They are forgotten."""
        gone = [pid for pid, known in self._known.items() if self._start_time(pid) != known.start_time]
        for pid in gone:
            self.forget(pid)
        return gone

    def thread_lives(self, pid: int, tid: int) -> bool:
        return os.path.exists(f"{self._proc}/{pid}/task/{tid}")

    def close(self) -> None:
        for pid in list(self._known):
            self.forget(pid)

    def _judge(self, pid: int) -> bool:
        argv = self._words(pid, "cmdline")
        if argv_places_experts(argv, self._config):
            return True
        pairs = [word.partition("=") for word in self._words(pid, "environ")]
        return environment_places_experts({name: value for name, _equals, value in pairs}, self._config)

    def _words(self, pid: int, name: str) -> list[str]:
        """NUL-separated words; empty where the kernel does not let us look (environ needs CAP_SYS_PTRACE)."""
        try:
            with open(f"{self._proc}/{pid}/{name}", "rb") as handle:
                return handle.read().decode("utf-8", errors="replace").rstrip("\0").split("\0")
        except OSError:
            return []

    def _start_time(self, pid: int) -> str | None:
        """Field 22 of stat. The name before it may hold blanks and brackets. A zombie computes nothing: None."""
        try:
            with open(f"{self._proc}/{pid}/stat", "rb") as handle:
                rest = handle.read().rpartition(b")")[2].split()
        except OSError:
            return None
        return None if len(rest) < 20 or rest[0] in (b"Z", b"X") else rest[19].decode()

    @staticmethod
    def _pidfd(pid: int) -> int | None:
        try:
            return os.pidfd_open(pid)
        except OSError:
            return None
