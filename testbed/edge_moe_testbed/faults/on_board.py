# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a virtual board, as root: plants a fault, measures as the product does, takes the fault back.

    python3 -m edge_moe_testbed.faults.on_board run SETTINGS     plants as SETTINGS, JSON, says; one line a round
    python3 -m edge_moe_testbed.faults.on_board restore          takes back whatever is planted

Beside it lies the collection's own code for measuring. Everything planted is at run time alone: a boot takes it back,
and so does `restore`, which runs after each round and, as ExecStopPost, however this program ends.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import random
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _measure
from ansible_collections.edge.moe.plugins.module_utils._host import Host

from edge_moe_testbed.faults.wrong_character import Proxy

SERVER, FLOOR, SLICE = "edge-moe-server.service", "edge-moe-clock-floor.service", "edge-moe.slice"
PORT = 8080
URL = f"http://127.0.0.1:{PORT}"
DROP_IN = f"/run/systemd/system/{SERVER}.d/90-planted-fault.conf"
STEALTH = "/run/edge-moe-planted-fault.env"
# Units are in /etc, over which a mask in /run/systemd/system has no say; this folder is asked before it.
CONTROL = "/run/systemd/system.control"
MASK = f"{CONTROL}/{FLOOR}"
COOLING_TYPE = "cpu-throttle-alert"
# One compute thread: a quarter of a CPU makes it four times slower.
QUOTA = "CPUQuota=25%"
READY_S = 300.0


def systemctl(*arguments: str) -> str:
    done = subprocess.run(["systemctl", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def active(unit: str) -> bool:
    return subprocess.run(["systemctl", "--quiet", "is-active", unit], check=False).returncode == 0


def set_property(unit: str, *values: str) -> None:
    systemctl("set-property", "--runtime", unit, *values)


def write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def group_of(unit: str) -> str:
    return "/sys/fs/cgroup" + systemctl("show", "--value", "--property=ControlGroup", unit)


def cooling_device() -> str:
    for path in glob.glob("/sys/class/thermal/cooling_device*"):
        if read(f"{path}/type") == COOLING_TYPE:
            return f"{path}/cur_state"
    raise SystemExit(f"this board has no cooling device {COOLING_TYPE}; is it a virtual board of this version?")


def wait_until_served() -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(f"{URL}/health", timeout=5):  # noqa: S310 - our own server
                return
        except (OSError, urllib.error.URLError):
            if time.monotonic() > deadline:
                raise SystemExit(f"{SERVER} does not answer within {READY_S:.0f} s: journalctl -u {SERVER}") from None
            time.sleep(0.2)


def restart_server() -> None:
    systemctl("reset-failed", SERVER)  # not the limit for restarts is tested
    systemctl("restart", SERVER)
    wait_until_served()


# Each plants its fault and gives the address to measure at.


@contextlib.contextmanager
def nothing(_place: int) -> Iterator[str]:
    yield URL


@contextlib.contextmanager
def wrong_character(place: int) -> Iterator[str]:
    with Proxy(PORT, place) as proxy:
        yield proxy.url


@contextlib.contextmanager
def cache_off(_place: int) -> Iterator[str]:
    """Behind the plan's back: /etc/edge-moe/server.env, which names the cache's size, stays as it is."""
    write(STEALTH, "EDGE_MOE_CACHE_MIB=0\n")
    write(DROP_IN, f"[Service]\nEnvironmentFile={STEALTH}\n")
    systemctl("daemon-reload")
    restart_server()
    yield URL


@contextlib.contextmanager
def floor_masked(_place: int) -> Iterator[str]:
    # stopped first, while systemd still knows how the clock is given back
    systemctl("stop", FLOOR)
    os.makedirs(CONTROL, exist_ok=True)
    os.symlink("/dev/null", MASK)
    systemctl("daemon-reload")
    yield URL


@contextlib.contextmanager
def throttled(_place: int) -> Iterator[str]:
    write(cooling_device(), "1")
    set_property(SERVER, QUOTA)
    yield URL


@contextlib.contextmanager
def swap_allowed(_place: int) -> Iterator[str]:
    set_property(SERVER, "MemorySwapMax=infinity")
    yield URL


@contextlib.contextmanager
def swapped(_place: int) -> Iterator[str]:
    """The slice's limit holds for the server as well, so both have to go before the kernel swaps."""
    set_property(SLICE, "MemorySwapMax=infinity")
    set_property(SERVER, "MemorySwapMax=infinity")
    with contextlib.suppress(BlockingIOError):  # less than this could be had
        write(f"{group_of(SERVER)}/memory.reclaim", "64M swappiness=200")
    yield URL


@contextlib.contextmanager
def slow(_place: int) -> Iterator[str]:
    set_property(SERVER, QUOTA)
    yield URL


FAULTS: dict[str, Callable[[int], contextlib.AbstractContextManager[str]]] = {
    function.__name__: function
    for function in (nothing, wrong_character, cache_off, floor_masked, throttled, swap_allowed, swapped, slow)
}


def restore() -> None:
    """The board as the roles made it. Does nothing where nothing is planted."""
    if read(cooling_device()) != "0":
        write(cooling_device(), "0")
    anew = os.path.exists(DROP_IN)
    reload = anew or os.path.lexists(MASK)
    for unit in (SERVER, SLICE):
        settings = f"{CONTROL}/{unit}.d"
        if os.path.isdir(settings):
            # while the unit runs, only its properties are sure to reach the kernel
            set_property(unit, "MemorySwapMax=0", *(["CPUQuota="] if unit == SERVER else []))
            shutil.rmtree(settings, ignore_errors=True)
            reload = True
    for path in (DROP_IN, STEALTH, MASK):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    with contextlib.suppress(OSError):  # not there, or not ours alone
        os.rmdir(os.path.dirname(DROP_IN))
    if reload:
        systemctl("daemon-reload")
    if not active(FLOOR):
        systemctl("start", FLOOR)
    # what lies in swap stays there
    in_swap = active(SERVER) and read(f"{group_of(SERVER)}/memory.swap.current") != "0"
    if anew or in_swap or not active(SERVER):
        restart_server()
    wait_until_served()


def measure(url: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What the module edge.moe.measure would return, and for a failed one what the verify role makes of it."""
    session = _measure.Session(
        Host(), _measure.Client(url, READY_S), SERVER, settings["block_device"], settings["settle_s"]
    )
    try:
        return session.run([settings["prompt"]], settings["n_predict"], 1, READY_S)
    except _measure.MeasureError as error:
        return {"complete": False, "requests": [], "unit": SERVER, "error": str(error)}


def run(settings: dict[str, Any]) -> None:
    chance = random.Random(settings["seed"])  # noqa: S311 - which character is spoilt is no secret
    for fault in [name for name in settings["faults"] for _ in range(settings["rounds"])]:
        began = time.monotonic()
        try:
            # not at the end, where a part of a character that takes several tokens may be all that is left
            with FAULTS[fault](chance.randrange(settings["n_predict"] // 2 + 1)) as url:
                measurement = measure(url, settings)
        finally:
            restore()
        seconds = time.monotonic() - began
        print(json.dumps({"fault": fault, "measurement": measurement, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "restore":
        restore()
    else:
        restore()
        run(json.loads(sys.argv[2]))
