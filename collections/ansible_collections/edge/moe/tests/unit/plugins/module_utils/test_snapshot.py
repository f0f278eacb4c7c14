# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _snapshot
from ansible_collections.edge.moe.plugins.module_utils._host import Host

STATUS = """\
Package: libgomp1
Status: install ok installed
Architecture: arm64
Description: words
 Status: hold ok installed
Version: 12.3

Package: libgomp1
Status: install ok installed
Architecture: armhf
Version: 12.3

Package: nvidia-l4t-core
Status: hold ok installed
Version: 36.4.7

Package: old
Status: deinstall ok config-files
Version: 1

Package: never
Status: purge ok not-installed

Package: ../../etc
Status: install ok installed
Version: 1

Package: short
Status: install
"""


def look(**more: Any) -> dict[str, Any]:
    """A look at a board as it is found."""
    base: dict[str, Any] = {
        "packages": {
            "libc6": ["install", "installed", "2.39"],
            "nvidia-l4t-core": ["install", "installed", "36.4.7"],
        },
        "units": {"nvzramconfig.service": "enabled"},
        "power_mode": "25W",
        "swap": {"/dev/zram0": 5, "/dev/zram1": 5},
        "zram_ready": ["/dev/zram0", "/dev/zram1"],
        "read_ahead_kb": {"nvme0n1": 128},
        "clocks": {"/sys/devices/gpu": [306000000, 1020000000]},
        "accounts": {"user": {"root": "x:0"}, "group": {"root": "x:0"}},
        "files": {"/opt": "folder 0755 0:0"},
    }
    return {**base, **more}


NOTHING: dict[str, Any] = {
    "purge": [], "remove": [], "unhold": [], "enable": [], "start": [], "swap_on": {}, "power_mode": None,
    "read_ahead_kb": {},
}  # fmt: skip


def test_packages_of_dpkg() -> None:
    assert _snapshot.parse_packages(STATUS) == {
        "libgomp1": ["install", "installed", "12.3"],
        "libgomp1:armhf": ["install", "installed", "12.3"],
        "nvidia-l4t-core": ["hold", "installed", "36.4.7"],
        "old": ["deinstall", "config-files", "1"],
    }
    assert _snapshot.installed(_snapshot.parse_packages(STATUS)) == {"libgomp1", "libgomp1:armhf", "nvidia-l4t-core"}
    assert _snapshot.parse_packages("\0\n\n:\n\n::") == {}


def test_swap_and_units_and_accounts() -> None:
    swaps = "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 100 0 5\n/swap\\040file file 100 0 -2\nodd\n"
    assert _snapshot.parse_priorities(swaps) == {"/dev/zram0": 5, "/swap file": 0}
    assert _snapshot.parse_units("a.service enabled enabled\nb.service static -\n\nword\n") == {
        "a.service": "enabled",
        "b.service": "static",
    }
    assert _snapshot.parse_accounts("edge-moe:x:999:999::/nonexistent:/usr/sbin/nologin\n\nodd\n") == {
        "edge-moe": "x:999:999::/nonexistent:/usr/sbin/nologin"
    }


def test_files_are_told_apart_and_only_as_deep_as_asked(tmp_path: Path) -> None:
    place = tmp_path / "opt" / "edge-moe"
    (place / "sub" / "deeper" / "deepest").mkdir(parents=True)
    (place / "sub" / "text").write_text("one")
    (place / "big").write_bytes(b"x" * (_snapshot.HASHED_LIMIT + 1))
    (place / "link").symlink_to("nowhere")
    os.mkfifo(place / "fifo")
    host = Host(str(tmp_path))
    found = _snapshot.list_files(host, {"/opt/edge-moe": 2, "/none": 3})
    owned = f"{os.geteuid()}:{os.getegid()}"
    assert set(found) == {
        "/opt/edge-moe",
        *(f"/opt/edge-moe/{name}" for name in ("big", "fifo", "link", "sub", "sub/deeper", "sub/text")),
    }
    assert found["/opt/edge-moe/link"] == "link to nowhere"
    assert found["/opt/edge-moe/big"].endswith(f"{owned} {_snapshot.HASHED_LIMIT + 1} bytes")
    assert found["/opt/edge-moe/fifo"].startswith("special file ")
    before = found["/opt/edge-moe/sub/text"]
    (place / "sub" / "text").write_text("two")
    assert _snapshot.list_files(host, {"/opt/edge-moe": 2})["/opt/edge-moe/sub/text"] != before


