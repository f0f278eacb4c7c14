# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules as Ansible runs them: arguments in, JSON out. What they compute is tested beside their helpers."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.edge.moe.plugins.modules import (
    expert_cache_facts,
    gguf_info,
    health_info,
    jetson_facts,
    measure,
    model_file,
    serving_plan,
    verdict,
)

MODULES = [expert_cache_facts, gguf_info, health_info, jetson_facts, measure, model_file, serving_plan, verdict]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(module: Any, check: bool = False, **arguments: Any) -> dict[str, Any]:
        with patch_module_args({**arguments, "_ansible_check_mode": check}), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return call


@pytest.mark.parametrize("check", [False, True])
def test_facts_on_this_machine(run: Run, check: bool) -> None:
    facts = run(jetson_facts, check)
    assert set(facts["ansible_facts"]) == {"edge_moe_jetson"}
    assert facts["changed"] is False
    assert facts["ansible_facts"]["edge_moe_jetson"]["memory"]["total_bytes"] > 0
    cache = run(expert_cache_facts, check)
    assert set(cache["ansible_facts"]) == {"edge_moe_expert_cache"}
    assert cache["ansible_facts"]["edge_moe_expert_cache"]["verdict"]


def documented(entries: dict[str, Any]) -> set[str]:
    names: set[str] = set()
    for name, entry in entries.items():
        names.add(name)
        names |= documented(entry.get("contains") or {})
    return names


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {name for item in value.values() for name in keys_of(item)}
    if isinstance(value, list):
        return {name for item in value for name in keys_of(item)}
    return set()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_each_module_documents_itself(module: Any) -> None:
    documentation = yaml.safe_load(module.DOCUMENTATION)
    assert documentation["module"] == module.__name__.rsplit(".", 1)[-1]
    assert documentation["version_added"] == "1.0.0"
    shared = documentation.get("extends_documentation_fragment", [])
    assert "edge.moe.attributes.reads" in shared or set(documentation["attributes"]) == {"check_mode", "diff_mode"}
    for task in yaml.safe_load(module.EXAMPLES):
        assert any(key.startswith(("edge.moe.", "ansible.builtin.")) for key in task)
    for entry in yaml.safe_load(module.RETURN).values():
        assert {"description", "returned", "type"} <= set(entry)


def test_every_fact_is_documented(run: Run) -> None:
    for module in (jetson_facts, expert_cache_facts):
        facts = run(module)["ansible_facts"]
        described = module.RETURN
        for name in keys_of(facts):
            assert name in documented(yaml.safe_load(described)) or f"C({name})" in described or name + ":" in described


def test_every_value_of_a_plan_and_a_header_is_documented(run: Run, gguf: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf.build(gguf.values(), gguf.tensors()))
    header = run(gguf_info, path=str(path))["gguf"]
    assert set(header) == documented(yaml.safe_load(gguf_info.RETURN)) - {"gguf"}
    board = {"memory": {"total_bytes": 8 << 30}, "cores": 6, "cuda": None}
    plan = run(serving_plan, gguf=header, jetson=board, overrides={"lookahead": "auto"})["plan"]
    assert set(plan) == documented(yaml.safe_load(serving_plan.RETURN)) - {"plan"}
    judged = run(verdict, reference={}, served={}, plan=plan)["verdict"]
    assert set(judged) == documented(yaml.safe_load(verdict.RETURN)) - {"verdict"}


@pytest.mark.parametrize("name", ["jetson_facts", "devfreq_facts", "expert_cache_facts", "health_info"])
def test_a_look_is_short_and_small(name: str) -> None:
    """Under 1.5 s and 32 MiB on a board; here the CPU's time counts, as others may keep the machine busy."""
    script = (
        "import contextlib, sys, time\n"
        f"from ansible_collections.edge.moe.plugins.modules import {name} as module\n"
        "with contextlib.suppress(SystemExit):\n"
        "    module.main()\n"
        "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(time.process_time(), peak, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input='{"ANSIBLE_MODULE_ARGS": {}}',
        cwd=Path(__file__).parents[7],
        capture_output=True,
        text=True,
        check=True,
    )
    spent, kib = done.stderr.split()[-2:]
    assert float(spent) < 1.5
    assert int(kib) < 32 * 1024
    assert json.loads(done.stdout)["changed"] is False


