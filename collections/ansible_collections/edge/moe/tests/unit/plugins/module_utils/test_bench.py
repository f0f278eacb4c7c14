# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.edge.moe.plugins.module_utils import _bench, _measure, _run_file, _variants
from ansible_collections.edge.moe.plugins.module_utils._bench import Step, Work
from ansible_collections.edge.moe.plugins.module_utils._variants import Stage, StageLost, Variant
from ansible_collections.edge.moe.plugins.modules import bench
from hypothesis import given
from hypothesis import strategies as st

REFERENCE, SERVED = "edge-moe-reference.service", "edge-moe-server.service"
PROMPTS = (
    {"id": "en-1", "lang": "en", "text": "Why does a river bend?"},
    {"id": "ko-1", "lang": "ko", "text": "강은 왜 굽어 흐를까?"},
)
ARGS = ("-c", "4096", "--parallel", "1")
A, B = Variant("a", "first", (*ARGS, "-t", "1")), Variant("b", "second", (*ARGS, "-t", "2"), floor=True)
WORK = Work((A, B), "a", PROMPTS, 4, 3)


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_measure, "HEALTH_PERIOD_S", 0.0)


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("some text\n")
    return str(path)


class Runner:
    """Runs a benchmark on the pretended board as the module does, with its file."""

    def __init__(self, systemd: Any, llama: Any, base: Any, dest: Path) -> None:
        self.systemd, self.llama, self.base, self.dest = systemd, llama, base, dest
        self.said: list[str] = []
        self.saves = 0
        self.die_after_save: int | None = None
        self.die_after_answer: int | None = None

    def say(self, line: str) -> None:
        self.said.append(line)
        if line.endswith("answered") and len(self.llama.asked) == self.die_after_answer:
            self.die_after_answer = None
            raise Killed

    def save(self, state: dict[str, Any]) -> None:
        _measure.write_result(str(self.dest), state)
        self.saves += 1
        if self.saves == self.die_after_save:
            raise Killed

    def run(self, work: Work) -> dict[str, Any]:
        key = _bench.key_of(work, self.base, "")
        state, _why = _bench.read_state(str(self.dest), work, key)
        state = state or _bench.new_state(work, key)
        _bench.Bench(
            work,
            Stage(self.systemd, self.base),
            lambda save: _measure.Session(
                self.systemd, _measure.Client(self.base.url, 5.0), REFERENCE, "nvme0n1", 0.0, save
            ),
            self.save,
            self.say,
            5.0,
            5.0,
        ).run(state)
        return state


@pytest.fixture
def runner(systemd: Any, llama: Any, base: Any, tmp_path: Path) -> Runner:
    return Runner(systemd, llama, base, tmp_path / "bench.json")


def legs(state: dict[str, Any]) -> list[tuple[str, int]]:
    return [(leg["variant"], leg["round"]) for leg in state["legs"]]


# What is measured, and in which order


def test_every_second_round_goes_backwards() -> None:
    order = [(step.variant, step.number) for step in _bench.steps(WORK)]
    assert order == [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)]
    order = [(step.variant, step.number) for step in _bench.steps(replace(WORK, order="blocks"))]
    assert order == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3)]


def test_further_steps_come_after_the_legs(text: str) -> None:
    work = replace(WORK, rounds=1, load=(1, 4), depths=(64,), perplexity=_bench.Perplexity(text, 4, 512))
    assert _bench.steps(work)[2:] == [
        *(Step("load", name, number) for number in (1, 4) for name in ("a", "b")),
        *(Step("depth", name, 64) for name in ("a", "b")),
        *(Step("perplexity", name, None) for name in ("a", "b")),
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"variants": ()}, "variants are none"),
        ({"variants": (A, A)}, "variants are a, a; at least one is needed, each with its name"),
        ({"reference": "c"}, "reference is 'c'; it must be one of the variants a, b"),
        ({"prompts": ()}, "prompts are none"),
        ({"prompts": (PROMPTS[0], PROMPTS[0])}, "prompts are en-1, en-1"),
        ({"order": "random"}, "order is 'random'"),
        ({"load": (2, 2)}, r"load is \[2, 2\]; it must be different numbers from 1 to 256"),
        ({"depths": (0,)}, r"depths is \[0\]"),
    ],
)
def test_work_that_is_none_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(_variants.VariantError, match=says):
        replace(WORK, **change).check()


# A run


