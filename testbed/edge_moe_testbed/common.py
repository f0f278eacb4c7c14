# SPDX-License-Identifier: GPL-3.0-or-later
"""What the parts of the test bed share: the cache folder, one way to fail, and steps that never fall silent."""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from edge_moe_testbed.paths import cache_dir

HEARTBEAT_S = 10.0
PROJECT = Path(__file__).resolve().parents[2]


class TestbedError(Exception):
    """A failure that a user can cause and mend: one line with what was seen and what to do."""

    __test__ = False  # pytest would take the name for that of a test class


def home() -> Path:
    """The cache folder: images, boards, downloads. Everything in it can be made again."""
    return cache_dir().absolute()


def run_playbook(
    book: str | Path,
    inventory: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a playbook as a user at the project's root would; nobody answers questions. The caller judges its end."""
    return _run_ansible("ansible-playbook", [str(book), "-i", str(inventory), *arguments], environment or {}, timeout_s)


def run_inventory(inventory: Path, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Ask ansible-inventory as a user at the project's root would; a source that cannot be read fails."""
    strict = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1"}
    return _run_ansible("ansible-inventory", ["-i", str(inventory), *arguments], strict, timeout_s)


def _run_ansible(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / program), *arguments],
        cwd=PROJECT,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
            "LC_ALL": "C.UTF-8",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def refusing(command: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """The exit code of a command; what a user can mend is one line and code 2."""
    try:
        return command(arguments)
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def say(text: str) -> None:
    print(text, flush=True)


class Step:
    """Announces a long step, reports every few seconds that it is alive, and says how long it took."""

    def __init__(self, text: str, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.text = text
        self.note = ""
        self._heartbeat_s = heartbeat_s
        self._start = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Step:
        say(f"{self.text} ...")
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if kind is None:
            say(f"{self.text}: done in {self.elapsed():.0f} s")

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def _beat(self) -> None:
        while not self._done.wait(self._heartbeat_s):
            note = f" ({self.note})" if self.note else ""
            say(f"{self.text}: {self.elapsed():.0f} s{note}")


def tail(path: Path, lines: int = 12) -> str:
    """The last lines of a log, fit for an error message."""
    try:
        data = path.read_bytes()[-65536:]
    except OSError:
        return ""
    text = data.decode("utf-8", errors="replace").replace("\r", "")
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def run_logged(argv: Sequence[str], log: Path, what: str, env: dict[str, str] | None = None) -> None:
    """Runs a program with its output in a log file; a failure names the log and shows its end."""
    with log.open("ab") as out:
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, check=False)
        except OSError as error:
            raise TestbedError(f"{what}: cannot run {argv[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise TestbedError(f"{what} failed (exit code {done.returncode}, full log: {log}):\n{tail(log)}")


def need_programs(programs: dict[str, str]) -> None:
    """Refuses early when a host program is missing, naming the Debian package it comes in."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [
        package
        for program, package in programs.items()
        if not any(os.access(Path(folder) / program, os.X_OK) for folder in path.split(":") if folder)
    ]
    if missing:
        packages = " ".join(sorted(set(missing)))
        raise TestbedError(f"programs of these packages are missing: {packages}; try: sudo apt-get install {packages}")


def need_space(folder: Path, bytes_needed: int, what: str) -> None:
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if free < bytes_needed:
        raise TestbedError(
            f"{what} needs {bytes_needed / 2**30:.1f} GiB in {folder}, where {free / 2**30:.1f} GiB are free; "
            "free some, or set EDGE_MOE_HOME to a folder on a larger disk"
        )


@contextmanager
def locked(path: Path, waiting_for: str) -> Iterator[None]:
    """Holds a lock file, so that two commands at once do the work once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with Step(f"waiting for another process: {waiting_for}"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