def test_gguf_info_fails_with_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>Sign in</html>")
    result = run(gguf_info, path=str(tmp_path / "page.gguf"))
    assert result["failed"] is True
    assert "is a web page" in result["msg"]
    assert run(gguf_info)["failed"] is True


def test_gguf_info_by_url(run: Run, gguf: Any, web: Any) -> None:
    web.files["/m.gguf"] = gguf.build(gguf.values(), gguf.tensors())
    assert run(gguf_info, url=web.url + "/m.gguf")["gguf"]["experts"] == 8


def test_gguf_info_reads_another_place_where_there_is_no_file(run: Run, gguf: Any, web: Any, tmp_path: Path) -> None:
    (tmp_path / "far.gguf").write_bytes(gguf.build(gguf.values(), gguf.tensors()))
    web.files["/m.gguf"] = gguf.build(gguf.values(), gguf.tensors())
    near = str(tmp_path / "near.gguf")
    for otherwise in (str(tmp_path / "far.gguf"), web.url + "/m.gguf"):
        assert run(gguf_info, path=near, otherwise=otherwise)["gguf"]["path"] == otherwise
    assert "absent.gguf does not exist" in run(gguf_info, path=near, otherwise=str(tmp_path / "absent.gguf"))["msg"]
    (tmp_path / "near.gguf").write_bytes((tmp_path / "far.gguf").read_bytes())
    web.requests = []
    assert run(gguf_info, path=near, otherwise=web.url + "/m.gguf")["gguf"]["path"] == near
    assert web.requests == []
    assert run(gguf_info, url=web.url + "/m.gguf", otherwise=near)["failed"] is True


def test_serving_plan_refuses_with_the_arithmetic(run: Run, gguf: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf.build(gguf.values(), gguf.tensors()))
    header = run(gguf_info, path=str(path))["gguf"]
    board = {"memory": {"total_bytes": 1 << 30}, "cores": 2, "cuda": None}
    refused = run(serving_plan, gguf=header, jetson=board, overrides={"decision": "cache", "cache_mib": 5000})
    assert "does not fit" in refused["msg"]
    odd = run(serving_plan, gguf={"path": "x"}, jetson=board)
    assert odd["failed"] is True
    assert "gguf_info" in odd["msg"]


CONTENT = b"model" * 100_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def test_model_file_predicts_fetches_and_rests(run: Run, web: Any, tmp_path: Path) -> None:
    web.files["/m"] = CONTENT
    dest = tmp_path / "m.gguf"
    arguments = {"url": web.url + "/m", "sha256": SHA256, "dest": str(dest), "mode": "0640"}
    predicted = run(model_file, True, **arguments)
    assert (predicted["changed"], predicted["found"], predicted["size_bytes"]) == (True, "absent", None)
    assert web.requests == []
    assert list(tmp_path.iterdir()) == []
    fetched = run(model_file, **arguments)
    assert (fetched["changed"], fetched["size_bytes"]) == (True, len(CONTENT))
    assert stat.S_IMODE(dest.stat().st_mode) == 0o640
    web.requests = []
    for check in (False, True):
        again = run(model_file, check, **arguments)
        assert (again["changed"], again["found"]) == (False, "present")
    assert web.requests == []


def test_model_file_notices_a_mode_and_a_damaged_file(run: Run, web: Any, tmp_path: Path) -> None:
    web.files["/m"] = CONTENT
    dest = tmp_path / "m.gguf"
    dest.write_bytes(CONTENT)
    arguments = {"url": web.url + "/m", "sha256": SHA256, "dest": str(dest), "mode": "0600"}
    os.chmod(dest, 0o644)
    assert run(model_file, True, **arguments)["changed"] is True
    assert stat.S_IMODE(dest.stat().st_mode) == 0o644
    assert run(model_file, **arguments)["changed"] is True
    assert web.requests == []
    dest.write_bytes(b"damaged")
    assert run(model_file, True, **arguments)["found"] == "wrong"
    assert dest.read_bytes() == b"damaged"
    assert run(model_file, **arguments)["found"] == "wrong"
    assert dest.read_bytes() == CONTENT