def test_a_run(runner: Runner) -> None:
    found = runner.systemd.as_found()
    state = runner.run(replace(WORK, labels={"host": "workshop", "kind": "x", "legs": 3}))
    assert legs(state) == [(step.variant, step.number) for step in _bench.steps(WORK)]
    assert state["complete"] is True
    assert (state["format"], state["kind"], state["reference"]) == (1, "bench", "a")
    assert state["host"] == "workshop", "a label is beside the rest, and takes the place of nothing"
    assert state["variants"] == [A.as_dict(), B.as_dict()]
    for leg in state["legs"]:
        requests = leg["measurement"]["requests"]
        assert [(request["id"], request["round"]) for request in requests] == [
            ("en-1", leg["round"]),
            ("ko-1", leg["round"]),
        ]
    # Each leg has a server of its own, with the variant's arguments.
    assert [command[-1] for command, _environment in runner.systemd.started] == ["1", "2", "2", "1", "1", "2"]
    assert json.loads(runner.dest.read_text()) == state
    assert runner.systemd.as_found() == found
    assert runner.said[0] == "step 1 of 6, a, round 1: starting its server"
    assert runner.said[-1] == "step 6 of 6, b, round 3: 2 requests answered"


@pytest.mark.parametrize("cut", range(1, 7))
def test_a_run_that_was_cut_goes_on_from_every_place(runner: Runner, cut: int) -> None:
    found = runner.systemd.as_found()
    runner.die_after_save = cut
    with pytest.raises(Killed):
        runner.run(WORK)
    assert len(json.loads(runner.dest.read_text())["legs"]) == cut
    started = json.loads(runner.dest.read_text())["started"]
    if cut < 6:
        state = runner.run(WORK)
        assert state["started"] == started
        assert legs(state) == [(step.variant, step.number) for step in _bench.steps(WORK)]
        assert state["complete"] is True
    assert len(runner.llama.asked) == 6 * len(PROMPTS), "nothing is measured twice"
    assert len(runner.systemd.started) == 6
    assert runner.systemd.as_found() == found


def test_a_run_that_lacks_nothing_is_complete_and_stops_nothing(runner: Runner) -> None:
    whole = runner.run(WORK)
    runner.dest.write_text(json.dumps({**whole, "complete": False}))
    commands = len(runner.systemd.commands)
    assert runner.run(WORK) == whole
    assert len(runner.systemd.commands) == commands


@pytest.mark.parametrize("cut", range(1, 12, 2))
def test_a_leg_that_was_cut_is_measured_again_as_a_whole(runner: Runner, cut: int) -> None:
    """After the first of two requests of a leg: its server is another one next time, as cold as those of the others."""
    found = runner.systemd.as_found()
    runner.die_after_answer = cut
    with pytest.raises(Killed):
        runner.run(WORK)
    assert runner.systemd.as_found() == found
    state = runner.run(WORK)
    assert legs(state) == [(step.variant, step.number) for step in _bench.steps(WORK)]
    assert all(len(leg["measurement"]["requests"]) == len(PROMPTS) for leg in state["legs"])
    again = len(runner.llama.asked) - 6 * len(PROMPTS)
    assert 1 <= again <= len(PROMPTS), "of the leg that was cut, and of no other"


def test_a_variant_that_does_not_start_does_not_stop_the_others(runner: Runner) -> None:
    runner.systemd.on_start = lambda command, _environment: "failed" if command[-1] == "2" else "active"
    runner.systemd.journal = "error: out of memory\n"
    runner.die_after_save = 3
    with pytest.raises(Killed):
        runner.run(WORK)
    state = runner.run(WORK)
    assert legs(state) == [(step.variant, step.number) for step in _bench.steps(WORK)]
    for leg in state["legs"]:
        if leg["variant"] == "b":
            assert set(leg) == {"variant", "round", "error"}
            assert "out of memory" in leg["error"]
        else:
            assert leg["measurement"]["complete"] is True
    assert len(runner.systemd.started) == 6, "what failed is not tried again"
    assert state["complete"] is True


def test_a_server_that_dies_while_it_answers_is_recorded(runner: Runner) -> None:
    def die() -> None:
        if len(runner.llama.asked) == 1:
            runner.llama.before = lambda: None
            raise ConnectionAbortedError

    runner.llama.before = die
    state = runner.run(replace(WORK, rounds=1))
    assert "may have died" in state["legs"][0]["error"]
    assert "measurement" in state["legs"][1]


