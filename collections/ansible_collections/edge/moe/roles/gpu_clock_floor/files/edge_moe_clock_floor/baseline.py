# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal that outlives us: what `min_freq` was before we touched it.

Restore protocol:
1. A journal of this boot, once written, is the baseline: `min_freq` is not read as "original" again. One of another
   boot is discarded, as sysfs began anew.
2. Before the first write the original is saved: temporary file, fsync, rename, fsync of the directory.
3. After the write, the value that was read back is recorded as `ours` (it may be clamped). A journal without `ours`
   means that we died between the two: the value may be ours, so it is restored unconditionally.
4. To restore: if the value now is still ours, write the original and read it back; if not, somebody else took over,
   and it is left alone. Either way nothing is owed any more and the journal goes.
5. `jetson_clocks` over a floor at the very top writes the value that is there already. The CPUs tell: if all of them
   are pinned now and were not when the floor went up, the clock belongs to jetson_clocks and is left alone.
6. Restoring twice, or with no journal, does nothing and is no error.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from ._devfreq import Sysfs, same_hz
from .cpu_clocks import cpus_pinned

DIRECTORY = "/run/edge-moe-clock-floor"


class Entry(NamedTuple):
    path: str
    original_hz: int
    applied_hz: int  # what is (about to be) written
    ours_hz: int | None = None  # what the kernel read back after it
    cpus_pinned: bool = False  # before the floor went up


class Restored(NamedTuple):
    path: str
    effective_hz: int | None
    note: str  # empty: restored; otherwise why it was left alone


class Journal:
    def __init__(self, directory: str, boot_id: str | None) -> None:
        self._directory = directory
        self._boot_id = boot_id or "unknown"
        self.path = os.path.join(directory, "baseline.json")

    def load(self) -> list[Entry]:
        """Entries of this boot. A journal that is missing, foreign or unreadable owes nothing."""
        try:
            with open(self.path, encoding="utf-8") as handle:
                data = json.load(handle)
            if data["boot_id"] != self._boot_id:
                return []
            return [
                Entry(
                    str(node["path"]),
                    int(node["original_hz"]),
                    int(node["applied_hz"]),
                    None if node["ours_hz"] is None else int(node["ours_hz"]),
                    bool(node.get("cpus_pinned", False)),
                )
                for node in data["nodes"]
            ]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def save(self, entries: list[Entry]) -> None:
        """Durable and atomic: a reader sees the old file or the new one.

        REQUIRES: called before the write that it covers.
        """
        text = json.dumps({"version": 1, "boot_id": self._boot_id, "nodes": [entry._asdict() for entry in entries]})
        os.makedirs(self._directory, mode=0o755, exist_ok=True)
        temporary = f"{self.path}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, self.path)
        self._sync_directory()

    def clear(self) -> None:
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return
        self._sync_directory()

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def still_ours(entry: Entry, current_hz: int, max_hz: int | None) -> bool:
    """Also true if a power mode lowered the cap since: the kernel then reads our value back clamped to it."""
    if entry.ours_hz is None or same_hz(current_hz, entry.ours_hz):
        return True
    return max_hz is not None and same_hz(current_hz, min(entry.applied_hz, max_hz))


def restore(sysfs: Sysfs, journal: Journal) -> list[Restored]:
    """Give back what is owed. An OSError leaves the journal in place, so that a later attempt still knows."""
    entries = journal.load()
    results = []
    for entry in entries:
        node = sysfs.read_node(entry.path)
        if node.min_hz is None:
            results.append(Restored(entry.path, None, "the node is gone, and its floor with it"))
        elif not still_ours(entry, node.min_hz, node.max_hz):
            results.append(Restored(entry.path, node.min_hz, "somebody else has set it since; left as it is"))
        elif node.pinned and not entry.cpus_pinned and cpus_pinned(sysfs):
            results.append(Restored(entry.path, node.min_hz, "jetson_clocks was run meanwhile; left pinned"))
        else:
            results.append(Restored(entry.path, sysfs.write_min(entry.path, entry.original_hz), ""))
    journal.clear()
    return results
