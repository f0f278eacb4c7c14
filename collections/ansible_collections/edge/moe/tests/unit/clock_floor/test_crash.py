# SPDX-License-Identifier: GPL-3.0-or-later
"""SIGKILL at every step of save, write, record, restore, clear; then `restore`, as ExecStopPost does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from floor_board import PACKAGE_DIR, Board

# Counts every call that changes something on disk and dies just before or just after the one asked for.
CHILD = """
import os, signal, sys
from edge_moe_clock_floor import baseline
from edge_moe_clock_floor._devfreq import Sysfs
from edge_moe_clock_floor.controller import Controller

fatal, after, root, run = int(sys.argv[1]), sys.argv[2] == "after", sys.argv[3], sys.argv[4]
done = 0

def deadly(function):
    def call(*arguments, **named):
        global done
        done += 1
        if done == fatal and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        mine = done
        try:
            return function(*arguments, **named)
        finally:
            if mine == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
    return call

for name in ("open", "write", "fsync", "close", "rename", "unlink"):
    setattr(os, name, deadly(getattr(os, name)))
journal = baseline.Journal(run, Sysfs("/").boot_id())
controller = Controller(Sysfs(root), journal, 0, lambda line: None)
controller.start()
controller.call(1, 10.0)
controller.release(12.0)
print(done)
"""


def child(board: Board, fatal: int, when: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(fatal), when, str(board.root), str(board.root / "run")],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_DIR)},
        capture_output=True,
        text=True,
        check=False,
    )


def restore(board: Board) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "edge_moe_clock_floor",
            "restore",
            "--root",
            str(board.root),
            "--run-dir",
            str(board.root / "run"),
        ],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_DIR)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_step_the_clock_comes_back(board: Board, when: str) -> None:
    whole = child(board, 0, when)
    steps = int(whole.stdout)
    assert steps > 15, whole.stderr
    left_up = 0
    for fatal in range(1, steps + 1):
        board.min_hz = 306000000
        died = child(board, fatal, when)
        assert died.returncode == -signal.SIGKILL, died.stderr
        # Truncated but not yet written: a real sysfs file has no such moment.
        if not board.file("min_freq").read_text():
            board.min_hz = 306000000
        left_up += board.min_hz != 306000000
        done = restore(board)
        assert done.returncode == 0, done.stderr
        assert board.min_hz == 306000000, f"step {fatal} of {steps}, {when}: {done.stderr}"
        assert not (board.root / "run" / "baseline.json").exists()
        assert restore(board).returncode == 0, "twice is no error"
    assert left_up > 3, "some of the deaths must have left the floor up, or this test shows nothing"
