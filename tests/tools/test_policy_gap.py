# SPDX-License-Identifier: GPL-3.0-or-later
"""The traces that policy_gap looks for and makes, and the figure that it takes from the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from edge_moe_testbed.bench import policy_gap
from edge_moe_testbed.bench.figure import BenchError


@pytest.mark.parametrize("name", policy_gap.SYNTHETIC)
def test_synthetic_traces_are_sound_and_repeat(name: str, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first = policy_gap.write_synthetic(name, tmp_path, tokens=50)
    again = policy_gap.write_synthetic(name, tmp_path / "again", tokens=50)
    assert first.read_text() == again.read_text()
    tokens = [json.loads(line) for line in first.read_text().splitlines()]
    assert len(tokens) == 50
    for token in tokens:
        assert len(token["layers"]) == 8
        assert all(len(set(layer)) == 4 and min(layer) >= 0 and max(layer) < 64 for layer in token["layers"])


def test_traces_are_looked_for_in_the_named_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_gap, "GIVEN_TRACES", tmp_path / "given")
    monkeypatch.delenv("EDGE_MOE_TRACES", raising=False)
    with pytest.raises(BenchError, match=r"no traces .* name a folder that has some in EDGE_MOE_TRACES"):
        policy_gap.recorded_traces()
    monkeypatch.setenv("EDGE_MOE_TRACES", str(tmp_path / "nowhere"))
    with pytest.raises(BenchError, match="nowhere': not a folder"):
        policy_gap.recorded_traces()
    for name in ("given/a.csv", "given/LICENSE", "more/b.jsonl", "more/c.trace"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.setenv("EDGE_MOE_TRACES", str(tmp_path / "more"))
    assert [path.name for path in policy_gap.recorded_traces()] == ["a.csv", "b.jsonl", "c.trace"]


def test_means_are_those_of_the_default_policy_where_layers_hold_so_much() -> None:
    def result(*shares: tuple[float, float]) -> dict[str, object]:
        rows = [{"cycles": c, "policies": {"best": {"gap": share}, "lru": {"gap": 0.1}}} for c, share in shares]
        return {"default_policy": "best", "capacities": rows}

    traces = [result((1, 0.0), (2, 0.4), (3, 0.3)), result((1, 0.0), (2, 0.5))]
    assert policy_gap.mean_gaps(traces) == {1: 0.0, 2: 0.45, 3: 0.3}
