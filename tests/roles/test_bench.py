# SPDX-License-Identifier: GPL-3.0-or-later
"""What the bench entry point of the verify role asks of its module, and how it stores what a board says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Playbook, Played, role

GIB = 1024**3
GGUF = {
    "path": "/mnt/nvme/models/m.gguf",
    "dense_bytes": 2 * GIB,
    "experts_total_bytes": 18 * GIB,
    "cycle_bytes": 567 * 1024**2,
    "kv_bytes_per_token": 20480,
    "embedding": 2048,
    "vocabulary": 150000,
    "context_train": 32768,
}
JETSON = {
    "board": "orin-nano-8gb",
    "cores": 6,
    "memory": {"total_bytes": int(7.4 * GIB)},
    "cuda": {"version": "12.6"},
    "l4t": {"version": "36.4.7"},
    "power_mode": {"name": "MAXN_SUPER"},
    "nvme": [{"name": "nvme0n1"}],
}
MODEL = {"moe_model_name": "m.gguf", "moe_model_sha256": "ab" * 32, "moe_model_url": "http://127.0.0.1:9/m.gguf"}


def ask(playbook: Playbook, **variables: Any) -> Played:
    """Everything up to the measurement, in check mode; what it would be is written into `asked.json`."""
    facts = {"edge_moe_jetson": JETSON, "edge_moe_devfreq": {}, "edge_moe_gguf": GGUF, "cacheable": True}
    tasks = [
        {"name": "Have a board", "ansible.builtin.set_fact": facts},
        {
            "name": "Plan",
            "edge.moe.serving_plan": {"gguf": GGUF, "jetson": JETSON, "overrides": "{{ llama_server_overrides }}"},
            "register": "planned",
        },
        {"name": "Keep the plan", "ansible.builtin.set_fact": {"edge_moe_plan": "{{ planned.plan }}"}},
        role("verify", "bench"),
        {
            "name": "Write what would be asked",
            "ansible.builtin.copy": {
                "content": "{{ _verify_bench | to_json }}",
                "dest": str(playbook.folder / "asked.json"),
                "mode": "0600",
            },
            "check_mode": False,
        },
    ]
    return playbook.run(tasks, {"llama_server_overrides": {}, **MODEL, **variables}, arguments=("--check",))


def asked(playbook: Playbook) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    found = json.loads((playbook.folder / "asked.json").read_text())
    return found, {variant["name"]: variant for variant in found["variants"]}


def after(args: list[str], flag: str) -> str:
    """The last value of a flag, which is the one that counts."""
    return args[len(args) - 1 - args[::-1].index(flag) + 1]


def test_the_published_stages_and_a_variant(playbook: Playbook) -> None:
    more = {"deep": {"args": ["-t", 3], "environment": {"EDGE_MOE_IO_DEPTH": "32"}, "floor": False}}
    played = ask(
        playbook, verify_bench_variants=more, llama_server_extra_args=["--jinja"], llama_server_environment={"A": "1"}
    )
    assert played.rc == 0, played.text
    assert (
        "check mode, nothing is measured. It would be: mmap, mmap-floor, cache-published, served, deep." in played.words
    )
    whole, variants = asked(playbook)
    assert (whole["reference"], whole["rounds"], whole["block_device"]) == ("mmap", 3, "nvme0n1")
    assert whole["labels"]["board"] == "orin-nano-8gb"
    threads = {name: str(after(variant["args"], "-t")) for name, variant in variants.items()}
    assert threads == {"mmap": "12", "mmap-floor": "12", "cache-published": "6", "served": "4", "deep": "3"}
    floors = {name: variant["floor"] for name, variant in variants.items()}
    assert floors == {"mmap": False, "mmap-floor": True, "cache-published": True, "served": True, "deep": False}
    read_ahead = {name: variant["read_ahead_kb"] for name, variant in variants.items()}
    assert read_ahead == {"mmap": 32, "mmap-floor": 32, "cache-published": 64, "served": 64, "deep": 64}
    cache = {name: variant["environment"]["EDGE_MOE_CACHE_MIB"] for name, variant in variants.items()}
    assert cache["mmap"] == cache["mmap-floor"] == "0"
    assert cache["cache-published"] == cache["served"] == cache["deep"] != "0"
    published = variants["cache-published"]["environment"]
    assert [published[f"EDGE_MOE_{name}"] for name in ("POLICY", "LOOKAHEAD", "IO_DEPTH", "READ_KIB")] == [
        *("lru", "0"),
        *("4", "128"),
    ]
    assert variants["deep"]["environment"]["EDGE_MOE_IO_DEPTH"] == "32"
    assert "EDGE_MOE_POLICY" not in variants["served"]["environment"]
    for variant in variants.values():
        assert "--jinja" in variant["args"]
        assert variant["environment"]["A"] == "1"


def test_overrides_hold_for_all_stages_and_none_stands_without_a_cache(playbook: Playbook) -> None:
    played = ask(playbook, llama_server_overrides={"decision": "mmap", "threads": 2, "floor": False})
    assert played.rc == 0, played.text
    _whole, variants = asked(playbook)
    assert list(variants) == ["mmap", "mmap-floor", "served"]
    assert {after(variant["args"], "-t") for variant in variants.values()} == {"2"}
    assert [variant["floor"] for variant in variants.values()] == [False, True, False]


@pytest.mark.parametrize("stage", ["mmap", "mmap-floor", "cache-published", "served"])
def test_a_variant_cannot_take_the_name_of_a_stage(playbook: Playbook, stage: str) -> None:
    played = ask(playbook, verify_bench_variants={stage: {"floor": False}})
    assert played.rc != 0
    assert f"verify_bench_variants ['{stage}'] must not name a published stage" in played.words


@pytest.mark.parametrize(
    ("started", "name"),
    [
        ("2026-11-29T12:00:00Z", "20261129T120000Z"),
        ("../../../2026-11-29T12:00:00Z/../x" + "0" * 99, "20261129T120000Z"),
    ],
)
def test_what_a_board_says_is_stored_below_its_own_name(
    playbook: Playbook, tmp_path: Path, started: str, name: str
) -> None:
    run = {"format": 1, "kind": "bench", "started": started, "complete": False, "legs": [{"error": "한국어"}]}
    dest = tmp_path / "board.json"
    dest.write_text(json.dumps(run))
    results = tmp_path / "results"
    keep = role("verify", "bench_keep")
    variables = {"_verify_bench": {"dest": str(dest)}, "verify_results_dir": str(results)}
    played = playbook.run([keep], arguments=("-e", json.dumps(variables)))
    assert played.rc == 0, played.text
    (stored,) = [path for path in results.rglob("*") if path.is_file()]
    assert stored == results / "bench" / "board" / f"{name}.json"
    assert json.loads(stored.read_text()) == run
    assert "cut, the same command goes on with it, 1 legs, 1 of them failed" in played.words