def test_model_file_keeps_a_good_file_from_a_wrong_one(run: Run, web: Any, tmp_path: Path) -> None:
    web.files["/m"] = b"someone else's model"
    dest = tmp_path / "m.gguf"
    dest.write_bytes(b"the old one")
    result = run(model_file, url=web.url + "/m", sha256=SHA256, dest=str(dest))
    assert result["failed"] is True
    assert SHA256 in result["msg"]
    assert dest.read_bytes() == b"the old one"
    bad = run(model_file, url=web.url + "/m", sha256="xyz", dest=str(dest))
    assert "64 hexadecimal digits" in bad["msg"]


def test_model_file_from_the_board(run: Run, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(CONTENT)
    result = run(model_file, src_path=str(tmp_path / "source"), sha256=SHA256, dest=str(tmp_path / "m.gguf"))
    assert result["changed"] is True
    assert (tmp_path / "m.gguf").read_bytes() == CONTENT


def test_measure_refuses_odd_arguments(run: Run) -> None:
    prompts = [{"id": "a", "text": "b"}]
    assert "at least 1" in run(measure, prompts=prompts, rounds=0)["msg"]
    assert "between 1 and 64" in run(measure, prompts=prompts, at_once=65)["msg"]
    assert "settle_s" in run(measure, prompts=prompts, settle_s=-1)["msg"]
    assert "block_device" in run(measure, prompts=prompts, block_device="../sda")["msg"]
    assert "http://HOST:PORT" in run(measure, prompts=prompts, url="x")["msg"]
    assert "not ready" in run(measure, prompts=prompts, url="http://127.0.0.1:9", ready_s=1)["msg"]


def test_measure_writes_its_file_and_is_documented(run: Run, web: Any, tmp_path: Path) -> None:
    timings = {"prompt_n": 4, "prompt_ms": 1.0, "prompt_per_second": 4.0, "predicted_n": 2, "predicted_per_second": 9.0}
    answer = json.dumps({"content": "x\ufffd", "tokens": [1, 2], "timings": timings}).encode()
    web.answers["/health"] = lambda _request: (200, b"{}")
    web.answers["/completion"] = lambda _request: (200, answer)
    dest = tmp_path / "result.json"
    result = run(measure, url=web.url, prompts=[{"id": "a", "text": "b"}], settle_s=0, dest=str(dest))
    measurement = result["measurement"]
    assert measurement["decode_tokens_per_s"] == 9.0
    assert json.loads(dest.read_text()) == measurement
    assert set(measurement) == documented(yaml.safe_load(measure.RETURN)) - {"measurement"}
    unwritable = run(
        measure, url=web.url, prompts=[{"id": "a", "text": "b"}], settle_s=0, dest="/no/such/folder/r.json"
    )
    assert unwritable["failed"] is True
    assert "/no/such/folder" in unwritable["msg"]


def test_verdict_refuses_unknown_thresholds(run: Run) -> None:
    result = run(verdict, reference={}, served={}, plan={}, thresholds={"speed": 1})
    assert result["failed"] is True
    assert run(verdict, reference={}, served={}, plan={})["verdict"]["passed"] is False


def test_verdict_holds_a_board_against_its_own_past(run: Run, tmp_path: Path) -> None:
    plan = {"decision": "mmap", "floor": False}
    request = {"id": "en-1", "round": 1, "text": "a", "tokens": [1], "n_decoded": 4}
    served = {
        "requests": [request],
        "decode_tokens_per_s": 2.0,
        "memory_swap_max": "0",
        "started": "2026-11-29T12:00:00Z",
    }
    earlier = {**served, "decode_tokens_per_s": 4.0, "started": "2026-11-28T12:00:00Z"}
    about = {"release": "r1", "model_sha256": "m1", "power_mode": {"name": "25W"}}
    result = {**about, "plan": plan, "served": earlier, "verdict": {"passed": True}}
    (tmp_path / "20261128T120000Z.json").write_text(json.dumps(result))
    arguments = {"reference": served, "served": served, "plan": plan, "history": str(tmp_path), **about}
    judged = run(verdict, **arguments)["verdict"]
    assert [failure["class"] for failure in judged["failures"]] == ["slower_than_before"]
    assert (judged["previous_ratio"], judged["previous_started"]) == (0.5, "2026-11-28T12:00:00Z")
    assert run(verdict, **{**arguments, "release": "r2"})["verdict"]["passed"] is True
    assert run(verdict, **{**arguments, "thresholds": {"min_previous_ratio": 0.5}})["verdict"]["passed"] is True
