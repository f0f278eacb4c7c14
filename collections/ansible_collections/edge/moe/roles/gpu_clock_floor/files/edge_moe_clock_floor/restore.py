# SPDX-License-Identifier: GPL-3.0-or-later
"""Give the clock back after a service that died: what ExecStopPost runs.

A program of its own that loads next to nothing: while it starts, the clock is still up.
"""

from __future__ import annotations

import fcntl
import os
import sys

from . import baseline
from ._devfreq import Sysfs

EXIT_FAILED, EXIT_BUSY = 1, 3


def only_one(run_dir: str) -> int | None:
    """The lock that a service holds for its whole life; None if another one has it. Closing it is releasing it."""
    os.makedirs(run_dir, mode=0o755, exist_ok=True)
    descriptor = os.open(os.path.join(run_dir, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def restore(root: str = "/", run_dir: str = baseline.DIRECTORY) -> int:
    lock = only_one(run_dir)
    if lock is None:
        print("the service is running and restores the floor by itself; stop it first", file=sys.stderr)
        return EXIT_BUSY
    try:
        for result in baseline.restore(Sysfs(root), baseline.Journal(run_dir, Sysfs("/").boot_id())):
            value = "unknown" if result.effective_hz is None else f"{result.effective_hz / 1e6:g} MHz"
            print(f"{result.path}: {result.note}" if result.note else f"floor {value} (restored)", file=sys.stderr)
    except OSError as error:
        print(f"cannot restore the floor: {error}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(restore())
