# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts below are of our own writing, in the forms that boards and tools print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _power, _sensors
from ansible_collections.edge.moe.plugins.module_utils._devfreq import Node
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from hypothesis import given
from hypothesis import strategies as st

MIB = 1 << 20
SUPER_TABLE = (306_000_000, 612_000_000, 918_000_000, 1_020_000_000)
BASE_TABLE = (306_000_000, 510_000_000, 624_750_000)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (
            "Node 0, zone      DMA      1      1      0      0      2      1      1      0      1      1    105\n",
            4 * MIB,
        ),
        ("Node 0, zone   Normal    9    9    9    0    0    0    0    0    0    0    0", 16 * 1024),
        ("Node 0, zone  DMA 0 0 0\nNode 0, zone Normal 5 0 3\n", 16 * 1024),
        ("Node 0, zone  Movable 0 0 0 0", 0),
        # kernels with larger pages or more orders print longer lines
        ("Node 1, zone Normal 1 1 1 1 1 1 1 1 1 1 1 1 1 7", 32 * MIB),
        ("", None),
        ("Node 0 zone", None),
        ("Node 0, zone Normal x y", None),
    ],
)
def test_largest_free_block(text: str, size: int | None) -> None:
    assert _sensors.parse_largest_free_block(text) == size


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("CLIENT PROCESS PID SIZE\nuser llama-server 812 424960K\ntotal 424960K\n", 415 * MIB),
        ("total                                          0K", 0),
        ("total   1 2 1048576B", 1048576),
        ("TOTAL: 12M", 12 * MIB),
        ("user  total-eater 9 9K", None),
        ("", None),
    ],
)
def test_nvmap_total(text: str, held: int | None) -> None:
    assert _sensors.parse_nvmap_clients(text) == held


@pytest.mark.parametrize(
    ("text", "degrees"),
    [
        ("50218\n", 50.218),
        ("-5000", -5.0),
        ("0", 0.0),
        ("-256000", None),
        ("999999", None),
        ("N/A", None),
        (None, None),
    ],
)
def test_temperature(text: str | None, degrees: float | None) -> None:
    assert _sensors.parse_millidegrees(text) == degrees


