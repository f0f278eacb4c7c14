# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _health, _systemd
from hypothesis import given
from hypothesis import strategies as st

JETSON: dict[str, Any] = {
    "is_jetson": True,
    "board": "orin-nano-8gb",
    "l4t": {"version": "36.4.7", "release_file": "36.4.7", "package": "36.4.7-1", "agree": True},
    "power_mode": {"name": "MAXN_SUPER", "id": 2, "label_true": True, "label_note": ""},
    "memory": {"total_bytes": 8 << 30, "available_bytes": 5 << 30},
    "thermal": [{"name": "gpu-thermal", "celsius": 50.2, "hot_celsius": 97.0}, {"name": "cv0", "celsius": None}],
    "nvme": [
        {"name": "nvme0n1", "health": {"state": "live", "critical_warning": 0, "percent_used": 3, "media_errors": 0}}
    ],
}
NODE = {"name": "17000000.gpu", "cur_hz": 306_000_000, "max_hz": 1_020_000_000, "pinned_externally": False}
DEVFREQ: dict[str, Any] = {"nodes": [NODE], "floor": {"raised": False, "degraded": ""}}
SERVER = {"pid": 7, "running": True, "verdict": "healthy", "explanation": "x", "errors": 0, "hit_share": 0.667}
CACHE: dict[str, Any] = {"verdict": "healthy", "servers": [SERVER]}
UNITS = {"edge-moe-server.service": "active"}


def test_a_board_in_order() -> None:
    assert _health.problems_of(JETSON, DEVFREQ, CACHE, UNITS) == []
    line = _health.line_of(JETSON, DEVFREQ, CACHE, [])
    assert line == [
        "ok", "orin-nano-8gb", "36.4.7", "MAXN_SUPER", "306/1020 MHz", "healthy 67%", "low", "50 C", "5.0 GiB", "",
    ]  # fmt: skip
    assert len(line) == len(_health.COLUMNS) - 1


def test_nothing_known_is_no_problem() -> None:
    assert _health.problems_of({}, {}, {}, {}) == []
    assert _health.line_of({}, {}, {}, [])[1] == "no Jetson"


def nvme(**health: Any) -> dict[str, Any]:
    return {"nvme": [{"name": "nvme0n1", "health": health}]}


@pytest.mark.parametrize(
    ("jetson", "devfreq", "cache", "units", "says"),
    [
        ({}, {}, {}, {"edge-moe-server.service": "failed"}, "is failed and should run"),
        ({"l4t": {"agree": False, "release_file": "36.4.7", "package": "36.4.4"}}, {}, {}, {}, "finish the upgrade"),
        ({"power_mode": {"label_true": False, "label_note": "a lie"}}, {}, {}, {}, "a lie"),
        ({"thermal": [{"name": "tj", "celsius": 95.0, "hot_celsius": 97.0}]}, {}, {}, {}, "tj is at 95 of 97 degrees"),
        (nvme(state="dead"), {}, {}, {}, "nvme0n1 is dead"),
        (nvme(critical_warning=4), {}, {}, {}, "critical warning 4"),
        (nvme(percent_used=104), {}, {}, {}, "used 104%"),
        (nvme(media_errors=2), {}, {}, {}, "2 media errors"),
        ({"memory": {"total_bytes": 8 << 30, "available_bytes": 50 << 20}}, {}, {}, {}, "50 MiB of 8192"),
        ({}, {"nodes": [{**NODE, "pinned_externally": True}]}, {}, {}, "pinned at 1020 MHz"),
        ({}, {"floor": {"degraded": "no probe"}}, {}, {}, "cannot be held: no probe"),
        ({}, {}, {"servers": [{**SERVER, "verdict": "inert"}]}, {}, "cache of process 7 is inert: x; read its log"),
        ({}, {}, {"servers": [{**SERVER, "errors": 3}]}, {}, "3 failed reads"),
    ],
)
def test_each_problem_says_what_to_do(jetson: Any, devfreq: Any, cache: Any, units: Any, says: str) -> None:
    problems = _health.problems_of({**JETSON, **jetson}, {**DEVFREQ, **devfreq}, {**CACHE, **cache}, {**UNITS, **units})
    assert len(problems) == 1
    assert says in problems[0]


def test_a_dead_server_is_not_judged() -> None:
    cache = {"servers": [{**SERVER, "running": False, "verdict": "inert", "errors": 5}]}
    assert _health.problems_of(JETSON, DEVFREQ, cache, UNITS) == []


def test_the_table_has_a_line_for_each_and_keeps_problems_whole() -> None:
    long = "x" * 200
    lines = _health.table({"a": _health.line_of(JETSON, DEVFREQ, CACHE, [long]), "board-2": None}).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("a        1 wrong")
    assert lines[1].endswith(long)
    assert "SILENT" in lines[2]
    assert _health.table({}).split()[0] == "host"


SHOW = """\
Id=edge-moe-server.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled

Id=gone.service
LoadState=not-found
ActiveState=inactive
UnitFileState=

Id=off.service
LoadState=masked
ActiveState=inactive
UnitFileState=masked
"""


def test_units() -> None:
    assert _systemd.parse_show(SHOW) == {
        "edge-moe-server.service": ("active", True),
        "off.service": ("inactive", False),
    }


@given(st.text(max_size=300))
def test_any_text_of_systemd_is_read(text: str) -> None:
    _systemd.parse_show(text)
