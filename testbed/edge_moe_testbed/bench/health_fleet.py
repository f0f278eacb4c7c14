# SPDX-License-Identifier: GPL-3.0-or-later
"""What one look at a fleet costs the controller: CPU seconds a host of ``edge.moe.health`` over 20 pretended boards.

The boards are trees of literal files, all on this machine and without SSH, so the module's own run is counted too:
the figure is an upper bound but for the SSH client, of which one connection a board is kept open anyway.

Goal: 0.6 CPU seconds a host. A fleet of 100 boards that is looked at every five minutes then takes a fifth of one core.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from edge_moe_testbed.bench.figure import BenchError, Figure, machine
from edge_moe_testbed.common import PROJECT, run_playbook

HOSTS = 20
RUNS = 3
GOAL_CPU_S_A_HOST = 0.6
BOARD = PROJECT / "collections/ansible_collections/edge/moe/tests/unit/fixtures/sysfs/orin-nano-super"


def one_look(inventory: Path) -> dict[str, float]:
    """Wall and CPU seconds of one run over all hosts, which has to end well."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = run_playbook("playbooks/health.yml", inventory)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0 or done.stdout.count("  ok  ") < HOSTS:
        raise BenchError(f"the health playbook ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}


def measure() -> Figure:
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "edge_moe_health_become": False,
        "edge_moe_health_root": str(BOARD),
    }
    hosts = {f"board-{number:02d}": variables for number in range(1, HOSTS + 1)}
    with tempfile.TemporaryDirectory() as folder:
        inventory = Path(folder) / "fleet.json"
        inventory.write_text(json.dumps({"all": {"children": {"jetson": {"hosts": hosts}}}}))
        runs = [one_look(inventory) for _ in range(RUNS)]
    # Other load can only add to a run, so the least is the nearest to the truth.
    best = min(runs, key=lambda run: run["cpu_s"])
    return Figure(
        name="health_fleet",
        value=round(best["cpu_s"] / HOSTS, 3),
        unit="s/host",
        goal=GOAL_CPU_S_A_HOST,
        better="lower",
        detail={"machine": machine(), "hosts": HOSTS, "total_s": best["wall_s"], "runs": runs},
    )
