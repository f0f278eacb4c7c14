# SPDX-License-Identifier: GPL-3.0-or-later
"""Libraries that running processes have loaded, whether or not a path still leads there.

A file that was replaced under its server, a release that `current` has left, a container's own copy: the globs do not
find these after a restart of the service. They are found by name in /proc/PID/maps, and opened through that process.
"""

from __future__ import annotations

import fnmatch
import os
from typing import NamedTuple

DELETED = " (deleted)"


class Mapped(NamedTuple):
    path: str  # as the process knows it
    inode: int
    door: str  # leads to that very file, also when it was deleted or lies in a container


def mapped_libraries(pid: int, patterns: tuple[str, ...], proc: str = "/proc") -> list[Mapped]:
    """Executable mappings of files named as the last part of a pattern. Empty if the process is gone or hidden."""
    names = {os.path.basename(pattern) for pattern in patterns}
    found: dict[int, Mapped] = {}
    try:
        with open(f"{proc}/{pid}/maps", encoding="utf-8", errors="replace") as handle:
            for line in handle:
                fields = line.rstrip("\n").split(None, 5)
                if len(fields) < 6 or "x" not in fields[1] or not fields[5].startswith("/"):
                    continue
                path = fields[5].removesuffix(DELETED)
                if not any(fnmatch.fnmatchcase(os.path.basename(path), name) for name in names):
                    continue
                # map_files needs a capability that the root of the process does not.
                inside = f"map_files/{fields[0]}" if path != fields[5] else "root" + path
                found[int(fields[4])] = Mapped(path, int(fields[4]), f"{proc}/{pid}/{inside}")
    except OSError:
        return []
    return list(found.values())


def trusted(state: os.stat_result) -> bool:
    """Only root can write to it. What a user may change under our hands is neither parsed nor probed."""
    return state.st_uid == 0 and not state.st_mode & 0o022


class Running:
    """Which processes are worth a look: new ones, and a share of the others each time (exec keeps the number).

    A share, as the first call of a model waits for as long as a look takes.
    """

    SHARES = 12

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._seen: set[int] = set()
        self._share = 0

    def look(self, patterns: tuple[str, ...]) -> list[Mapped]:
        self._share = (self._share + 1) % self.SHARES
        pids = {int(entry) for entry in os.listdir(self._proc) if entry.isdigit()}
        due = [pid for pid in pids if pid not in self._seen or pid % self.SHARES == self._share]
        self._seen = pids
        return [library for pid in sorted(due) for library in mapped_libraries(pid, patterns, self._proc)]