def test_a_board_that_is_taken_away_ends_the_run_without_a_verdict_on_the_variant(runner: Runner) -> None:
    def take_away() -> None:
        if len(runner.llama.asked) == 3:
            runner.llama.before = lambda: None
            runner.systemd.command(["systemctl", "stop", _variants.GUARD])
            raise ConnectionAbortedError

    runner.llama.before = take_away
    with pytest.raises(StageLost, match="somebody stopped it"):
        runner.run(WORK)
    kept = json.loads(runner.dest.read_text())
    assert legs(kept) == [("a", 1)]
    assert legs(runner.run(WORK))[1:] == [("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)]


# Load, depth and perplexity


def test_load_gives_each_request_a_slot_of_its_own(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def measure(_session: Any, _work: Work, prompts: list[dict[str, Any]], at_once: int = 1) -> dict[str, Any]:
        asked.append((at_once, len(prompts)))
        return {"requests": []}

    monkeypatch.setattr(_bench, "measure", measure)
    state = runner.run(replace(WORK, rounds=1, load=(1, 4)))
    assert asked[2:] == [(1, 2), (1, 2), (4, 2), (4, 2)]
    assert [(entry["variant"], entry["at_once"]) for entry in state["load"]] == [
        *(("a", 1), ("b", 1)),
        *(("a", 4), ("b", 4)),
    ]
    assert state["load"][0]["args"] == list(A.args)
    assert state["load"][2]["args"] == [*A.args, "--parallel", "4", "-c", "16384"]
    assert runner.systemd.started[-2][0][-4:] == ["--parallel", "4", "-c", "16384"]


@pytest.mark.parametrize(("at_once", "rounds"), [(1, 1), (2, 2), (3, 3), (8, 8)])
def test_every_stream_of_a_load_gets_two_requests(at_once: int, rounds: int) -> None:
    class Session:
        def run(self, prompts: list[Any], n_predict: int, rounds: int, ready_s: float, **more: int) -> dict[str, Any]:
            return {"prompts": len(prompts), "n_predict": n_predict, "rounds": rounds, **more}

    session: Any = Session()
    told = _bench.measure(session, WORK, list(PROMPTS), at_once)
    assert told == {"prompts": 2, "n_predict": 4, "rounds": rounds, **({"at_once": at_once} if at_once > 1 else {})}


def test_depth_pads_the_prompt_to_its_length(runner: Runner) -> None:
    state = runner.run(replace(WORK, rounds=1, depths=(20, 8000)))
    assert [(entry["variant"], entry["depth"]) for entry in state["depth"]] == [
        *(("a", 20), ("b", 20)),
        *(("a", 8000), ("b", 8000)),
    ]
    for entry in state["depth"]:
        (request,) = entry["measurement"]["requests"]
        assert request["n_prompt"] == entry["depth"]
    assert state["depth"][0]["args"] == list(A.args)
    assert state["depth"][2]["args"][-1] == str(8000 + 4 + _bench.SLACK_TOKENS)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"tokens": []}', b'{"tokens": 3}', b'{"error": "no"}'])
def test_a_server_that_makes_no_tokens_is_recorded(runner: Runner, body: bytes) -> None:
    runner.llama.web.answers["/tokenize"] = lambda _request: (200, body)
    state = runner.run(replace(WORK, rounds=1, depths=(20,)))
    assert "/tokenize" in state["depth"][0]["error"]
    assert state["complete"] is True


def test_perplexity_of_each_variant(runner: Runner, text: str) -> None:
    runner.systemd.on_start = lambda command, _environment: "inactive" if "--file" in command else "active"
    runner.systemd.journal = "Final estimate: PPL = 6.2344 +/- 0.10000\n"
    work = replace(WORK, rounds=1, perplexity=_bench.Perplexity(text, 4, 512))
    state = runner.run(work)
    assert state["perplexity"] == [{"variant": name, "value": 6.2344, "error_margin": 0.1} for name in ("a", "b")]
    runner.dest.unlink()
    runner.systemd.journal = "error: no memory\n"
    assert "no memory" in runner.run(work)["perplexity"][0]["error"]


def test_a_text_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(_variants.StageError, match="must be a text file on the board"):
        _bench.Perplexity(str(tmp_path / "none"), 4, 512).text_sha256()


# What a run may go on from


def key(work: Work, base: Any, sha256: str = "") -> str:
    return _bench.key_of(work, base, sha256)


def test_the_order_of_prompts_changes_no_key(base: Any) -> None:
    assert key(WORK, base) == key(replace(WORK, prompts=PROMPTS[::-1]), base)
    assert key(WORK, base) == key(WORK, replace(base, url="http://127.0.0.1:1"))


def test_every_input_changes_the_key(base: Any, text: str, tmp_path: Path) -> None:
    perplexity = replace(WORK, perplexity=_bench.Perplexity(text, 4, 512))
    keys = [
        key(WORK, base),
        key(WORK, base, "abc"),
        key(WORK, replace(base, model="/mnt/other.gguf")),
        key(WORK, replace(base, program="/opt/other/llama-server")),
        key(replace(WORK, n_predict=5), base),
        key(replace(WORK, rounds=4), base),
        key(replace(WORK, order="blocks"), base),
        key(replace(WORK, load=(1,)), base),
        key(replace(WORK, depths=(1,)), base),
        key(replace(WORK, reference="b"), base),
        key(replace(WORK, prompts=PROMPTS[:1]), base),
        key(replace(WORK, variants=(A,)), base),
        key(replace(WORK, labels={"power_mode": "15W"}), base),
        *(
            key(replace(WORK, variants=(A, replace(B, **{name: value}))), base)
            for name, value in {
                "args": ("-t", "3"),
                "environment": {"A": "1"},
                "floor": False,
                "read_ahead_kb": 8,
            }.items()
        ),
        key(perplexity, base),
    ]
    Path(text).write_text("another text")
    keys.append(key(perplexity, base))
    assert len(set(keys)) == len(keys)


def test_a_program_behind_a_link_is_the_one_that_it_leads_to(base: Any, tmp_path: Path) -> None:
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "llama-server").touch()
    (tmp_path / "current").symlink_to("one")
    linked = replace(base, program=str(tmp_path / "current/llama-server"))
    first = key(WORK, linked)
    assert first == key(WORK, replace(base, program=str(tmp_path / "one/llama-server")))
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("two")
    assert key(WORK, linked) != first


def test_a_run_is_not_gone_on_from_with_other_settings_or_when_it_is_complete(runner: Runner) -> None:
    runner.run(WORK)
    path = str(runner.dest)
    assert _bench.read_state(path, WORK, key(WORK, runner.base)) == (None, "it is complete")
    other = replace(WORK, n_predict=5)
    assert _bench.read_state(path, other, key(other, runner.base)) == (None, "it was measured with other settings")
    assert _bench.read_state(path + "x", WORK, "k") == (None, "")


def hostile(good: dict[str, Any]) -> list[Any]:
    leg = good["legs"][0]
    return [
        *(b"", b"\xff\xfe", b"[" * 100_000, b"null", b"[]", b"{}", b'"x"', b"1e999"),
        *({**good, name: value} for name in good for value in (None, [1], {"a": 1}, "../x", -1, True, [[leg]])),
        *({name: value for name, value in good.items() if name != gone} for gone in good),
        {**good, "legs": [leg, leg]},
        {**good, "legs": [{**leg, "variant": "c"}]},
        {**good, "legs": [{**leg, "variant": ["a"]}]},
        {**good, "legs": [{**leg, "round": 4}]},
        {**good, "legs": [{"variant": "a", "round": 1}]},
        {**good, "legs": [{"variant": "a", "round": 1, "error": 7}]},
        {**good, "legs": [{"variant": "a", "round": 1, "measurement": "fast"}]},
        {**good, "legs": [{"variant": "a", "round": 1, "error": "\ud800"}]},
        {**good, "perplexity": [{"variant": "a", "value": 6.2}]},
        {**good, "started": "../../etc/passwd"},
    ]


def test_a_hostile_file_is_not_gone_on_from(runner: Runner) -> None:
    runner.die_after_save = 2
    with pytest.raises(Killed):
        runner.run(WORK)
    good = json.loads(runner.dest.read_text())
    wanted = key(WORK, runner.base)
    path = str(runner.dest)
    assert _bench.read_state(path, WORK, wanted) == (good, "")
    harmless = 0
    for content in hostile(good):
        runner.dest.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        state, why = _bench.read_state(path, WORK, wanted)
        if state is None:
            assert why
            continue
        # Then it is a state with nothing in it that is not this program's.
        harmless += 1
        assert state == {**_bench.new_state(WORK, wanted), **{k: state[k] for k in ("started", "legs")}}
        assert not set(_bench._done(state)) - set(_bench.steps(WORK))
    assert harmless < 20


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({**_bench.new_state(WORK, "k"), "legs": value, "load": value}))
    state, why = _bench.read_state(str(path), WORK, "k")
    assert (state is None) == bool(why)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)])
