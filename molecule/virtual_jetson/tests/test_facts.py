# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of the converged virtual board against what its own files say: as root, in check mode, as a normal user.

One remote command costs seconds here, so one playbook gathers all and everything is asserted on what it wrote.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from edge_moe_testbed.common import run_playbook

MODULES = ("jetson_facts", "devfreq_facts", "expert_cache_facts")
WAYS = {"root": {"become": True}, "check": {"become": True, "check_mode": True}, "user": {"become": False}}
Facts = dict[str, Any]


@pytest.fixture(scope="module")
def gathered(host: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Facts]:
    """Each way's facts by their keys."""
    folder = tmp_path_factory.mktemp("facts")
    written = folder / "facts.json"
    tasks: list[dict[str, Any]] = [
        {"name": f"{module} as {way}", f"edge.moe.{module}": {}, "register": f"__{way}_{module}", **how}
        for way, how in WAYS.items()
        for module in MODULES
    ]
    combined = {
        way: "{{ " + " | combine(".join(f"__{way}_{module}.ansible_facts" for module in MODULES) + "))" + " }}"
        for way in WAYS
    }
    tasks.append(
        {
            "name": "Keep what they said",
            "ansible.builtin.copy": {"content": "{{ _all | to_json }}", "dest": str(written), "mode": "0600"},
            "vars": {"_all": combined},
            "delegate_to": "localhost",
            "become": False,
        }
    )
    book = folder / "facts.yml"
    book.write_text(json.dumps([{"hosts": host.backend.get_hostname(), "gather_facts": False, "tasks": tasks}]))
    inventory = Path(os.environ.get("MOLECULE_SCENARIO_DIRECTORY") or Path(__file__).parents[1]) / "inventory"
    done = run_playbook(book, inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Facts] = json.loads(written.read_text())
    return found


@pytest.fixture(scope="module")
def as_root(gathered: dict[str, Facts]) -> Facts:
    return gathered["root"]


@pytest.fixture(scope="module")
def said(host: Any) -> dict[str, str]:
    """What the board's files say, in one command."""
    names = {
        "release": "/etc/nv_tegra_release",
        "kernel": "/proc/sys/kernel/osrelease",
        "min": "/sys/class/devfreq/17000000.gpu/min_freq",
        "max": "/sys/class/devfreq/17000000.gpu/max_freq",
        "table": "/sys/class/devfreq/17000000.gpu/available_frequencies",
        "read_ahead": "/sys/block/nvme0n1/queue/read_ahead_kb",
        "meminfo": "/proc/meminfo",
        "swaps": "/proc/swaps",
        "online": "/sys/devices/system/cpu/online",
    }
    script = "; ".join(f"echo '@@ {name}'; cat {path}" for name, path in names.items())
    out = str(host.check_output("sh -c %s", script))
    parts = (chunk.partition("\n") for chunk in ("\n" + out).split("\n@@ ")[1:])
    return {name: text.strip() for name, _, text in parts}


def test_what_the_board_is(as_root: Facts, said: dict[str, str]) -> None:
    board = as_root["edge_moe_jetson"]
    assert (board["is_jetson"], board["board"], board["super"]) == (True, "orin-nano-8gb", True)
    assert (board["soc"], board["cgroup_version"], board["uprobes"]) == ("tegra234", 2, True)
    assert board["kernel"] == said["kernel"]
    assert f"R{board['l4t']['release_file'].split('.')[0]} " in said["release"]
    assert board["l4t"]["agree"] is True
    assert board["cuda"] is None
    assert any("no CUDA compiler" in warning for warning in board["warnings"])


def test_memory_swap_and_drive(as_root: Facts, said: dict[str, str]) -> None:
    board = as_root["edge_moe_jetson"]
    total_kb = next(int(line.split()[1]) for line in said["meminfo"].splitlines() if line.startswith("MemTotal"))
    assert board["memory"]["total_bytes"] == total_kb * 1024
    assert 0 < board["memory"]["available_bytes"] < board["memory"]["total_bytes"]
    assert board["memory"]["largest_free_block_bytes"] > 0
    assert {swap["device"] for swap in board["swap"]} == {line.split()[0] for line in said["swaps"].splitlines()[1:]}
    assert all(swap["zram"] for swap in board["swap"])
    (drive,) = board["nvme"]
    assert (drive["name"], str(drive["read_ahead_kb"])) == ("nvme0n1", said["read_ahead"])
    assert drive["health"]["state"] == "live"


def test_power_mode_and_its_truth(as_root: Facts) -> None:
    mode = as_root["edge_moe_jetson"]["power_mode"]
    assert mode["name"] == "MAXN_SUPER"
    assert mode["label_true"] is True, mode["label_note"]
    assert as_root["edge_moe_jetson"]["jetson_clocks"] is False


def test_gpu_and_floor(as_root: Facts, said: dict[str, str]) -> None:
    (node,) = as_root["edge_moe_devfreq"]["nodes"]
    assert node["available_hz"] == sorted(int(word) for word in said["table"].split())
    assert (str(node["min_hz"]), str(node["max_hz"])) == (said["min"], said["max"])
    assert node["pinned_externally"] is False
    floor = as_root["edge_moe_devfreq"]["floor"]
    assert floor["unit"] == "active"
    assert floor["degraded"] in ("", None)


def test_cache_of_the_running_server(as_root: Facts) -> None:
    facts = as_root["edge_moe_expert_cache"]
    running = [server for server in facts["servers"] if server["running"]]
    assert len(running) == 1
    (server,) = running
    assert server["mode"] == "cache"
    assert 0 < server["delivered_bytes"] <= server["asked_bytes"]
    assert server["verdict"] in ("healthy", "thrashing", "inert"), server["explanation"]
    assert facts["explanation"]


def stable(facts: Facts) -> Facts:
    """What cannot change between two looks at an idle board."""
    board = facts["edge_moe_jetson"]
    kept = {key: board[key] for key in ("board", "super", "soc", "l4t", "jetpack", "kernel", "power_mode", "cores")}
    kept["total_bytes"] = board["memory"]["total_bytes"]
    kept["nodes"] = [(node["path"], node["max_hz"]) for node in facts["edge_moe_devfreq"]["nodes"]]
    return kept


def test_check_mode_sees_the_same(gathered: dict[str, Facts]) -> None:
    assert stable(gathered["check"]) == stable(gathered["root"])


def test_a_normal_user_sees_less_and_is_told(gathered: dict[str, Facts]) -> None:
    root, user = gathered["root"]["edge_moe_jetson"], gathered["user"]["edge_moe_jetson"]
    for key in ("board", "super", "soc", "l4t", "jetpack", "kernel", "cores"):
        assert user[key] == root[key]
    assert user["memory"]["total_bytes"] == root["memory"]["total_bytes"]
    # what only root may read is null there, and every null has its warning
    assert len(user["warnings"]) >= len(root["warnings"])
    assert gathered["user"]["edge_moe_devfreq"]["nodes"][0]["max_hz"] == 1_020_000_000
