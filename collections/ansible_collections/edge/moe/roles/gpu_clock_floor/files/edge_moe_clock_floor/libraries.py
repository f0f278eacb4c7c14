# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps probes on every library that the settings name, whatever happens to the files.

A uprobe belongs to an inode. So each look compares device, inode, size and time of what the globs lead to now with
what is attached: a new file is attached, a rewritten one again. A file that the globs no longer lead to (`current`
moved to another release) stays watched while a process still runs it; one that a process runs when we start is found
through that process (mapped.py).
"""

from __future__ import annotations

import glob
import mmap
import os
from typing import NamedTuple, Protocol

from .config import Config
from .elf import ElfError, function_offsets
from .mapped import Mapped, Running, trusted
from .perf import ProbeError

Identity = tuple[int, int]


class _Attached(NamedTuple):
    path: str
    version: tuple[int, int]  # size and mtime_ns: a file rewritten in place keeps its inode
    functions: tuple[str, ...]


class Port(Protocol):
    """What is needed of uprobe.Probes."""

    def attach(self, library: Identity, file: int, offsets: dict[str, int]) -> None: ...

    def detach(self, library: Identity) -> None: ...


class Found(NamedTuple):
    path: str
    functions: tuple[str, ...]
    missing: tuple[str, ...]


def matches(patterns: tuple[str, ...]) -> list[str]:
    """Real files behind the globs, each once."""
    paths = {os.path.realpath(path) for pattern in patterns for path in glob.glob(pattern)}
    return sorted(path for path in paths if os.path.isfile(path))


def offsets_of(file: int, functions: tuple[str, ...]) -> dict[str, int]:
    size = os.fstat(file).st_size
    if not size:
        raise ElfError("an empty file")
    with mmap.mmap(file, size, prot=mmap.PROT_READ) as data:
        return function_offsets(data, functions)


def inspect(path: str, functions: tuple[str, ...]) -> Found:
    """For --check. Raises OSError or ElfError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        offsets = offsets_of(file, functions)
    finally:
        os.close(file)
    return Found(path, tuple(n for n in functions if n in offsets), tuple(n for n in functions if n not in offsets))


def in_use(identity: Identity, path: str, proc: str = "/proc") -> bool:
    """Does any process have this file mapped? By inode and name, as overlay file systems report other devices."""
    inode, name = str(identity[1]), os.path.basename(path)
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            with open(f"{proc}/{entry}/maps", encoding="utf-8", errors="replace") as handle:
                for line in handle:
                    fields = line.split(None, 5)
                    if len(fields) == 6 and fields[4] == inode and name in fields[5]:
                        return True
        except OSError:
            continue
    return False


class Libraries:
    USE_CHECK_S = 60.0  # reading every process's maps is not cheap, and only superseded files need it

    def __init__(self, config: Config, proc: str = "/proc") -> None:
        self._config = config
        self._proc = proc
        self._attached: dict[Identity, _Attached] = {}
        self._failed: dict[str, str] = {}
        self._running = Running(proc)
        self._passed_over: set[tuple[str, int]] = set()
        self._next_use_check = 0.0
        self.problem = ""

    def forget_all(self) -> None:
        """The probes were closed (CPUs came or went): the next look attaches everything again."""
        self._attached.clear()
        self._next_use_check = 0.0

    def look(self, probes: Port, now: float) -> list[str]:
        """Bring the probes up to date; the lines returned are news for the journal, each said once."""
        news: list[str] = []
        current: set[Identity] = set()
        paths = matches(self._config.libraries)
        for path in paths:
            try:
                current.add(self._look_at(path, path, probes, news))
                self._failed.pop(path, None)
            except (OSError, ElfError, ProbeError) as error:
                if self._failed.get(path) != str(error):
                    self._failed[path] = str(error)
                    news.append(f"cannot watch {path}: {error}")
        self._failed = {path: reason for path, reason in self._failed.items() if path in paths}
        if self._config.watch_running:
            for library in self._running.look(self._config.libraries):
                self._look_at_running(library, probes, news)
        self._drop_superseded(current, probes, now, news)
        if self._attached:
            self.problem = ""
        elif self._failed:
            self.problem = "cannot watch " + "; ".join(f"{p}: {r}" for p, r in sorted(self._failed.items()))
        else:
            self.problem = "no library at " + " ".join(self._config.libraries)
        return news

    def _look_at_running(self, library: Mapped, probes: Port, news: list[str]) -> None:
        key = (library.path, library.inode)
        if key in self._passed_over or any(library.inode == inode for _device, inode in self._attached):
            return
        try:
            state = os.stat(library.door)
            if state.st_ino != library.inode or not trusted(state):
                raise OSError("only root may be able to write to a library that is not named in the settings")
            self._look_at(library.path, library.door, probes, news)
        except (OSError, ElfError, ProbeError) as error:
            self._passed_over.add(key)
            news.append(f"cannot watch {library.path}, which a process runs: {error}")

    def _look_at(self, path: str, door: str, probes: Port, news: list[str]) -> Identity:
        file = os.open(door, os.O_RDONLY | os.O_CLOEXEC)
        try:
            state = os.fstat(file)
            identity = (state.st_dev, state.st_ino)
            version = (state.st_size, state.st_mtime_ns)
            attached = self._attached.get(identity)
            if attached is not None:
                if attached.version == version:
                    return identity
                probes.detach(identity)
                del self._attached[identity]
            offsets = offsets_of(file, self._config.functions)
            if not offsets:
                raise ElfError("it has none of " + ", ".join(self._config.functions))
            probes.attach(identity, file, offsets)
        finally:
            os.close(file)
        functions = tuple(name for name in self._config.functions if name in offsets)
        self._attached[identity] = _Attached(path, version, functions)
        missing = [name for name in self._config.functions if name not in offsets]
        lacking = f" (not there: {', '.join(missing)})" if missing else ""
        news.append(f"watching {path}: {', '.join(functions)}{lacking}")
        return identity

    def _drop_superseded(self, current: set[Identity], probes: Port, now: float, news: list[str]) -> None:
        superseded = [identity for identity in self._attached if identity not in current]
        if not superseded or now < self._next_use_check:
            return
        self._next_use_check = now + self.USE_CHECK_S
        for identity in superseded:
            path = self._attached[identity].path
            if not in_use(identity, path, self._proc):
                probes.detach(identity)
                del self._attached[identity]
                news.append(f"no longer watching {path}: it was replaced and nothing runs it")
