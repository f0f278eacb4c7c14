# SPDX-License-Identifier: GPL-3.0-or-later
"""The devfreq code on the trees that the clock-floor service is tested on too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils._devfreq import (
    Node,
    Sysfs,
    choose_floor,
    is_gpu,
    parse_hz,
    parse_table,
    same_hz,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "sysfs"


def nodes_of(board: str) -> list[Node]:
    return Sysfs(str(FIXTURES / board)).gpu_nodes()


def a_node(**changes: Any) -> Node:
    node = Node("n", "/n", "gpu", (306, 612, 1020), 306, 1020, 306, "g", None)
    return node._replace(**changes)


def test_orin_nano_super_says_everything_and_the_decoder_is_no_gpu() -> None:
    (node,) = nodes_of("orin-nano-super")
    assert node == Node(
        name="17000000.gpu",
        path="/sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu",
        of_node_name="gpu",
        available_hz=(
            306000000,
            408000000,
            510000000,
            612000000,
            714000000,
            816000000,
            918000000,
            1020000000,
        ),
        min_hz=306000000,
        max_hz=1020000000,
        cur_hz=305965000,
        governor="nvhost_podgov",
        load_permille=360,
    )
    assert not node.pinned
    assert same_hz(node.cur_hz, node.min_hz), "a clock a little off the table is that entry"


@pytest.mark.parametrize(
    ("board", "names", "highest"),
    [
        ("orin-nano", ["17000000.gpu"], [624750000]),
        ("orin-nano-jetpack5", ["17000000.ga10b"], [624750000]),
        ("orin-nano-15w", ["17000000.gpu"], [612000000]),
        ("thor", ["gpu-gpc-0", "gpu-nvd-0"], [1575000000, 1692000000]),
    ],
)
def test_which_nodes_are_found_and_what_the_highest_floor_is(board: str, names: list[str], highest: list[int]) -> None:
    nodes = nodes_of(board)
    assert [node.name for node in nodes] == names
    assert [choose_floor(node, 0) for node in nodes] == highest


def test_load_of_jetpack_5_is_kept_elsewhere() -> None:
    assert nodes_of("orin-nano-jetpack5")[0].load_permille == 125


def test_jetson_clocks_is_seen_as_pinned() -> None:
    assert nodes_of("orin-nano-jetson-clocks")[0].pinned


def test_odd_answers_become_none_and_never_an_exception() -> None:
    # its NULs are among what is odd, and tell tools that read every text file that these are none
    plain, gv11b = nodes_of("odd")
    assert (plain.name, gv11b.name) == ("17000000.gpu", "17000001.gv11b")
    assert gv11b.available_hz == (306000000, 1020000000)
    assert (gv11b.max_hz, gv11b.cur_hz, gv11b.load_permille) == (None, None, None)
    assert gv11b.governor == "nvhost_\ufffdpodgov"
    assert not gv11b.pinned
    assert choose_floor(gv11b, 0) == 1020000000


@pytest.mark.parametrize(
    ("board", "seen"),
    [
        ("no-gpu", "/sys/class/devfreq has 15480000.nvdec"),
        ("no-devfreq", "/sys/class/devfreq does not exist"),
    ],
)
def test_a_machine_without_a_gpu_node_says_what_there_is(board: str, seen: str) -> None:
    sysfs = Sysfs(str(FIXTURES / board))
    assert sysfs.gpu_nodes() == []
    assert sysfs.seen() == seen


@pytest.mark.parametrize(
    ("requested", "max_hz", "expected"),
    [
        (0, 1020, 1020),
        (612, 1020, 612),
        (613, 1020, 1020),
        (1, 1020, 306),
        (5000, 1020, 1020),
        (0, 612, 612),
        (1020, 700, 700),
        (0, None, 1020),
    ],
)
def test_choose_snaps_up_and_clamps_to_max(requested: int, max_hz: int | None, expected: int) -> None:
    assert choose_floor(a_node(max_hz=max_hz), requested) == expected


def test_choose_without_a_table_uses_max_and_without_both_gives_none() -> None:
    assert choose_floor(a_node(available_hz=()), 0) == 1020
    assert choose_floor(a_node(available_hz=(), max_hz=None), 0) is None


def test_one_single_frequency_is_not_pinned() -> None:
    assert not a_node(available_hz=(306,), min_hz=306, max_hz=306).pinned


@pytest.mark.parametrize(
    ("entry", "of_node", "expected"),
    [
        ("17000000.gpu", "gpu", True),
        ("17000000.gpu", None, True),
        ("57000000.gv11b", "gv11b", True),
        ("gpu-gpc-0", None, True),
        ("gpu-nvd-0", "pcie", True),
        ("gpu-other-0", None, False),
        ("15480000.nvdec", "nvdec", False),
        ("13d00000.emc", None, False),
    ],
)
def test_is_gpu(entry: str, of_node: str | None, expected: bool) -> None:
    assert is_gpu(entry, of_node) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("306000000\n", 306000000), ("", None), (None, None), ("-5", None), ("x", None), ("5 x", 5)],
)
def test_parse_hz(text: str | None, expected: int | None) -> None:
    assert parse_hz(text) == expected


def test_parse_table_sorts_and_drops_what_is_no_number() -> None:
    assert parse_table("612 306\n306 \u0663 1e3 -4") == (306, 612)


def test_same_hz_keeps_neighbouring_entries_apart() -> None:
    assert same_hz(305965000, 306000000)
    assert not same_hz(612000000, 624750000)
    assert same_hz(None, None)
    assert not same_hz(None, 5)


def test_write_min_writes_and_reads_back(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "orin-nano-super", tmp_path / "board", symlinks=True)
    sysfs = Sysfs(str(tmp_path / "board"))
    (node,) = sysfs.gpu_nodes()
    assert sysfs.write_min(node.path, 1020000000) == 1020000000
    assert sysfs.write_min(node.path, 306000000) == 306000000
    shutil.rmtree(tmp_path / "board" / "sys" / "class" / "devfreq" / ".." / ".." / "devices")
    with pytest.raises(FileNotFoundError):
        sysfs.write_min(node.path, 306000000)
