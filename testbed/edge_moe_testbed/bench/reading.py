# SPDX-License-Identifier: GPL-3.0-or-later
"""What the two figures of the reader share: the miss path's own program, the drive's best by fio, and their file."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_moe_testbed import models
from edge_moe_testbed.bench.figure import BenchError, bench_dir
from edge_moe_testbed.bench.harness import bytes_read

NATIVE = Path(__file__).parents[3] / "native"
N_HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")
PAGE = 4096
SECONDS = 2
TUNE_SECONDS = 1
KINDS = 3
QUIET_LOOKS = 60
QUIET_LOOK_S = 0.5
QUIET_BYTES_PER_S = 20e6
QUIET_IDLE = 0.7


def read_bench_program() -> Path:
    """Build the miss path's program and return its path."""
    folder = bench_dir().parent / "native-bench"
    for command in (
        ["cmake", "-S", str(NATIVE), "-B", str(folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", str(folder), "--target", "edge-moe-read-bench"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return folder / "edge-moe-read-bench"


class MissPath:
    """The cache with nothing but misses, on the bench model's file."""

    def __init__(self) -> None:
        self.program = read_bench_program()
        self.model = models.ensure_moe("bench-moe", models.BENCH)
        self.piece = models.BENCH.expert_bytes() // KINDS

    def read_bytes(self) -> int:
        """One read of a piece: the pages around it, since a piece may start anywhere in one."""
        return (self.piece + PAGE - 1) // PAGE * PAGE + PAGE

    def run(self, **options: Any) -> dict[str, Any]:
        """One run; ``options`` are the program's. What is not given is the product's default."""
        shape = {
            "layers": models.BENCH.layers,
            "experts": models.BENCH.experts,
            "piece": self.piece,
            "seconds": SECONDS,
        }
        words = [
            word for name, value in {**shape, **options}.items() for word in (f"--{name.replace('_', '-')}", value)
        ]
        command = [str(self.program), str(self.model), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise BenchError(f"{' '.join(command)} failed: {done.stderr.strip()}")
        result: dict[str, Any] = json.loads(done.stdout)
        if not result["direct"]:
            raise BenchError(
                f"{self.model} is on a file system that refuses O_DIRECT: set EDGE_MOE_HOME to another one"
            )
        return result


def quiet_drive(device: Path) -> float:
    """Wait, within bounds, until others leave drive and cores alone. Returns the bytes a second that they still read.

    A deep queue takes a larger share of a drive that others use: a ratio would then tell about depths, not readers.
    """
    for _ in range(QUIET_LOOKS):
        bytes_before, idle_before = bytes_read(device), idle_seconds()
        time.sleep(QUIET_LOOK_S)
        others = (bytes_read(device) - bytes_before) / QUIET_LOOK_S
        idle = (idle_seconds() - idle_before) / QUIET_LOOK_S / (os.cpu_count() or 1)
        if others < QUIET_BYTES_PER_S and idle > QUIET_IDLE:
            break
    return others


def idle_seconds() -> float:
    """Summed over processors since boot, waiting for I/O included."""
    ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(ticks[4]) + int(ticks[5])) / os.sysconf("SC_CLK_TCK")


def fio(path: Path, read_bytes: int, job: dict[str, Any], seconds: float) -> float:
    """Bytes a second of direct random reads that start at any page."""
    options = {
        "name": "read",
        "filename": path,
        "rw": "randread",
        "direct": 1,
        "bs": read_bytes,
        "blockalign": PAGE,
        "runtime": seconds,
        "time_based": 1,
        "group_reporting": 1,
        "randrepeat": 0,
        "norandommap": 1,
        "output-format": "json",
        **job,
    }
    command = ["fio", "--readonly", *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise BenchError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return float(json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]["bw_bytes"])


@contextlib.contextmanager
def huge_pages(count: int) -> Iterator[bool]:
    """Have huge pages for fio's buffers, as the cache has for its slots; False where they cannot be had."""
    before = N_HUGE_PAGES.read_text()
    wanted = int(before) + count
    try:
        N_HUGE_PAGES.write_text(str(wanted))
    except PermissionError:
        yield False
        return
    try:
        yield int(N_HUGE_PAGES.read_text()) >= wanted
    finally:
        N_HUGE_PAGES.write_text(before)


@dataclass(frozen=True)
class Buffers:
    """Where fio reads to, and the engines and depths to choose from."""

    label: str
    depths: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def jobs(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = [
            {"ioengine": engine, "iodepth": depth, **self.options}
            for engine, depth in itertools.product(("io_uring", "libaio"), self.depths)
        ]
        # a thread for each read: as many threads as that are no way to read
        jobs += [{"ioengine": "psync", "numjobs": depth, **self.options} for depth in self.depths if depth <= 16]
        return jobs


IN_HUGE_PAGES = {"iomem": "shmhuge", "hugepage-size": "2m"}
# fio's own default, buffers in pages of 4 KiB
SMALL_PAGES = Buffers("small pages", (1, 2, 4, 8, 16))
# A buffer for each read in flight: so many that they do not stay in the processor's cache, as slots do not.
HUGE_PAGES_SPREAD = Buffers("huge pages", (128, 256), IN_HUGE_PAGES)
# A few buffers that are filled again and again within the processor's cache, which no cache of experts can do.
HUGE_PAGES_REUSED = Buffers("huge pages, reused", (1, 2, 4, 8), IN_HUGE_PAGES)


def fio_best(path: Path, read_bytes: int, buffers: Buffers) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """fio's fastest way to read this size into such buffers, and what each way gave."""
    if not shutil.which("fio"):
        raise BenchError("fio is not installed: run make setup")
    seen: list[dict[str, Any]] = []
    for job in buffers.jobs():
        try:
            seen.append({**job, "bytes_per_s": fio(path, read_bytes, job, TUNE_SECONDS)})
        except BenchError as error:
            seen.append({**job, "error": str(error)})  # an engine that does not work here
    rates = [one for one in seen if "bytes_per_s" in one]
    if not rates:
        raise BenchError(f"fio cannot read {path} directly: {seen[0]['error']}")
    best = max(rates, key=lambda one: float(one["bytes_per_s"]))
    return {name: value for name, value in best.items() if name != "bytes_per_s"}, seen
