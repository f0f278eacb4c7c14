# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tune entry point of the verify role asks of its module, and how the plan reads what a search has left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _tune
from edge_moe_testbed.common import PROJECT

from .conftest import Playbook, Played, role
from .test_bench import GGUF, JETSON, MODEL

FACTS = {"edge_moe_jetson": JETSON, "edge_moe_devfreq": {}, "cacheable": True}
KIND = "orin-nano-8gb-l4t-36.4.7-llama.cpp"
SETTING = {
    "decision": "cache",
    "threads": 5,
    "cache_mib": 2000,
    "io_depth": 16,
    "read_kib": 512,
    "lookahead": "1",
    "read_ahead_kb": 64,
}
TUNED = {
    "format": 1,
    "model_sha256": MODEL["moe_model_sha256"],
    "board": JETSON["board"],
    "power_mode": JETSON["power_mode"],
    "release_kind": KIND,
    "when": "2026-11-29T12:00:00Z",
    "gain": {"confirmed": True, "ratio": 1.25},
    "setting": SETTING,
}


def ask(playbook: Playbook, tuned: dict[str, Any] | None = None, **variables: Any) -> Played:
    """Everything up to the search, in check mode; what would be asked is written into `asked.json`."""
    plan = {
        "gguf": GGUF,
        "jetson": JETSON,
        "overrides": "{{ llama_server_overrides }}",
        "tuned": tuned or {},
        "model_sha256": MODEL["moe_model_sha256"],
        "release_kind": KIND,
    }
    facts = {"edge_moe_plan": "{{ planned.plan }}", "edge_moe_tuned": tuned or {}, "edge_moe_release_kind": KIND}
    tasks = [
        {"name": "Have a board", "ansible.builtin.set_fact": {**FACTS, "edge_moe_gguf": GGUF}},
        {"name": "Plan", "edge.moe.serving_plan": plan, "register": "planned"},
        {"name": "Keep the plan", "ansible.builtin.set_fact": facts},
        role("verify", "tune"),
        {
            "name": "Write what would be asked",
            "ansible.builtin.copy": {
                "content": "{{ _verify_tune | to_json }}",
                "dest": str(playbook.folder / "asked.json"),
                "mode": "0600",
            },
            "check_mode": False,
        },
    ]
    return playbook.run(tasks, {"llama_server_overrides": {}, **MODEL, **variables}, arguments=("--check",))


def test_what_is_asked_of_the_search(playbook: Playbook) -> None:
    played = ask(
        playbook,
        llama_server_overrides={"threads": 3},
        llama_server_extra_args=["--jinja"],
        llama_server_environment={"A": "1"},
        jetpack_read_ahead_kb=16,
        edge_moe_tune_budget_s=300,
    )
    assert played.rc == 0, played.text
    assert "It would be searched for 300 s, beginning at the plan's own setting." in played.words
    asked = json.loads((playbook.folder / "asked.json").read_text())
    assert asked["overrides"] == {"threads": 3, "read_ahead_kb": 16}
    assert (asked["arguments"], asked["environment"]) == (["--jinja"], {"A": "1"})
    assert (asked["budget_s"], asked["n_predict"], asked["block_device"]) == (300, 32, "nvme0n1")
    assert [prompt["id"] for prompt in asked["prompts"]] == ["ko-1", "en-6"]
    assert asked["start"] == {}
    assert asked["labels"]["release_kind"] == KIND
    assert asked["labels"]["model_sha256"] == MODEL["moe_model_sha256"]


def test_a_search_on_a_tuned_board_begins_at_what_was_found(playbook: Playbook) -> None:
    played = ask(playbook, TUNED, verify_tune_prompt_ids=["en-1"])
    assert played.rc == 0, played.text
    assert "beginning at the tuned setting." in played.words
    asked = json.loads((playbook.folder / "asked.json").read_text())
    assert asked["start"] == SETTING
    assert [prompt["id"] for prompt in asked["prompts"]] == ["en-1"]


