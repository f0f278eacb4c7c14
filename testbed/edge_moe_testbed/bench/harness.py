# SPDX-License-Identifier: GPL-3.0-or-later
"""What every benchmark needs: a memory limit, a block device's settings, and a server that is always stopped."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_moe_testbed.bench.figure import BenchError
from edge_moe_testbed.paths import artifacts_dir, cache_dir

CGROUP = Path("/sys/fs/cgroup")


class MemoryLimit:
    """A cgroup whose members share ``limit_bytes``, page cache included. cgroup v2, or v1 where v2 has no memory."""

    def __init__(self, name: str, limit_bytes: int) -> None:
        if (CGROUP / "memory").is_dir():
            self.path, setting = CGROUP / "memory" / name, "memory.limit_in_bytes"
        elif "memory" in (CGROUP / "cgroup.controllers").read_text().split():
            self.path, setting = CGROUP / name, "memory.max"
        else:
            raise BenchError(f"no memory controller under {CGROUP}: neither cgroup v1 'memory' nor v2 lists it")
        try:
            if setting == "memory.max" and "memory" not in (CGROUP / "cgroup.subtree_control").read_text().split():
                (CGROUP / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir(exist_ok=True)
            (self.path / setting).write_text(str(limit_bytes))
            if setting == "memory.max":
                (self.path / "memory.swap.max").write_text("0")
        except OSError as error:
            raise BenchError(f"cannot limit memory ({error}); benchmarks that do need root") from error

    def enter(self) -> None:
        """Move the calling process into the group (used between fork and exec)."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        # A group lingers for a moment after its last member has gone.
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.1)


@contextlib.contextmanager
def memory_limit(name: str, limit_bytes: int) -> Iterator[MemoryLimit]:
    limit = MemoryLimit(name, limit_bytes)
    try:
        yield limit
    finally:
        limit.remove()


def block_device(path: Path) -> Path:
    """The /sys/block folder of the whole device that holds ``path``."""
    number = path.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        raise BenchError(f"{path} is on no block device (a tmpfs or a network share): set EDGE_MOE_HOME to a real disk")
    device = device.resolve()
    return device.parent if (device / "partition").exists() else device


class ReadAhead:
    """``read_ahead_kb`` of the device under a file, put back as it was found."""

    def __init__(self, path: Path) -> None:
        self.file = block_device(path) / "queue" / "read_ahead_kb"
        self.found = self.file.read_text().strip()

    def set(self, kib: int) -> None:
        try:
            self.file.write_text(str(kib))
        except OSError as error:
            raise BenchError(f"cannot set {self.file} ({error}); a tuned mmap baseline needs root") from error

    def restore(self) -> None:
        self.file.write_text(self.found)


def bytes_read(device: Path) -> int:
    """Bytes read from the device since boot (512-byte sectors in its ``stat``)."""
    return int((device / "stat").read_text().split()[2]) * 512


def drop_page_cache(path: Path) -> None:
    with path.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def unpacked_artifact() -> Path:
    """Folder of the newest built llama.cpp (``make build``), unpacked beside the artifacts."""
    archives = sorted(artifacts_dir().glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    if not archives:
        raise BenchError(f"no artifact in {artifacts_dir()}: run make build first")
    archive = archives[-1]
    target = cache_dir() / "unpacked" / archive.name.removesuffix(".tar.gz")
    if not (target / ".complete").exists():
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            # Debian 12's Python 3.11.2 has no filters yet; the archive is our own build
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(target)  # noqa: S202 - see above
        (target / ".complete").touch()
    found = sorted(target.rglob("bin/llama-server"))
    if not found:
        raise BenchError(f"{archive} holds no bin/llama-server: remove it and run make build")
    return found[0].parents[1]


# Servers that start at the same time must not be given one port: nobody listens on it yet.
_given_out: deque[int] = deque(maxlen=64)


def free_port() -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given_out:
            _given_out.append(port)
            return port


# The published study's flags: experts stay in the file's mapping and on the CPU.
STREAMING_ARGS = (
    "--load-mode",
    "mmap",
    "--no-host",
    "--no-repack",
    "--cpu-moe",
    "--no-op-offload",
    "--parallel",
    "1",
    "-c",
    "4096",
    "-b",
    "512",
    "-ub",
    "512",
    "-ngl",
    "0",
    "--no-webui",
)


class ServerEnded(BenchError):
    """llama-server ended before it was ready; a negative ``returncode`` is the signal that ended it."""

    def __init__(self, returncode: int, log: Path) -> None:
        super().__init__(f"llama-server ended with {returncode}: {_last_line(log)} (log: {log})")
        self.returncode = returncode


@dataclass
class Server:
    """A running llama-server. ``log`` holds all that it printed."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def request(self, path: str, body: dict[str, Any] | None = None, timeout: float = 600) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise BenchError(f"llama-server answered {answer.status} to {path}: {content[:200]!r}; its log: {self.log}")
        parsed: dict[str, Any] = json.loads(content)
        return parsed

    def complete(self, prompt: str | list[str], n_predict: int, timeout: float = 600, **more: Any) -> dict[str, Any]:
        """Greedy completion with its token ids and the server's own timings; nothing is reused between prompts.

        Of several prompts in one request the server makes a list of answers.
        """
        return self.request(
            "/completion",
            {
                "prompt": prompt,
                "n_predict": n_predict,
                "temperature": 0,
                "seed": 1,
                "cache_prompt": False,
                "return_tokens": True,
                **more,
            },
            timeout,
        )

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def server(
    root: Path,
    model: Path,
    log: Path,
    *,
    threads: int,
    args: Sequence[str] = STREAMING_ARGS,
    environment: Mapping[str, str] | None = None,
    limit: MemoryLimit | None = None,
    start_timeout_s: float = 180,
) -> Iterator[Server]:
    """Start llama-server on a free loopback port, wait until it is healthy, always stop it."""
    port = free_port()
    command = [
        str(root / "bin" / "llama-server"),
        "--model",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "-t",
        str(threads),
        *args,
    ]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EDGE_MOE_", "LLAMA_"))}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**clean, **(environment or {})},
            preexec_fn=limit.enter if limit else None,
        )
    running = Server(process, port, log)
    try:
        deadline = time.monotonic() + start_timeout_s
        while True:
            if process.poll() is not None:
                raise ServerEnded(process.returncode, log)
            try:
                running.request("/health", timeout=5)
                break
            except (OSError, BenchError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise BenchError(f"llama-server not ready after {start_timeout_s:.0f} s; log: {log}") from None
                time.sleep(0.1)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
