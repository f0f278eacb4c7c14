# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan playbook over boards that are this machine, with models, and with files that are none."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Playbook

BOOK = "playbooks/plan.yml"


def test_several_models_on_two_boards(playbook: Playbook, tmp_path: Path, model: Path) -> None:
    page, written = tmp_path / "page.gguf", tmp_path / "plans.json"
    page.write_text("<html>Sign in</html>")
    models = [str(model), str(page), "http://127.0.0.1:9/far.gguf"]
    arguments = ("-e", json.dumps({"edge_moe_plan_models": models, "edge_moe_plan_json": str(written)}))
    played = playbook.run_book(BOOK, {"one": {}, "two": {"llama_server_overrides": {"threads": 3}}}, arguments)
    assert played.rc == 0, played.text
    plans = json.loads(written.read_text())
    assert [(entry["host"], Path(entry["model"]).name) for entry in plans] == [
        (host, name) for host in ("one", "two") for name in ("small.gguf", "page.gguf", "far.gguf")
    ]
    assert plans[0]["plan"]["decision"] == "resident"
    assert plans[3]["plan"]["threads"] == 3
    assert plans[1]["plan"] is None
    assert "is a web page" in plans[1]["error"]
    assert "cannot be reached" in plans[5]["error"]
    assert "is a web page" in played.text


def test_the_board_s_own_model_and_what_it_has_measured(playbook: Playbook, tmp_path: Path, model: Path) -> None:
    side = {"complete": True, "decode_tokens_per_s": 50.0, "nvme_bytes": 0, "requests": [{"n_decoded": 8}]}
    results = tmp_path / "home" / "results"
    results.mkdir(parents=True)
    (results / "one.json").write_text(json.dumps({"model": "small.gguf", "served": side}))
    own = {"moe_model_path": str(model), "moe_model_name": "small.gguf", "moe_model_sha256": "0" * 64}
    played = playbook.run_book(BOOK, {"one": own}, ("--check",))
    assert played.rc == 0, played.text
    assert "make 50.0 tokens a second" in played.words
    assert "a line through 1 measurement of this board" in played.words
