# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one door through which the facts modules look at a machine: bounded file reads and short commands.

Private to this collection: it may change in any release.

Everything goes through a `Host`, which is given its root directory once. Tests hand it a tree of literal files;
no other module knows that tests exist.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import stat
import subprocess
import time
from typing import IO, NamedTuple, cast

READ_LIMIT = 64 * 1024
NUMBER_LIMIT = 32
COMMAND_OUTPUT_LIMIT = 1024 * 1024
COMMAND_TIMEOUT_S = 5.0
# Tools of a board that are not in the PATH of a non-interactive session.
EXTRA_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CommandResult(NamedTuple):
    """What a command did. `problem` is None when it ran and ended by itself, whatever its exit code."""

    rc: int | None
    stdout: str
    stderr: str
    problem: str | None


def decode(data: bytes) -> str:
    """Text of a kernel file: device tree strings end in NUL, and a stray byte must not cost a whole fact set."""
    return data.decode("utf-8", errors="replace")


def read_bounded(path: str, limit: int = READ_LIMIT) -> bytes | None:
    """At most `limit` bytes of a file, or None when it cannot be read.

    O_NONBLOCK: a FIFO planted where a file is expected must not hold the module for ever.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        parts: list[bytes] = []
        left = limit
        while left > 0:
            part = os.read(descriptor, left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(descriptor)


class HeldFile:
    """A small kernel file that is kept open and read again and again; false where there is none."""

    def __init__(self, path: str) -> None:
        self._descriptor: int | None = None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._descriptor = descriptor
        else:
            os.close(descriptor)

    def __bool__(self) -> bool:
        return self._descriptor is not None

    def number(self) -> int | None:
        """The whole number that the file holds now; None while it holds none, or when its device has gone."""
        if self._descriptor is None:
            return None
        try:
            data = os.pread(self._descriptor, NUMBER_LIMIT, 0)
            return int(data) if len(data) < NUMBER_LIMIT else None
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def command_environment() -> dict[str, str]:
    environment = dict(os.environ, LC_ALL="C")
    environment["PATH"] = environment.get("PATH", "") + ":" + EXTRA_PATH
    return environment


class Lines:
    """A command that prints a line now and then until it is stopped."""

    def __init__(self, argv: list[str]) -> None:
        """An OSError where the command cannot be started."""
        self._process = subprocess.Popen(  # pylint: disable=ansible-bad-function  # run_command waits for the end
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=command_environment(),
            start_new_session=True,
        )
        self._stdout = cast(IO[bytes], self._process.stdout)  # a pipe was asked for
        os.set_blocking(self._stdout.fileno(), False)
        self._rest = b""

    def take(self) -> list[str]:
        """The whole lines since the last call; it never waits. What has no end within the limit is dropped."""
        try:
            data = os.read(self._stdout.fileno(), READ_LIMIT)
        except OSError:
            return []
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-READ_LIMIT:]
        return [decode(line) for line in lines]

    def stop(self) -> None:
        """End it and what it started. Should this process be killed first, the closed pipe ends it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._stdout.close()


def run_command(argv: list[str], timeout_s: float = COMMAND_TIMEOUT_S) -> CommandResult:
    """Run a command with closed input, a time limit and bounded output; its whole process group dies with it."""
    try:
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function  # AnsibleModule's knows no limits
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=command_environment(),
            start_new_session=True,
        )
    except FileNotFoundError:
        return CommandResult(None, "", "", "not found")
    except OSError as error:
        return CommandResult(None, "", "", error.strerror or str(error))

    problem: str | None = None
    deadline = time.monotonic() + timeout_s
    taken: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    with selectors.DefaultSelector() as selector:
        for name in taken:
            selector.register(getattr(process, name), selectors.EVENT_READ, name)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                problem = f"no answer within {timeout_s:g} s"
                break
            for key, _events in selector.select(left):
                part = os.read(key.fd, 65536)
                if not part:
                    selector.unregister(key.fileobj)
                    continue
                taken[key.data] += part
            if sum(len(data) for data in taken.values()) > COMMAND_OUTPUT_LIMIT:
                problem = f"printed more than {COMMAND_OUTPUT_LIMIT // 1024} KiB"
                break
    if problem is None:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            problem = f"no end within {timeout_s:g} s"
    if problem is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    rc = process.returncode if problem is None else None
    return CommandResult(rc, decode(bytes(taken["stdout"])), decode(bytes(taken["stderr"])), problem)


class Host:
    """A machine seen below one root directory."""

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def path(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def exists(self, path: str) -> bool:
        return os.path.exists(self.path(path))

    def entries(self, path: str) -> list[str]:
        """Sorted names in a directory; empty when there is none."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def read_bytes(self, path: str, limit: int = READ_LIMIT) -> bytes | None:
        return read_bounded(self.path(path), limit)

    def read_text(self, path: str, limit: int = READ_LIMIT) -> str | None:
        """Text without trailing NULs and white space, or None."""
        data = self.read_bytes(path, limit)
        return None if data is None else decode(data).rstrip("\0 \t\r\n")

    def read_int(self, path: str) -> int | None:
        text = self.read_text(path, 256)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def hold(self, path: str) -> HeldFile:
        """A file to be sampled. Whoever holds it closes it."""
        return HeldFile(self.path(path))

    def link_target(self, path: str) -> str | None:
        try:
            return os.readlink(self.path(path))
        except OSError:
            return None

    def command(self, argv: list[str], timeout_s: float = COMMAND_TIMEOUT_S) -> CommandResult:
        return run_command(argv, timeout_s)

    def lines(self, argv: list[str]) -> Lines | None:
        """A command that goes on printing, or None where there is none of that name. Whoever starts it stops it."""
        try:
            return Lines(argv)
        except OSError:
            return None

    def cpu_count(self) -> int:
        return os.cpu_count() or 1

    def ticks_per_s(self) -> int:
        return os.sysconf("SC_CLK_TCK")

    def page_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE")
