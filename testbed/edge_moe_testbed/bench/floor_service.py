# SPDX-License-Identifier: GPL-3.0-or-later
"""The clock-floor service on this machine: real uprobes, a real llama.cpp, and a copy of a board's clock to write to.

Shared by the benchmarks floor_*. The copy lies in memory, so that what is measured is the service and not a disk.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edge_moe_testbed import models
from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import BenchError, bench_dir

COLLECTION = Path(__file__).resolve().parents[3] / "collections" / "ansible_collections" / "edge" / "moe"
PACKAGE = COLLECTION / "roles" / "gpu_clock_floor" / "files"
BOARD = COLLECTION / "tests" / "unit" / "fixtures" / "sysfs" / "orin-nano-super"
MIN_FREQ = "sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu/min_freq"
LOW_HZ, TOP_HZ = 306_000_000, 1_020_000_000
UPROBES = Path("/sys/bus/event_source/devices/uprobe/type")
NICE = -10  # as in the unit
FUNCTIONS = ("llama_decode", "llama_process", "llama_synchronize")


class Service:
    """A running service. Times are seconds of CLOCK_MONOTONIC, memory is in bytes."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.min_freq = folder / MIN_FREQ

    @property
    def min_hz(self) -> int:
        return int(self.min_freq.read_text() or 0)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def metric(self, name: str) -> float:
        with contextlib.suppress(OSError):
            found = re.search(
                rf"^edge_moe_clock_floor_{name}(?:{{.*}})? (\S+)$", (self.folder / "prom").read_text(), re.MULTILINE
            )
            if found:
                return float(found.group(1))
        return 0.0

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        """Raises BenchError if the condition does not hold in time or the service ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                raise BenchError(f"the service ended with {self.process.returncode}: {self.log().strip()[-300:]}")
            if time.monotonic() > deadline:
                raise BenchError(f"{what}: not within {seconds:g} s; the service said: {self.log().strip()[-300:]}")
            time.sleep(0.002)

    def processes(self) -> list[int]:
        """The service and all that it started."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(word) for word in task.read_text().split()]
        return found

    def pss_bytes(self) -> int:
        """Proportional set size of all its processes."""
        total = 0
        for pid in self.processes():
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        return total

    def cpu_s(self) -> float:
        """CPU time used by all its threads so far."""
        files = [file for pid in self.processes() for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def package(name: str) -> Any:
    """A module of the service, which is no part of this package."""
    if str(PACKAGE) not in sys.path:
        sys.path.insert(0, str(PACKAGE))
    return importlib.import_module(f"edge_moe_clock_floor.{name}")


def need_probes() -> None:
    if os.geteuid() != 0:
        raise BenchError("needs root for uprobes: sudo make bench")
    if not UPROBES.exists():
        raise BenchError(f"this kernel has no uprobe events: {UPROBES} is missing (CONFIG_UPROBE_EVENTS)")


def real_library(root: Path) -> Path:
    """By its link: the service also watches what others run under the name in its settings, and none runs this one."""
    library = root / "lib" / "libllama.so"
    if not library.exists():
        raise BenchError(f"no {library}: remove {root} and run make build")
    return library


@contextlib.contextmanager
def service(library: Path, hold_s: float) -> Iterator[Service]:
    """Start it on one library, wait until it watches, always stop it."""
    need_probes()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder of ours inside it
    with tempfile.TemporaryDirectory(prefix="edge-moe-floor-", dir=memory) as name:
        folder = Path(name)
        shutil.copytree(BOARD / "sys", folder / "sys", symlinks=True)
        (folder / "run").mkdir()
        (folder / "settings").write_text(f"LIBRARIES={library}\nHOLD_S={hold_s}\n")
        command = [sys.executable, "-S", "-s", "-m", "edge_moe_clock_floor", "run", "--root", str(folder)]
        command += ["--config", str(folder / "settings"), "--run-dir", str(folder / "run")]
        command += ["--metrics", str(folder / "prom")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={"PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"},
                preexec_fn=lambda: os.setpriority(os.PRIO_PROCESS, 0, NICE),
            )
        running = Service(folder, process)
        try:
            running.wait(lambda: running.metric("probes_attached") >= 2, "probes on the library")
            yield running
        finally:
            process.terminate()
            try:
                # The kernel takes out each probe in its own time.
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def moe_server(root: Path, name: str) -> Iterator[harness.Server]:
    """A llama-server with a small MoE whose experts are placed on the CPU, so that it counts."""
    model = models.ensure_moe("tiny-moe", models.TINY)
    with harness.server(root, model, bench_dir() / "log" / f"{name}.log", threads=1) as running:
        yield running