def test_a_folder_of_the_inventory_is_looked_into_with_all_that_leads_to_it() -> None:
    places = _snapshot.places_of(["/mnt/nvme/models", "/etc/edge-moe"])
    assert {path: places[path] for path in ("/mnt", "/mnt/nvme", "/mnt/nvme/models")} == {
        "/mnt": 0,
        "/mnt/nvme": 0,
        "/mnt/nvme/models": 1,
    }
    assert places["/etc/edge-moe"] == _snapshot.PLACES["/etc/edge-moe"], "a usual place keeps its depth"


def test_a_board_without_anything_is_looked_at_all_the_same(tmp_path: Path) -> None:
    found = _snapshot.gather(Host(str(tmp_path)))
    assert (found["packages"], found["swap"], found["read_ahead_kb"], found["files"]) == ({}, {}, {}, {})
    assert set(found) == set(look())


def test_a_board_that_is_as_it_was_needs_nothing_and_differs_in_nothing() -> None:
    assert _snapshot.undo(look(), look(), []) == NOTHING
    assert _snapshot.differences(look(), look(), {}, {}) == []


def test_all_that_the_roles_set_is_put_back() -> None:
    changed = look(
        packages={
            "libc6": ["install", "installed", "2.39"],
            "libgomp1": ["install", "installed", "12.3"],
            "cmake": ["install", "installed", "3"],
            "nvidia-l4t-core": ["hold", "installed", "36.4.7"],
        },
        units={"nvzramconfig.service": "disabled"},
        power_mode="MAXN_SUPER",
        swap={},
        read_ahead_kb={"nvme0n1": 32},
    )
    before = look(swap={"/dev/zram0": 5, "/dev/zram1": -2})
    before["packages"]["cmake"] = ["deinstall", "config-files", "3"]
    assert _snapshot.undo(before, changed, ["cmake", "libgomp1"]) == {
        "purge": ["libgomp1"],
        "remove": ["cmake"],
        "unhold": ["nvidia-l4t-core"],
        "enable": ["nvzramconfig.service"],
        "start": [],
        "swap_on": {"/dev/zram0": 5, "/dev/zram1": -1},
        "power_mode": "25W",
        "read_ahead_kb": {"nvme0n1": 128},
    }
    changed["zram_ready"] = []  # as after a boot without it
    undone = _snapshot.undo(before, changed, [])
    assert (undone["start"], undone["swap_on"]) == (["nvzramconfig.service"], {})


def test_what_the_user_had_set_is_left() -> None:
    found = look(
        packages={"nvidia-l4t-core": ["hold", "installed", "36.4.7"], "docker": ["install", "installed", "1"]},
        units={"nvzramconfig.service": "disabled"},
        swap={"/swapfile": -2},
        zram_ready=[],
    )
    later = copy.deepcopy(found)
    later["packages"]["docker"][0] = "hold"
    assert _snapshot.undo(found, later, []) == NOTHING
    (difference,) = _snapshot.differences(found, later, {}, {})
    assert (difference.what, difference.name, difference.why) == ("hold", "docker", _snapshot.WHY["hold"])


@pytest.mark.parametrize(
    "before",
    [
        {},
        {"packages": [], "units": None, "swap": "x", "read_ahead_kb": [1], "power_mode": 3, "clocks": 1, "files": "/"},
        {
            "packages": {"libc6": 5, "nvidia-l4t-core": "install"},
            "swap": {"/dev/sda1; reboot": 5, "/dev/zram0": "--all"},
        },
        {"swap": {"/dev/zram1/../sda": 1}, "read_ahead_kb": {"../../sda": 1, "nvme0n1": "1"}, "units": {"x": 1}},
        {"swap": {"/dev/zram0": float("inf")}, "read_ahead_kb": {"nvme0n1": True}, "clocks": {"a": [1]}},
    ],
)
def test_a_snapshot_that_somebody_has_changed_undoes_nothing(before: dict[str, Any]) -> None:
    now = look(swap={})
    now["packages"]["nvidia-l4t-core"][0] = "hold"
    assert _snapshot.undo(before, now, []) == NOTHING
    for difference in _snapshot.differences(before, now, {}, {}):
        assert "\n" not in difference.line


