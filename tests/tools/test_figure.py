# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from edge_moe_testbed import bench
from edge_moe_testbed.bench.figure import Figure, load_figures


def test_written_file_has_the_agreed_keys_and_reads_back(tmp_path: Path) -> None:
    figure = Figure("decode_ratio", 2.5, "x", 4.0, "higher", {"runs": [1, 2]})
    path = figure.write(tmp_path)
    assert set(json.loads(path.read_text())) == {"name", "value", "unit", "goal", "better", "detail"}
    assert load_figures(tmp_path) == [figure]


@pytest.mark.parametrize(
    ("value", "better", "met"),
    [(4.0, "higher", True), (3.9, "higher", False), (4.0, "lower", True), (4.1, "lower", False)],
)
def test_goal_follows_the_direction(value: float, better: str, met: bool) -> None:
    assert Figure("f", value, "x", 4.0, better).met() is met


def test_unknown_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="sideways"):
        Figure("f", 1, "x", 1, "sideways")


def test_table_says_what_is_not_met(capsys: pytest.CaptureFixture[str]) -> None:
    bench.print_table([Figure("decode_ratio", 2.5, "x", 4.0, "higher")])
    assert capsys.readouterr().out.splitlines()[1].split() == ["decode_ratio", "2.500", "x", ">=4", "no"]


def test_every_benchmark_loads_where_nobody_set_a_path(tmp_path: Path) -> None:
    """As ``make bench`` starts it: pytest's own path has the collection, and hid that one could not be imported."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = "from edge_moe_testbed import bench\nfor name in bench.BENCHES: assert callable(bench.load(name).measure)"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
