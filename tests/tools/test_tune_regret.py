# SPDX-License-Identifier: GPL-3.0-or-later
"""The regret of the search, with a server that is a formula."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _gguf, _tune
from edge_moe_testbed.bench import load, serving
from edge_moe_testbed.bench.figure import BenchError
from edge_moe_testbed.bench.serving import Setting

MIB = 1024 * 1024
HEADER = {
    "path": "bench.gguf",
    "dense_bytes": 78 * MIB,
    "experts_total_bytes": 2448 * MIB,
    "cycle_bytes": 153 * MIB,
    "expert_bytes": int(1.6 * MIB),
    "kv_bytes_per_token": 24576,
    "embedding": 1024,
    "vocabulary": 512,
    "context_train": 4096,
}


class Server:
    """Its best is three threads and the largest cache; one setting may give another text."""

    model = Path("bench.gguf")

    def __init__(self) -> None:
        self.wrong: Setting | None = None
        self.dead = False

    def once(self, setting: Setting, prompts: list[str], n_predict: int) -> list[dict[str, Any]]:
        if self.dead and setting.cache_mib:
            raise BenchError("llama-server ended with -9")
        speed = 10 - abs(setting.threads - 3) + setting.cache_mib / 100
        tokens = [0] if setting == self.wrong else [1]
        answer = {"predicted_n": n_predict, "predicted_ms": 1000 * n_predict / speed, "tokens": tokens}
        return [dict(answer) for _prompt in prompts]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()

    @contextlib.contextmanager
    def prepared(_name: str) -> Iterator[Server]:
        yield made

    monkeypatch.setattr(serving, "prepared", prepared)
    monkeypatch.setattr(_gguf, "info_from_path", lambda _path: HEADER)
    return made


def test_a_search_that_finds_the_best_has_no_regret(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load("tune_regret")
    figure = bench.measure()
    assert (figure.name, figure.unit, figure.better, figure.goal) == ("tune_regret", "share", "lower", 0.05)
    assert figure.value == 0
    assert figure.met()
    assert "threads=3" in figure.detail["found"]
    assert len(figure.detail["rounds"]) == 5
    assert len(figure.detail["rounds"][0]) == 7
    # a search that has no time stays at the plan's own setting, and the grid shows what it missed
    monkeypatch.setattr(_tune, "PAIRS_LEAST", 10**6)
    stayed = bench.measure()
    assert stayed.value > 0.05
    assert not stayed.met()


def test_the_grid_is_of_the_space_and_takes_minutes(server: Server) -> None:
    bench = load("tune_regret")
    space = _tune.space_of(HEADER, bench.board(2))
    settings = bench.grid(space)
    assert 40 <= len(settings) <= 60
    assert len({_tune.name_of(setting) for setting in settings}) == len(settings)
    for setting in settings:
        values = space.values[setting["decision"]]
        assert all(setting[name] in values[name] for name in values)
        assert isinstance(bench.setting_for(setting), Setting)
    assert bench.spread([1, 2, 3, 4, 6], 2, 3) == [1, 3, 6]
    assert bench.spread([1, 2], 2, 3) == [1, 2]


def test_another_text_or_no_server_is_told(server: Server) -> None:
    bench = load("tune_regret")
    space = _tune.space_of(HEADER, bench.board(2))
    server.wrong = bench.setting_for(bench.grid(space)[0])
    with pytest.raises(BenchError, match="gives another text: its speed means nothing"):
        bench.measure()
    server.dead = True
    with pytest.raises(BenchError, match="the search gave no result: the plan itself could not be measured"):
        bench.measure()