def test_what_is_no_file_is_not_gone_on_from(tmp_path: Path, make: Callable[[str], None]) -> None:
    path = str(tmp_path / "bench.json")
    make(path)
    assert _bench.read_state(path, WORK, "k") == (None, "it is no file of a bench")
    os.replace(path, _run_file.previous(path))
    assert os.path.lexists(tmp_path / "bench.previous.json")


# The module


class Module:
    """Calls the module as Ansible does, on the pretended board."""

    def __init__(self, runner: Runner, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys, self.dest = folder, capsys, folder / "state" / "bench.json"
        for name in ("llama-server", "m.gguf"):
            (folder / name).touch()
        self.arguments: dict[str, Any] = {
            "program": str(folder / "llama-server"),
            "model": str(folder / "m.gguf"),
            "variants": [A.as_dict(), B.as_dict()],
            "prompts": list(PROMPTS),
            "n_predict": 4,
            "rounds": 2,
            "url": runner.base.url,
            "block_device": "nvme0n1",
            "settle_s": 0,
            "ready_s": 5,
            "dest": str(self.dest),
            "progress_file": str(folder / "progress"),
        }

    def __call__(self, check: bool = False, **more: Any) -> dict[str, Any]:
        arguments = {**self.arguments, **more, "_ansible_check_mode": check}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            bench.main()
        result: dict[str, Any] = json.loads(self.capsys.readouterr().out)
        return result


@pytest.fixture
def module(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Module:
    monkeypatch.setattr(bench, "Host", lambda: runner.systemd)
    # where a test before has loaded the controller's code, warnings would go to the screen in place of the result
    monkeypatch.setattr("ansible.module_utils._internal.is_controller", False)
    return Module(runner, tmp_path, capsys)


def test_the_module_measures_and_puts_the_board_back(runner: Runner, module: Module) -> None:
    found = runner.systemd.as_found()
    result = module()
    assert legs(result["run"]) == [("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert (result["changed"], result["left"], result["resumed"]) == (True, 4, False)
    assert json.loads(module.dest.read_text()) == result["run"]
    assert (module.folder / "progress").read_text() == "step 4 of 4, a, round 2: 2 requests answered\n"
    assert runner.systemd.as_found() == found
    # A complete run is kept beside the new one.
    again = module()
    assert (again["left"], again["resumed"]) == (4, False)
    assert "it is complete" not in str(again.get("warnings"))
    assert json.loads(Path(_run_file.previous(str(module.dest))).read_text()) == result["run"]


def test_check_mode_measures_nothing_and_changes_nothing(runner: Runner, module: Module) -> None:
    result = module(check=True)
    assert (result["changed"], result["run"], result["left"]) == (True, None, 4)
    assert runner.systemd.commands == []
    assert runner.llama.web.requests == []
    assert not module.dest.parent.exists()
    assert not (module.folder / "progress").exists()


def test_the_module_goes_on_from_a_run_that_was_cut(runner: Runner, module: Module) -> None:
    whole = module()["run"]
    module.dest.write_text(json.dumps({**whole, "legs": whole["legs"][:3], "complete": False}))
    asked = len(runner.llama.asked)
    assert module(check=True)["left"] == 1
    result = module()
    assert (result["left"], result["resumed"]) == (1, True)
    assert legs(result["run"]) == legs(whole)
    assert len(runner.llama.asked) == asked + 2
    module.dest.write_text(json.dumps({**whole, "legs": whole["legs"][:3], "complete": False}))
    assert module(restart=True)["resumed"] is False
    module.dest.write_text(json.dumps({**whole, "legs": whole["legs"][:3], "complete": False}))
    other = module(n_predict=5)
    assert other["resumed"] is False
    assert "since it was measured with other settings" in str(other["warnings"])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"program": "/nowhere/llama-server"}, "/nowhere/llama-server is no file on this board"),
        ({"variants": []}, "variants are none"),
        ({"variants": [{"name": "A"}]}, "variant name is 'A'"),
        ({"reference": "c"}, "reference is 'c'"),
        ({"rounds": 0}, "rounds is 0; it must be at least 1"),
        ({"settle_s": -1}, "settle_s is -1.0"),
        ({"url": "https://x"}, "it must be http://HOST:PORT"),
        ({"unit": "x"}, "'x' is no name of a service unit"),
        ({"perplexity": {"file": "/nowhere"}}, "perplexity.file is '/nowhere'"),
        ({"perplexity": {"file": "/nowhere", "chunks": 0}}, "perplexity.chunks is 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_happens(
    runner: Runner, module: Module, wrong: dict[str, Any], says: str
) -> None:
    result = module(**wrong)
    assert result["failed"] is True
    assert says in result["msg"]
    assert runner.systemd.started == []
    assert not module.dest.exists()


def test_what_the_module_returns_is_documented(module: Module) -> None:
    returned = yaml.safe_load(bench.RETURN)
    result = module()
    assert set(result) - {"changed", "invocation", "warnings"} == set(returned)
    assert set(result["run"]) == set(returned["run"]["contains"])