def test_each_difference_has_its_reason() -> None:
    now = look(
        packages={
            "libc6": ["install", "installed", "2.40"],
            "nvidia-l4t-core": ["install", "installed", "36.4.7"],
            "libgomp1": ["install", "installed", "12.3"],
        },
        power_mode="MAXN_SUPER",
        clocks={"/sys/devices/gpu": [305965000, 1020000000]},
        accounts={"user": {"root": "x:0", "bob": "x:1000"}, "group": {"root": "x:0"}},
        files={
            "/opt": "folder 0755 0:0",
            "/mnt/nvme": "folder",
            "/mnt/nvme/models/a.gguf": "file\n1",
            "/etc/x": "file",
        },
    )
    found = _snapshot.differences(look(), now, {"libgomp1": ["ffmpeg"]}, {"/mnt/nvme/models": "yours"})
    assert [each.line for each in found] == [
        f"package libc6: install installed 2.39 -> install installed 2.40 ({_snapshot.WHY['package']})",
        "package libgomp1: not there -> install installed 12.3 (needed by ffmpeg)",
        f"power mode: 25W -> MAXN_SUPER ({_snapshot.WHY['power mode']})",
        f"user bob: not there -> x:1000 ({_snapshot.WHY['account']})",
        f"file /etc/x: not there -> file ({_snapshot.WHY['file']})",
        "file /mnt/nvme: not there -> folder (yours)",
        "file /mnt/nvme/models/a.gguf: not there -> file 1 (yours)",
    ]
    assert _snapshot.reason_for("/mnt/nvme/models2", {"/mnt/nvme/models": "yours"}) == _snapshot.WHY["file"]
    gone = _snapshot.differences(look(), look(clocks={}), {}, {})
    assert [each.line for each in gone] == [
        f"clock /sys/devices/gpu: 306000000 1020000000 -> gone ({_snapshot.WHY['clock']})"
    ]


class Apt:
    """A resolver over `NAME: needed by these`, and what nothing needs without some packages."""

    def __init__(self, needed_by: dict[str, list[str]], leaves: dict[str, list[str]] | None = None) -> None:
        self.needed_by, self.leaves = needed_by, leaves or {}
        self.asked: list[tuple[list[str], bool]] = []

    def __call__(self, names: list[str], unneeded: bool) -> list[str]:
        self.asked.append((names, unneeded))
        gone, pending = set(names), list(names)
        while pending:
            more = set(self.needed_by.get(pending.pop(), [])) - gone
            gone |= more
            pending += more
        return sorted(gone | {leaf for name in names if unneeded for leaf in self.leaves.get(name, [])})


def there(*names: str) -> dict[str, list[str]]:
    return {name: ["install", "installed", "1"] for name in names}


def test_what_came_along_goes_and_what_was_there_or_is_needed_stays() -> None:
    apt = Apt({"libgomp1": ["ffmpeg"]}, {"cmake": ["cmake-data", "libold"]})
    goes, kept = _snapshot.removable(
        ["cmake", "libgomp1", "curl", "never"],
        there("curl", "libold"),
        there("curl", "libold", "cmake", "cmake-data", "libgomp1", "ffmpeg"),
        apt,
    )
    assert goes == ["cmake", "cmake-data"]
    assert kept == {"libgomp1": ["ffmpeg"]}


def test_what_one_that_stays_needs_stays_too() -> None:
    apt = Apt({"build-essential": ["devtools"], "g++": ["build-essential"]})
    now = there("build-essential", "g++", "devtools")
    goes, kept = _snapshot.removable(["build-essential", "g++"], {}, now, apt)
    assert goes == []
    assert kept == {"build-essential": ["devtools"], "g++": ["devtools"]}


def test_nothing_is_asked_where_nothing_was_added() -> None:
    apt = Apt({})
    assert _snapshot.removable([], {}, there("a"), apt) == ([], {})
    assert _snapshot.removable(["a"], there("a"), there("a"), apt) == ([], {})
    assert apt.asked == []


def test_a_simulation_of_apt() -> None:
    said = "NOTE: only a simulation\nRemv cmake [3.2]\nPurg libgomp1:armhf [12]\nInst x [1]\nRemv $(reboot) [1]\n"
    assert _snapshot.parse_simulation(said) == ["cmake", "libgomp1:armhf"]


def test_what_was_seen_in_a_folder_of_another_name_is_looked_at_again(tmp_path: Path) -> None:
    (tmp_path / "srv/models").mkdir(parents=True)
    (tmp_path / "srv/models/new.gguf").touch()
    host = Host(str(tmp_path))
    before = _snapshot.list_files(host, _snapshot.places_of(["/srv/models"]))
    now = _snapshot.list_files(host, _snapshot.places_of([]))
    assert "/srv" in before
    assert now == {}
    assert _snapshot.found_again(host, before, now) == before
    (tmp_path / "srv/models/new.gguf").unlink()
    assert sorted(_snapshot.found_again(host, before, now)) == ["/srv", "/srv/models"]
    assert _snapshot.found_again(host, before, before) == {}


@pytest.mark.parametrize(
    "before", [None, [], "/srv", {"srv": "folder"}, {"/srv\0": "folder"}, {"/\ud800": "file"}, {"": ""}]
)
def test_names_that_no_path_has_are_of_nothing(tmp_path: Path, before: Any) -> None:
    (tmp_path / "srv").mkdir()
    assert _snapshot.found_again(Host(str(tmp_path)), before, {}) == {}