def test_a_search_is_kept_where_the_plan_finds_it(playbook: Playbook, large: Path) -> None:
    """What the formula of a board gives, as the module returns it, to the plan that takes it."""
    space = _tune.space_of(GGUF, JETSON)
    search = _tune.Search(space)
    while (setting := search.next(1000)) is not None:
        search.tell(setting, 4.0 + setting["threads"] + 20 * (setting["decision"] == "cache"), True, 1.0)
    tuning = {
        **{key: TUNED[key] for key in ("format", "model_sha256", "board", "power_mode", "release_kind", "when")},
        **search.result(),
    }
    assert tuning["gain"]["confirmed"]
    results = playbook.folder / "home" / "results"
    results.mkdir()
    given = {"__verify_tune": {"tuning": tuning}, "verify_results_dir": str(results)}
    played = playbook.run([role("verify", "tune_keep")], arguments=("-e", json.dumps(given)))
    assert played.rc == 0, played.text
    assert "threads 18 is " in played.words
    assert "served from now on" in played.words
    assert f"{large} holds it; ansible-playbook site.yml serves with it" in played.words
    assert json.loads((results / "tune" / "board" / "20261129T120000Z.json").read_text()) == tuning
    assert json.loads(large.read_text()) == tuning
    again = playbook.run([role("verify", "tune_keep")], arguments=("-e", json.dumps(given)))
    assert again.recap("board", "changed") == 0
    taken = planned(playbook)
    assert taken.rc == 0, taken.text
    assert json.loads((playbook.folder / "plan.json").read_text())["threads"] == 18


# The plan


def planned(playbook: Playbook, **variables: Any) -> Played:
    """The plan's own tasks for a model of 20 GiB, as the playbooks include them."""
    model = playbook.folder / "m.gguf"
    tasks: list[dict[str, Any]] = [
        {"name": "Have a board", "ansible.builtin.set_fact": FACTS},
        {"name": "Plan", "ansible.builtin.include_tasks": str(PROJECT / "playbooks/tasks/plan.yml")},
        {
            "name": "Write the plan",
            "ansible.builtin.copy": {
                "content": "{{ edge_moe_plan | to_json }}",
                "dest": str(playbook.folder / "plan.json"),
                "mode": "0600",
            },
        },
    ]
    own = {**MODEL, "moe_model_url": "", "moe_model_path": str(model), "moe_model_dir": str(playbook.folder)}
    return playbook.run(tasks, {**own, **variables})


@pytest.fixture
def large(playbook: Playbook, gguf_file: Path) -> Path:
    """The model, and the file that a search would have left."""
    os.replace(gguf_file, playbook.folder / "m.gguf")
    tuned = playbook.folder / "home" / "tuned" / "board.json"
    tuned.parent.mkdir(parents=True)
    return tuned


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    """A model of 5 GiB with experts, a file without blocks behind its header."""
    np = pytest.importorskip("numpy")
    import gguf

    path = tmp_path / "large.gguf"
    layers, experts, width, hidden = 40, 256, 2048, 512
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    writer.add_block_count(layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(width)
    writer.add_head_count(16)
    writer.add_head_count_kv(2)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(8)
    f16 = np.dtype(np.float16)
    writer.add_tensor_info("token_embd.weight", (1000, width), f16, 1000 * width * 2)
    for layer in range(layers):
        for name, shape in (
            ("gate", (experts, hidden, width)),
            ("up", (experts, hidden, width)),
            ("down", (experts, width, hidden)),
        ):
            size = experts * hidden * width * 2
            writer.add_tensor_info(f"blk.{layer}.ffn_{name}_exps.weight", shape, f16, size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, path.stat().st_size + layers * 3 * experts * hidden * width * 2 + 1000 * width * 2 + 4096)
    return path


def test_the_plan_takes_what_was_found_for_this_board(playbook: Playbook, large: Path) -> None:
    large.write_text(json.dumps({**TUNED, "trials": [{"setting": SETTING}] * 3}))
    played = planned(playbook)
    assert played.rc == 0, played.text
    plan = json.loads((playbook.folder / "plan.json").read_text())
    assert plan["decision"] == "cache"
    assert (plan["threads"], plan["cache_mib"], plan["lookahead"]) == (5, 2000, "1")
    assert plan["reasons"]["threads"].startswith("measured 25% faster than the plan's own setting on 2026-11-29")
    again = planned(playbook, llama_server_overrides={"threads": 2})
    assert again.rc == 0, again.text
    plan = json.loads((playbook.folder / "plan.json").read_text())
    assert (plan["threads"], plan["cache_mib"]) == (2, 2000)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"\xff\xfe\x00",
        b'{"board": "\\ud800"}',
        b"[" * 100_000,
        json.dumps({**TUNED, "board": "{{ lookup('pipe', 'touch /tmp/planted') }}"}).encode(),
        json.dumps({**TUNED, "setting": {**SETTING, "threads": "4; reboot"}}).encode(),
    ],
    ids=range(7),
)
def test_a_file_that_no_search_has_left_is_ignored(playbook: Playbook, large: Path, content: bytes) -> None:
    large.write_bytes(content)
    played = planned(playbook)
    assert played.rc == 0, played.text
    plan = json.loads((playbook.folder / "plan.json").read_text())
    assert plan["tuned"] == []
    assert plan["reasons"]["tuned"].startswith("ignored: ")
    assert not Path("/tmp/planted").exists()
