# SPDX-License-Identifier: GPL-3.0-or-later
"""A bench on the converged virtual board whose process is killed: what its variant ran as, and how the board was left.

One remote command costs seconds here, so one playbook does all and everything is asserted on what it wrote.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from edge_moe_testbed.common import run_playbook

SERVED, REFERENCE, FLOOR = "edge-moe-server.service", "edge-moe-reference.service", "edge-moe-clock-floor.service"
GUARD, DROP_IN = "edge-moe-stage.service", "/run/systemd/system/edge-moe-reference.service.d"
# What the quoting of a unit file could spoil.
ODD = "100% $HOME ${A} \"b\" 'c' \\x41; 한국어"
LOAD_FAST = ["--load-mode", "mmap", "--fit", "off", "--no-host", "--no-repack", "--no-warmup", "--cpu-moe"]
SCRIPT = r"""
import json, os, re, signal, subprocess, sys, time, urllib.request
SERVED, REFERENCE, FLOOR, GUARD, DROP_IN = sys.argv[2:7]
def show(unit, name):
    command = ["systemctl", "show", "--value", "--property", name, unit]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
def read(path):
    with open(path) as file:
        return file.read().strip()
def healthy():
    try:
        return urllib.request.urlopen("http://127.0.0.1:8080/health", timeout=5).status == 200
    except OSError:
        return False
def wait(until):
    started = time.monotonic()
    while not until():
        if time.monotonic() - started > 90:
            sys.exit(f"not within 90 s: {look()} {show(GUARD, 'ActiveState')}")
        time.sleep(0.1)
    return round(time.monotonic() - started, 1)
def look():
    return {
        "units": {unit: show(unit, "ActiveState") for unit in (SERVED, REFERENCE, FLOOR)},
        "drop_in": os.path.exists(DROP_IN),
        "read_ahead_kb": read("/sys/block/nvme0n1/queue/read_ahead_kb"),
    }
if sys.argv[1] == "look":
    wait(healthy)
    print(json.dumps(look()))
    sys.exit()
wait(lambda: show(REFERENCE, "ActiveState") == "active" and healthy())
server = show(REFERENCE, "MainPID")
during = look()
during["environment"] = read(f"/proc/{server}/environ").split("\0")
during["command"] = read(f"/proc/{server}/cmdline").split("\0")
during["as"] = {name: show(REFERENCE, name) for name in ("User", "Slice", "ProtectSystem", "NoNewPrivileges")}
during["swap_max"] = read("/sys/fs/cgroup" + show(REFERENCE, "ControlGroup") + "/memory.swap.max")
os.kill(int(re.search(r"process (\d+)", show(GUARD, "Description")).group(1)), signal.SIGKILL)
restored_s = wait(lambda: show(GUARD, "ActiveState") == "inactive")
left = look()
wait(healthy)
print(json.dumps({"during": during, "after": left, "restored_s": restored_s}))
"""


@pytest.fixture(scope="module")
def killed(host: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    written, book = folder / "bench.json", folder / "bench.yml"
    names = [SERVED, REFERENCE, FLOOR, GUARD, DROP_IN]
    variant = {
        "name": "killed",
        # With a cache nothing is read ahead at load, which takes half a minute here.
        "args": [*LOAD_FAST, "-t", "1", "-c", "512", "--alias", ODD],
        "environment": {"ODD": ODD, "EDGE_MOE_CACHE_MIB": "64"},
        "floor": False,
        "read_ahead_kb": 16,
    }
    bench = {
        "program": "/opt/edge-moe/llama.cpp/current/bin/llama-server",
        "model": "{{ moe_model_dir }}/{{ moe_model_url | basename }}",
        "variants": [variant],
        "prompts": [{"id": "long", "text": "Why does a river bend?"}],
        "n_predict": 400,
        "block_device": "nvme0n1",
        "dest": "/run/edge-moe-bench-test/bench.json",
    }
    tasks: list[dict[str, Any]] = [
        {
            "name": "Look before",
            "ansible.builtin.command": {"argv": ["python3", "-c", SCRIPT, "look", *names]},
            "register": "before",
        },
        {"name": "Begin", "edge.moe.bench": bench, "async": 300, "poll": 0},
        {
            "name": "Kill it while its variant serves",
            "ansible.builtin.command": {"argv": ["python3", "-c", SCRIPT, "kill", *names]},
            "register": "kill",
        },
        {
            "name": "Keep what was seen",
            "ansible.builtin.copy": {
                "content": "{{ {'before': before.stdout | from_json} | combine(kill.stdout | from_json) | to_json }}",
                "dest": str(written),
                "mode": "0600",
            },
            "delegate_to": "localhost",
            "become": False,
        },
    ]
    play = {"hosts": host.backend.get_hostname(), "gather_facts": False, "become": True, "tasks": tasks}
    book.write_text(json.dumps([play]))
    inventory = Path(os.environ.get("MOLECULE_SCENARIO_DIRECTORY") or Path(__file__).parents[1]) / "inventory"
    done = run_playbook(book, inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(written.read_text())
    print(json.dumps(found))
    return found


def test_a_variant_runs_in_the_place_of_what_is_served(killed: dict[str, Any]) -> None:
    during = killed["during"]
    assert during["units"] == {SERVED: "inactive", REFERENCE: "active", FLOOR: "inactive"}
    assert during["read_ahead_kb"] == "16"
    assert during["as"] == {
        "User": "edge-moe",
        "Slice": "edge-moe.slice",
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
    }
    assert during["swap_max"] == "0"


def test_words_reach_the_variant_as_they_were_given(killed: dict[str, Any]) -> None:
    assert f"ODD={ODD}" in killed["during"]["environment"]
    assert ODD in killed["during"]["command"]


def test_the_board_is_put_back_after_a_kill(killed: dict[str, Any]) -> None:
    assert killed["after"] == killed["before"]
    assert killed["before"]["units"] == {SERVED: "active", REFERENCE: "inactive", FLOOR: "active"}
    assert killed["before"]["drop_in"] is False
