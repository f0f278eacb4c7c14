# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on the board, as root: one floor experiment a call, its findings as JSON. Tests judge them.

Whole loops run here, because a command sent to an emulated board takes seconds and a floor lives for one.

    python3 board_floor.py EXPERIMENT [ARGUMENTS]
"""

from __future__ import annotations

import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

GPU = "/sys/class/devfreq/17000000.gpu"
FLOOR, SERVER = "edge-moe-clock-floor.service", "edge-moe-server.service"
JOURNAL, METRICS = "/run/edge-moe-clock-floor/baseline.json", "/run/edge-moe/clock-floor.prom"
LIBRARIES = "/opt/edge-moe/llama.cpp/current/lib/libllama.so*"
URL = "http://127.0.0.1:8080"
LOWEST, HIGHEST = 306_000_000, 1_020_000_000


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def min_hz() -> int:
    with open(f"{GPU}/min_freq") as file:
        return int(file.read())


def metric(name: str) -> float:
    with open(METRICS) as file:
        found = re.search(rf"^edge_moe_clock_floor_{name}(?:{{.*}})? (\S+)$", file.read(), re.MULTILINE)
    return float(found.group(1)) if found else float("nan")


def reason() -> str:
    with open(METRICS) as file:
        found = re.search(r'^edge_moe_clock_floor_degraded{reason="(.*)"}', file.read(), re.MULTILINE)
    return found.group(1) if found else ""


def property_of(unit: str, name: str) -> str:
    return run("systemctl", "show", "--value", "-p", name, unit)


def wait(condition: Callable[[], bool], seconds: float) -> float | None:
    """Seconds until the condition held; None if it did not in time."""
    began = time.monotonic()
    while True:
        if condition():
            return time.monotonic() - began
        if time.monotonic() - began > seconds:
            return None
        time.sleep(0.005)


def healthy() -> bool:
    try:
        with urllib.request.urlopen(f"{URL}/health", timeout=5):
            return True
    except (OSError, urllib.error.URLError):
        return False


class Load:
    """Completions one after the other until it is left. Short ones, so that leaving does not take long."""

    def __enter__(self) -> Load:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)

    def _ask(self) -> None:
        body = {"prompt": "Once", "n_predict": 12, "ignore_eos": True, "cache_prompt": False}
        while not self._stop.is_set():
            request = urllib.request.Request(
                f"{URL}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=120) as reply:
                    reply.read()
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)  # a server that was killed on purpose


def up(seconds: float = 60.0) -> float | None:
    return wait(lambda: min_hz() == HIGHEST, seconds)


def down(seconds: float = 60.0) -> float | None:
    return wait(lambda: min_hz() == LOWEST, seconds)


def kills(count: str, seed: str) -> dict[str, Any]:
    """SIGKILL of the service at random moments while a model decodes: was the clock given back each time?"""
    chance, trials = random.Random(int(seed)), []
    with Load():
        for _ in range(int(count)):
            run("systemctl", "reset-failed", FLOOR)  # not the limit for restarts is tested
            up()
            time.sleep(chance.uniform(0.0, 3.0))
            was_up = min_hz() == HIGHEST
            pid = int(property_of(FLOOR, "MainPID"))
            if pid <= 1:  # 0 would be ourselves
                raise RuntimeError(f"{FLOOR} does not run: {run('systemctl', 'status', FLOOR)}")
            os.kill(pid, signal.SIGKILL)
            trials.append({"up": was_up, "restored_s": down(20)})
            wait(lambda: property_of(FLOOR, "ActiveState") == "active", 60)
    # the clock first, then the journal: whoever sees the one may be too early for the other
    return {"seed": seed, "trials": trials, "end_s": down(), "paid_s": wait(lambda: not os.path.exists(JOURNAL), 5)}


def replaced() -> dict[str, Any]:
    """The library is replaced while a server runs it; then the server is started again, on the new file."""
    path = os.path.realpath(sorted(glob.glob(LIBRARIES))[0])
    with Load():
        raised_before = up() is not None
        before = metric("probes_attached")
        state = os.stat(path)
        shutil.copy2(path, f"{path}.new")
        os.chown(f"{path}.new", state.st_uid, state.st_gid)
        os.rename(f"{path}.new", path)
        watched_s = wait(lambda: metric("probes_attached") > before, 30)
    down()
    run("systemctl", "restart", SERVER)
    wait(healthy, 300)
    down()
    with Load():
        raised_s = up()
    return {"raised_before": raised_before, "watched_s": watched_s, "raised_s": raised_s, "end_s": down()}


def mode_switch() -> dict[str, Any]:
    """Power modes are switched while a call is in progress; each writes 0 to min_freq."""
    with Load():
        before_s = up()
        run("nvpmodel", "-m", "25W")
        capped_s = wait(lambda: min_hz() == 918_000_000, 20)
        run("nvpmodel", "-m", "MAXN_SUPER")
        raised_s = up(20)
    return {"before_s": before_s, "capped_s": capped_s, "raised_s": raised_s, "end_s": down(), "min_hz": min_hz()}


def jetson_clocks() -> dict[str, Any]:
    """jetson_clocks is in force while a model decodes: the service stands down, and works again after it."""
    down()
    run("jetson_clocks")
    try:
        said_s = wait(lambda: "jetson_clocks" in reason(), 30)
        transitions = metric("transitions_total")
        seen = set()
        with Load():
            deadline = time.monotonic() + 8
            while time.monotonic() < deadline:
                seen.add(min_hz())
                time.sleep(0.02)
        time.sleep(2.5)
        seen.add(min_hz())
        moved = metric("transitions_total") - transitions
    finally:
        run("jetson_clocks", "--restore")
    well_s = wait(lambda: reason() == "", 30)
    with Load():
        raised_s = up()
    return {
        "said_s": said_s,
        "seen": sorted(seen),
        "moved": moved,
        "well_s": well_s,
        "raised_s": raised_s,
        "end_s": down(),
    }


def server_killed() -> dict[str, Any]:
    """The server dies inside a call, which therefore never returns."""
    with Load():
        raised_s = up()
        # A prefill or a decode is in progress at this moment, and not the pause between two.
        wait(lambda: metric("in_flight") >= 1, 30)
        run("systemctl", "kill", "--signal=SIGKILL", SERVER)
        released_s = down(20)
    in_flight = wait(lambda: metric("in_flight") == 0, 10)
    wait(lambda: property_of(SERVER, "ActiveState") == "active", 120)
    wait(healthy, 300)
    return {"raised_s": raised_s, "released_s": released_s, "in_flight_0_s": in_flight, "end_s": down()}


def stopped() -> dict[str, Any]:
    """The unit is stopped in mid-decode, as a role that switches the floor off does."""
    with Load():
        raised_s = up()
        run("systemctl", "stop", FLOOR)
        after_hz, owed = min_hz(), os.path.exists(JOURNAL)
        time.sleep(2.0)
        later_hz = min_hz()
    run("systemctl", "start", FLOOR)
    return {"raised_s": raised_s, "after_hz": after_hz, "owed": owed, "later_hz": later_hz}


def footprint() -> dict[str, Any]:
    """Memory of all the service's processes, and what systemd says of its sandbox."""
    group = property_of(FLOOR, "ControlGroup")
    with open(f"/sys/fs/cgroup{group}/cgroup.procs") as file:
        pids = file.read().split()
    pss_kib = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            pss_kib += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    found = re.search(r"Overall exposure level.*: (\d+\.\d+)", run("systemd-analyze", "--no-pager", "security", FLOOR))
    return {"pss_mib": pss_kib / 1024, "exposure": float(found.group(1)) if found else None}


EXPERIMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (kills, replaced, mode_switch, jetson_clocks, server_killed, stopped, footprint)
}

if __name__ == "__main__":
    print(json.dumps(EXPERIMENTS[sys.argv[1]](*sys.argv[2:])))
