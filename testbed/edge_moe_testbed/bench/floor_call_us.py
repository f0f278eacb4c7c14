# SPDX-License-Identifier: GPL-3.0-or-later
"""What a traced call costs the process that makes it: the same calls with and without the service, in CPU time.

A small program calls `llama_synchronize` of the real library for a context that has nothing to wait for (zeroed
memory), which returns at once: so nearly all of the difference is the probes'. Its calls come in bursts, as tens of
thousands a second would only measure a ring that overflows. It is CPU time of the calling thread, as whatever else runs
on the machine would be in the elapsed time; that one is in the detail.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import BenchError, Figure, machine
from edge_moe_testbed.bench.floor_service import LOW_HZ, Service, need_probes, real_library, service

PAIRS = 5
BURSTS, CALLS, PAUSE_MS = 40, 100, 100
CALLER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double now_us(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
/* caller LIBRARY BURSTS CALLS PAUSE_MS [flags]: a line of CPU and elapsed microseconds a call for each burst */
int main(int argc, char ** argv) {
    (void) argc;
    void * library = dlopen(argv[1], RTLD_NOW);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    void (*synchronize)(void *) = (void (*)(void *)) dlsym(library, "llama_synchronize");
    if (!synchronize) { fprintf(stderr, "no llama_synchronize\n"); return 1; }
    void * context = calloc(1, 1 << 20);
    synchronize(context);
    const int bursts = atoi(argv[2]), calls = atoi(argv[3]);
    for (int burst = 0; burst < bursts; burst++) {
        usleep(1000 * atoi(argv[4]));
        const double cpu = now_us(CLOCK_THREAD_CPUTIME_ID), wall = now_us(CLOCK_MONOTONIC);
        for (int call = 0; call < calls; call++) { synchronize(context); }
        const double cpu_end = now_us(CLOCK_THREAD_CPUTIME_ID), wall_end = now_us(CLOCK_MONOTONIC);
        printf("%.4f %.4f\n", (cpu_end - cpu) / calls, (wall_end - wall) / calls);
    }
    return 0;
}
"""


def build_caller(folder: Path) -> Path:
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise BenchError(f"no C compiler {compiler!r}: install one, or set CC")
    (folder / "caller.c").write_text(CALLER)
    command = [compiler, "-O2", "-o", str(folder / "caller"), str(folder / "caller.c"), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{compiler} failed: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
    return folder / "caller"


def call(caller: Path, library: Path, *flags: str) -> dict[str, float]:
    """Median over the bursts, in microseconds a call."""
    command = [str(caller), str(library), str(BURSTS), str(CALLS), str(PAUSE_MS), *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"LD_LIBRARY_PATH": str(library.parent)}
    )
    if done.returncode:
        raise BenchError(
            f"the calling program ended with {done.returncode}: "
            f"{(done.stderr.strip() or 'llama_synchronize of this build does not return on an empty context')}"
        )
    rows = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    return {"cpu_us": statistics.median(row[0] for row in rows), "wall_us": statistics.median(row[1] for row in rows)}


def watched(caller: Path, library: Path, running: Service, *flags: str) -> dict[str, float]:
    before = running.metric("transitions_total")
    result = call(caller, library, *flags)
    moved = running.metric("transitions_total") != before or running.min_hz != LOW_HZ
    if moved != bool(flags):
        raise BenchError(f"flags {flags}: the floor {'moved' if moved else 'did not move'}")
    running.wait(lambda: running.min_hz == LOW_HZ, "the floor down")
    if running.metric("lost_events_total"):
        raise BenchError("records were lost, so these calls were cheaper than they should be")
    return result


def measure() -> Figure:
    need_probes()
    library = real_library(harness.unpacked_artifact())
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="edge-moe-floor-") as folder:
        caller = build_caller(Path(folder))
        for number in range(PAIRS):
            bare = call(caller, library)
            with service(library, 1.0) as running:
                counted = watched(caller, library, running, "--cpu-moe")
                dense = watched(caller, library, running)
            runs.append(
                {"bare": bare, "counted": counted, "dense": dense, "cost_us": counted["cpu_us"] - bare["cpu_us"]}
            )
            print(
                f"  pair {number + 1}/{PAIRS}: bare {bare['cpu_us']:.2f}, counted {counted['cpu_us']:.2f}, "
                f"dense {dense['cpu_us']:.2f} us",
                flush=True,
            )
    detail = {
        "machine": machine(),
        "load_average": os.getloadavg(),
        "library": library.resolve().name,
        "bursts": BURSTS,
        "calls_a_burst": CALLS,
        "dense_us": statistics.median(run["dense"]["cpu_us"] - run["bare"]["cpu_us"] for run in runs),
        "wall_us": statistics.median(run["counted"]["wall_us"] - run["bare"]["wall_us"] for run in runs),
        "runs": runs,
    }
    return Figure("floor_call_us", statistics.median(run["cost_us"] for run in runs), "us", 5.0, "lower", detail)
