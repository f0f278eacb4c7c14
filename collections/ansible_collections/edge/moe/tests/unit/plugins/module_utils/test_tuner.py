# SPDX-License-Identifier: GPL-3.0-or-later
"""The search on a pretended board: what is served and put back, what a cut run goes on from, and what is told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.edge.moe.plugins.module_utils import _measure, _tune, _tuned, _tuner
from ansible_collections.edge.moe.plugins.module_utils._host import CommandResult
from ansible_collections.edge.moe.plugins.module_utils._variants import Stage, StageLost
from ansible_collections.edge.moe.plugins.modules import tune

REFERENCE = "edge-moe-reference.service"
MIB = 1024 * 1024
GGUF = {
    "path": "/mnt/nvme/m.gguf",
    "dense_bytes": 2355 * MIB,
    "experts_total_bytes": 18125 * MIB,
    "cycle_bytes": 567 * MIB,
    "expert_bytes": 2 * MIB,
    "kv_bytes_per_token": 20480,
    "embedding": 2048,
    "vocabulary": 150000,
    "context_train": 32768,
}
JETSON = {"board": "orin-nano-8gb", "cores": 6, "memory": {"total_bytes": 7620 * MIB}, "cuda": {"version": "12.6"}}
PROMPTS = ({"id": "en-1", "lang": "en", "text": "Why does a river bend?"},)
WORK = _tuner.Work(
    GGUF, JETSON, {}, {}, ("--jinja",), {"A": "1"}, {}, PROMPTS, 4, 400.0, {"host": "nano", "board": "orin-nano-8gb"}
)


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_measure, "HEALTH_PERIOD_S", 0.0)


class Runner:
    """Runs a search on the pretended board as the module does, with its file. Each look at the clock is a second."""

    def __init__(self, systemd: Any, llama: Any, base: Any, dest: Path) -> None:
        self.systemd, self.llama, self.base, self.dest = systemd, llama, base, dest
        self.said: list[str] = []
        self.now = 0.0
        self.saves, self.die_after_save = 0, 0
        self.slow = 1.0
        systemd.on_start = self.start

    def start(self, command: list[str], environment: dict[str, str]) -> str:
        """The more threads the faster, and so is the cache."""
        threads = int(command[len(command) - 1 - command[::-1].index("-t") + 1])
        self.llama.rate = (5.0 + threads) * (4.0 if environment["EDGE_MOE_CACHE_MIB"] != "0" else 1.0)
        return "active"

    def clock(self) -> float:
        self.now += self.slow
        return self.now

    def save(self, state: dict[str, Any]) -> None:
        _measure.write_result(str(self.dest), state)
        self.saves += 1
        if self.saves == self.die_after_save:
            raise Killed

    def run(self, work: _tuner.Work) -> dict[str, Any]:
        key = _tuner.key_of(work, self.base, "")
        space = work.space(self.base.block_device)
        state, _why = _tuner.read_state(str(self.dest), work, space, key)
        state = state or _tuner.new_state(work, key)
        _tuner.Tuner(
            work,
            Stage(self.systemd, self.base),
            lambda: _measure.Session(self.systemd, _measure.Client(self.base.url, 5.0), REFERENCE, "nvme0n1", 0.0),
            self.save,
            self.said.append,
            5.0,
            self.clock,
        ).run(state)
        return state


@pytest.fixture
def runner(systemd: Any, llama: Any, base: Any, tmp_path: Path) -> Runner:
    return Runner(systemd, llama, base, tmp_path / "tune.json")


def test_each_trial_is_what_the_plan_would_serve_and_the_board_is_put_back(runner: Runner) -> None:
    found = runner.systemd.as_found()
    state = runner.run(WORK)
    assert runner.systemd.as_found() == found
    assert state["complete"] is True
    assert (state["host"], state["kind"], state["format"]) == ("nano", "tune", 1)
    assert json.loads(runner.dest.read_text()) == state
    # the formula's optimum: all threads that are tried, and the cache
    assert state["gain"]["confirmed"] is True
    assert (state["setting"]["decision"], state["setting"]["threads"]) == ("cache", 18)
    assert state["gain"]["ratio"] == pytest.approx(23 / 9, rel=0.01)
    assert state["spent_s"] <= 400
    assert len(runner.systemd.started) == len(state["trials"])
    for (command, environment), trial in zip(runner.systemd.started, state["trials"], strict=True):
        setting = trial["setting"]
        assert command[-1] == "--jinja"
        assert command[command.index("-t") + 1] == str(setting["threads"])
        assert environment["A"] == "1"
        assert environment["EDGE_MOE_CACHE_MIB"] == str(setting.get("cache_mib", 0))
        if setting["decision"] == "cache":
            assert environment["EDGE_MOE_LOOKAHEAD"] == setting["lookahead"]
            assert environment["EDGE_MOE_READ_KIB"] == str(setting["read_kib"])
    assert runner.said[0].startswith("trial 1, ")
    assert "best so far: cache threads=18" in runner.said[-1]
    table = _tuned.table(state)
    assert "faster than the plan's own setting" in table.splitlines()[0]
    assert "served from now on" in table


def test_a_cut_run_goes_on_from_its_file(runner: Runner) -> None:
    runner.die_after_save = 5
    with pytest.raises(Killed):
        runner.run(WORK)
    assert len(json.loads(runner.dest.read_text())["trials"]) == 5
    first = len(runner.systemd.started)
    assert first == 5
    state = runner.run(WORK)
    assert len(runner.systemd.started) == len(state["trials"])
    assert state["setting"]["threads"] == 18


def test_a_setting_with_another_text_or_a_dead_server_does_not_win(runner: Runner, web: Any) -> None:
    complete = web.answers["/completion"]

    def answers(request: Any) -> tuple[int, bytes]:
        command = runner.systemd.started[-1][0]
        status, body = complete(request)
        if command[command.index("-t") + 1] in ("5", "6"):
            body = body.replace(b'"ok"', b'"no"')
        return status, body

    def start(command: list[str], environment: dict[str, str]) -> str:
        if command[command.index("-t") + 1] in ("9", "12") and environment["EDGE_MOE_CACHE_MIB"] != "0":
            runner.systemd.results[REFERENCE] = ("oom-kill", "9")
            return "failed"
        return Runner.start(runner, command, environment)

    web.answers["/completion"] = answers
    runner.systemd.on_start = start
    state = runner.run(replace(WORK, overrides={"decision": "cache"}))
    why = {entry["setting"]: entry["why"] for entry in state["discarded"]}
    wrong = [text for name, text in why.items() if "threads=5 " in name]
    assert wrong, why
    assert "another text than the reference's: prompt en-1" in wrong[0]
    assert state["setting"]["threads"] not in (5, 6, 9, 12)
    assert "discarded: another text" in _tuned.table(state)


def test_a_dead_reference_is_told_and_the_next_run_begins_anew(runner: Runner) -> None:
    def dies(_command: list[str], _environment: dict[str, str]) -> str:
        runner.systemd.results[REFERENCE] = ("oom-kill", "9")
        return "failed"

    runner.systemd.on_start = dies
    with pytest.raises(_tune.TuneError, match=r"stock mmap could not be measured: .*It ran out of memory"):
        runner.run(WORK)
    runner.systemd.on_start = runner.start
    runner.systemd.results.clear()
    assert runner.run(WORK)["setting"]["threads"] == 18


def test_a_trial_that_takes_too_long_is_ended(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[list[str]] = []

    def kill(_self: Any, names: list[str]) -> CommandResult:
        killed.append(names)
        runner.llama.before = lambda: None
        return CommandResult(0, "", "", None)

    monkeypatch.setattr(type(runner.systemd), "_kill", kill, raising=False)
    tuner = _tuner.Tuner(
        WORK,
        Stage(runner.systemd, runner.base),
        lambda: _measure.Session(runner.systemd, _measure.Client(runner.base.url, 0.5), REFERENCE, None, 0.0),
        lambda _state: None,
        runner.said.append,
        5.0,
    )
    runner.llama.before = lambda: time.sleep(0.8)
    with tuner.stage:
        speed, _equal, evidence = tuner._trial(WORK.space("nvme0n1").own, 0.2, {"reference": None})
    assert speed is None
    assert killed == [[REFERENCE]]
    assert evidence.startswith("not done after 0 s, which is clearly slower than others; ")


def test_a_stage_that_is_lost_ends_the_search_and_keeps_it(runner: Runner) -> None:
    def stopped(command: list[str], environment: dict[str, str]) -> str:
        if len(runner.systemd.started) == 4:
            runner.systemd.end_guard()
            return "inactive"  # bound to the guard
        return Runner.start(runner, command, environment)

    runner.systemd.on_start = stopped
    with pytest.raises(StageLost):
        runner.run(WORK)
    kept = json.loads(runner.dest.read_text())
    assert (kept["complete"], len(kept["trials"])) == (False, 3)


STATE = {"format": 1, "kind": "tune", "key": "KEY", "complete": False, "when": "", "spent_s": 1, "trials": []}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        "[" * 5000,
        json.dumps({"format": 1, "kind": "tune"}),
        *(
            json.dumps({**STATE, "reference": None, **wrong})
            for wrong in (
                {"kind": "bench"},
                {"format": 2},
                {"spent_s": "x"},
                {"spent_s": None},
                {"trials": [1]},
                {"trials": 1},
                {"complete": True},
                {"key": "other"},
            )
        ),
    ],
)
def test_a_state_that_is_none_is_not_gone_on_from(runner: Runner, content: str) -> None:
    key = _tuner.key_of(WORK, runner.base, "")
    runner.dest.write_text(content.replace("KEY", key))
    state, why = _tuner.read_state(str(runner.dest), WORK, WORK.space("nvme0n1"), key)
    assert state is None
    assert why


def test_the_key_holds_what_the_result_depends_on(runner: Runner) -> None:
    key = _tuner.key_of(WORK, runner.base, "")
    assert _tuner.key_of(WORK, replace(runner.base, url="http://127.0.0.1:9"), "") == key
    # mypy: the facts are of many types, and those of this one are not looked at
    warmer = {**JETSON, "memory": {**JETSON["memory"], "available_bytes": 1}, "thermal": [1]}  # type: ignore[dict-item]
    assert _tuner.key_of(replace(WORK, jetson=warmer), runner.base, "") == key
    for other in (
        replace(WORK, n_predict=5),
        replace(WORK, overrides={"threads": 2}),
        replace(WORK, jetson={**JETSON, "power_mode": {"name": "15W"}}),
        replace(WORK, start={"decision": "mmap"}),
    ):
        assert _tuner.key_of(other, runner.base, "") != key
    assert _tuner.key_of(WORK, runner.base, "ab") != key


def test_without_a_known_drive_its_read_ahead_is_left_alone() -> None:
    space = WORK.space(None)
    assert all(len(values["read_ahead_kb"]) == 1 for values in space.values.values())
    assert WORK.variant(space.own, None).read_ahead_kb is None
    assert WORK.variant(space.own, "nvme0n1").read_ahead_kb == 64


def test_the_reference_is_the_mapping_whatever_the_user_s_environment_says() -> None:
    work = replace(WORK, environment={"EDGE_MOE_CACHE_MIB": "2048", "EDGE_MOE_IO_DEPTH": "8"})
    space = work.space("nvme0n1")
    assert work.variant(space.reference, None).environment["EDGE_MOE_CACHE_MIB"] == "0"
    assert work.variant(space.own, None).environment["EDGE_MOE_CACHE_MIB"] == "2048"
    assert set(space.values) == {"cache"}
    assert len(space.values["cache"]["io_depth"]) == 1


def test_speed_is_of_all_tokens_together() -> None:
    requests = [{"n_decoded": 10, "decode_ms": 1000.0}, {"n_decoded": 30, "decode_ms": 1000.0}]
    assert _tuner.speed_of({"requests": requests}) == 20
    for none in ([], [{"n_decoded": 0, "decode_ms": 1.0}], [{"n_decoded": 4, "decode_ms": None}]):
        assert _tuner.speed_of({"requests": none}) is None


# Results


@pytest.mark.parametrize("text", ["", "x", "[1]", "null", "[" * 100_000, " " * (2 << 20)], ids=range(6))
def test_a_file_that_is_no_result_says_so(text: str) -> None:
    found = _tuned.parse_result(text)
    assert set(found) == {"problem"}
    assert "edge.moe.tune" in found["problem"]


def test_a_result_is_read_without_its_trials() -> None:
    assert _tuned.parse_result('{"format": 1, "trials": [1], "reference": {}}') == {"format": 1}


# The module


@pytest.fixture
def module(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    for name in ("program", "model"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(tune, "Host", lambda: runner.systemd)

    def call(check: bool = False, **more: Any) -> dict[str, Any]:
        arguments = {
            "program": str(tmp_path / "program"),
            "model": str(tmp_path / "model"),
            "gguf": GGUF,
            "jetson": JETSON,
            "prompts": list(PROMPTS),
            "n_predict": 4,
            "budget_s": 60,
            "url": runner.base.url,
            "block_device": "nvme0n1",
            "dest": str(tmp_path / "state" / "tune.json"),
            "progress_file": str(tmp_path / "progress"),
            "_ansible_check_mode": check,
            **more,
        }
        with patch_module_args(arguments), pytest.raises(SystemExit):
            tune.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return call


def test_the_module_searches_and_a_second_run_begins_at_what_was_found(
    module: Callable[..., dict[str, Any]], runner: Runner, tmp_path: Path
) -> None:
    found = runner.systemd.as_found()
    first = module(labels={"host": "nano"})
    assert first["tuning"]["setting"]["threads"] == 18
    assert first["tuning"]["host"] == "nano"
    assert (tmp_path / "progress").read_text().startswith("trial ")
    again = module(start=first["tuning"]["setting"])
    assert again["tuning"]["start"] == first["tuning"]["setting"]
    assert again["tuning"]["setting"]["threads"] == 18
    assert _tuned.summary(again["tuning"]).startswith("Began at the tuned setting of an earlier search. ")
    assert (tmp_path / "state" / "tune.previous.json").exists()
    assert runner.systemd.as_found() == found
    returned = yaml.safe_load(tune.RETURN)
    assert set(first["tuning"]) - {"host"} == set(returned["tuning"]["contains"])


def test_check_mode_tells_the_space_and_leaves_the_board_alone(
    module: Callable[..., dict[str, Any]], runner: Runner, tmp_path: Path
) -> None:
    result = module(check=True, overrides={"threads": 3})
    assert result["tuning"] is None
    assert result["space"]["values"]["cache"]["threads"] == [3]
    assert runner.systemd.commands == []
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"budget_s": 0}, "budget_s is 0; it must be at least 1"),
        ({"n_predict": 1}, "n_predict is 1; it must be at least 2"),
        ({"gguf": {}}, "gguf or jetson are not what gguf_info and jetson_facts return: KeyError"),
        ({"jetson": {"cores": 6}}, "the board's memory is not known"),
        ({"overrides": {"thread": 3}}, "override 'thread' is not known"),
        ({"overrides": {"decision": "resident"}}, "override decision is resident"),
        ({"model": "/nowhere/m.gguf"}, "/nowhere/m.gguf is no file on this board; ansible-playbook site.yml"),
        ({"gguf": {**GGUF, "experts_total_bytes": 0, "cycle_bytes": 0}}, "there is nothing to search"),
        ({"block_device": "../x"}, "block_device is '../x'"),
    ],
)
def test_what_cannot_be_searched_is_told(
    module: Callable[..., dict[str, Any]], arguments: dict[str, Any], said: str
) -> None:
    result = module(**arguments)
    assert result["failed"] is True
    assert said in result["msg"]