@pytest.mark.parametrize(
    ("text", "log"),
    [
        (
            '{"critical_warning":0,"temperature":315,"avail_spare":100,"percent_used":1,"media_errors":0}',
            {"critical_warning": 0, "percent_used": 1, "media_errors": 0},
        ),
        ('{"critical_warning":{"value":4,"ro":1},"percentage_used":101}', {"critical_warning": 4, "percent_used": 101}),
        ('{"media_errors":"18446744073709551616"}', {"media_errors": 18446744073709551616}),
        ('{"percent_used":true}', None),
        ("{}", None),
        ("[]", None),
        ("Smart Log for NVME device:nvme0 namespace-id:ffffffff", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_smart_log(text: str, log: dict[str, int] | None) -> None:
    assert _sensors.parse_smart_log(text) == log


def test_a_drive_without_its_tool_warns_and_keeps_what_the_kernel_says(make_host: Callable[..., Host]) -> None:
    warnings: list[str] = []
    host = make_host(
        {"/sys/class/nvme/nvme1/state": "resetting\n", "/sys/class/nvme/nvme1/device/hwmon0/temp1_input": "61000"}
    )
    health = _sensors.nvme_health(host, "nvme1", warnings)
    assert (health["state"], health["celsius"], health["percent_used"]) == ("resetting", 61.0, None)
    assert warnings == ["wear and errors of nvme1 are not known: nvme smart-log: not found"]


def test_a_zone_that_is_switched_off_is_listed_without_a_temperature(make_host: Callable[..., Host]) -> None:
    host = make_host(
        {"/sys/class/thermal/thermal_zone10/type": "cv0-thermal", "/sys/class/thermal/thermal_zone2/temp": "1000"}
    )
    assert _sensors.thermal_zones(host) == [
        {"name": "thermal_zone2", "celsius": 1.0, "hot_celsius": None},
        {"name": "cv0-thermal", "celsius": None, "hot_celsius": None},
    ]


CONF = """\
# < POWER_MODEL ID=9 NAME=OLD >
< PARAM TYPE=FILE NAME=GPU >
MAX_FREQ /sys/class/devfreq/17000000.gpu/max_freq
< POWER_MODEL ID=0 NAME=15W >
CPU_ONLINE CORE_0 1
GPU MIN_FREQ 0
GPU MAX_FREQ 612000000
EMC MAX_FREQ 2133000000
< POWER_MODEL ID=1 NAME=25W >
GPU MAX_FREQ 918000000   # a remark
< POWER_MODEL ID=2 NAME=MAXN_SUPER >
GPU MAX_FREQ -1
EMC MAX_FREQ 0
< PM_CONFIG DEFAULT=1 >
GPU MAX_FREQ 5
"""


def test_caps_by_mode() -> None:
    assert _power.parse_conf(CONF) == {
        0: {"name": "15W", "gpu_cap_hz": 612_000_000, "emc_cap_hz": 2_133_000_000},
        1: {"name": "25W", "gpu_cap_hz": 918_000_000, "emc_cap_hz": None},
        2: {"name": "MAXN_SUPER", "gpu_cap_hz": None, "emc_cap_hz": None},
    }


def node(table: tuple[int, ...], max_hz: int | None) -> Node:
    return Node("17000000.gpu", "/sys/x", "gpu", table, table[0] if table else None, max_hz, None, None, None)


@pytest.mark.parametrize(
    ("name", "cap", "super_clocks", "nodes", "true", "says"),
    [
        ("MAXN_SUPER", None, True, [node(SUPER_TABLE, 1_020_000_000)], True, "up to 1020 MHz"),
        (
            "MAXN_SUPER",
            None,
            False,
            [node(BASE_TABLE, 624_750_000)],
            False,
            "without Super clocks: the GPU ends at 624.75",
        ),
        ("15W", 612_000_000, True, [node(SUPER_TABLE, 612_000_000)], True, "as 15W says"),
        # the cap lies between two entries of the table
        ("10W", 700_000_000, True, [node(SUPER_TABLE, 612_000_000)], True, "as 10W says"),
        ("25W", 918_000_000, True, [node(SUPER_TABLE, 612_000_000)], False, "something else set it"),
        ("25W", 918_000_000, None, [node(BASE_TABLE, 624_750_000)], False, "table ends at 624.75 MHz"),
        ("25W", 918_000_000, True, [], None, "label stands alone"),
        ("25W", 918_000_000, True, [node((), None)], None, "label stands alone"),
        ("MAXN", None, None, [node(SUPER_TABLE, 1_019_900_000)], True, "as MAXN says"),
    ],
)
def test_whether_the_label_is_true(
    name: str, cap: int | None, super_clocks: bool | None, nodes: list[Node], true: bool | None, says: str
) -> None:
    verdict, note = _power.truth(name, cap, super_clocks, nodes)
    assert verdict is true
    assert says in note


@given(
    st.text(max_size=20),
    st.none() | st.integers(0, 1 << 40),
    st.lists(st.integers(0, 1 << 34), max_size=5),
    st.none() | st.integers(0, 1 << 34),
)
def test_any_clocks_are_judged(name: str, cap: int | None, table: list[int], max_hz: int | None) -> None:
    assert _power.truth(name, cap, None, [node(tuple(sorted(table)), max_hz)])[1]


PARSERS: list[Callable[[str], Any]] = [
    _sensors.parse_largest_free_block,
    _sensors.parse_nvmap_clients,
    _sensors.parse_millidegrees,
    _sensors.parse_smart_log,
    _power.parse_conf,
]


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
@given(text=st.text(max_size=300))
def test_no_text_breaks_a_parser(parser: Callable[[str], Any], text: str) -> None:
    parser(text)
