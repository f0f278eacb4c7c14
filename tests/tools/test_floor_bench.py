# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
from edge_moe_testbed import bench
from edge_moe_testbed.bench import floor_service
from edge_moe_testbed.bench.figure import BenchError
from edge_moe_testbed.bench.floor_reaction_ms import percentile

FLOOR = sorted(name for name in bench.BENCHES if name.startswith("floor_"))


def test_the_four_figures_of_the_clock_floor_are_registered() -> None:
    assert FLOOR == ["floor_call_us", "floor_idle_cpu", "floor_memory_mib", "floor_reaction_ms"]


@pytest.mark.parametrize("name", FLOOR)
def test_without_uprobes_each_says_what_is_missing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(floor_service, "UPROBES", tmp_path / "type")
    with pytest.raises(BenchError, match="CONFIG_UPROBE_EVENTS"):
        importlib.import_module(f"{bench.__name__}.{name}").measure()


@pytest.mark.parametrize("name", FLOOR)
def test_without_root_each_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BenchError, match="needs root"):
        importlib.import_module(f"{bench.__name__}.{name}").measure()


def test_percentile_is_a_value_that_was_seen() -> None:
    values = [float(number) for number in range(300, 0, -1)]
    assert percentile(values, 0.99) == 297
    assert percentile(values, 0.5) == 150
    assert percentile([7.0], 0.99) == 7
