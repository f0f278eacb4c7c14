# SPDX-License-Identifier: GPL-3.0-or-later
"""The figure of what measuring costs: its arithmetic, and the pretended board that gives something to sample."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ansible_collections.edge.moe.plugins.module_utils._devfreq import Sysfs
from ansible_collections.edge.moe.plugins.module_utils._server_unit import Unit
from ansible_collections.edge.moe.plugins.module_utils._watch import Watch
from edge_moe_testbed import bench
from edge_moe_testbed.bench import measure_cost


def test_it_is_registered() -> None:
    assert "measure_cost" in bench.BENCHES


@pytest.mark.parametrize(
    ("speeds", "lost"),
    [
        ([(10.0, 9.5), (10.0, 9.8), (20.0, 19.0)], 0.05),
        ([(10.0, 10.1), (10.0, 10.2), (10.0, 5.0)], 0.0),
        ([(10.0, 9.9), (10.0, 10.0)], 0.005),
    ],
)
def test_the_median_of_the_pairs_and_never_below_nothing(speeds: list[tuple[float, float]], lost: float) -> None:
    pairs = [{"bare": bare, "measured": measured} for bare, measured in speeds]
    assert measure_cost.cost(pairs) == pytest.approx(lost)


def test_the_pretended_board_has_every_source(tmp_path: Path) -> None:
    board = measure_cost.Board(tmp_path, os.getpid())
    unit = Unit(board, measure_cost.UNIT)
    with Watch(board, Sysfs(board.root).gpu_nodes()[0], unit.group_dir) as watch, watch.busy():
        time.sleep(0.05)
    seen = watch.summary()
    assert [name for name, value in seen.items() if value is None] == []
    assert seen["gpu"]["load"] is not None
    assert set(measure_cost.SOURCES) < set(seen)
    assert (unit.pid, unit.swap_max(), unit.oom_kills_since()) == (os.getpid(), "0", 0)
    assert unit.major_faults() is not None
