# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import ast
import copy
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _history, _verdict, _verdict_rules
from hypothesis import given
from hypothesis import strategies as st

PLAN = {"decision": "cache", "floor": True, "n_gpu_layers": 0}
GPU_PLAN = {**PLAN, "n_gpu_layers": 999}
TEXT = "The river bends because its outer bank wears away faster than its inner bank."


def requests(text: str = TEXT) -> list[dict[str, Any]]:
    return [
        {
            "id": prompt,
            "round": number,
            "text": text + prompt,
            "tokens": [1, 2, 3, 4],
            "text_sha256": prompt,
            "n_decoded": 4,
        }
        for number in (1, 2)
        for prompt in ("en-1", "ko-1")
    ]


def reference() -> dict[str, Any]:
    return {"complete": True, "requests": requests(), "decode_tokens_per_s": 3.0, "nvme_bytes": 9_000_000}


def served() -> dict[str, Any]:
    return {
        "complete": True,
        "requests": requests(),
        "decode_tokens_per_s": 4.5,
        "nvme_bytes": 5_000_000,
        "cache_info": {"mode": "cache", "reason": None},
        "cache": {"hits": {"decode": 660}, "misses": {"decode": 340}, "bypass": {"decode": 0}, "errors": 0},
        "floor": {"transitions_delta": 8, "raised_after": 0},
        "gpu": {
            "max_hz_seen": 1_020_000_000,
            "share_at_max": 0.97,
            "samples": 900,
            "lowest_hz": 306_000_000,
            "highest_hz": 1_020_000_000,
            "after_hold_hz": 305_965_000,
            "load": {"mean": 0.4, "max": 0.9},
        },
        "cpu": {"allowed_khz": 1_728_000, "full_khz": 1_728_000, "lowest_allowed_share": 0.0},
        "heat": {"max_celsius": 61.5, "zone": "cpu-thermal", "hot_celsius": 99.0},
        "throttle": {"events": {"oc1_event_cnt": 0}, "cooling": {}},
        "memory": {"oom_kills": 0, "swap_bytes": 0, "peak_bytes": 700 << 20},
        "log": {
            "lines": 300,
            "nvmap_errors": 0,
            "cuda_errors": 0,
            "gpu_layers": [49, 49],
            "no_gpu": False,
            "first": {},
        },
        "memory_swap_max": "0",
        "swap_on": True,
        "unit": "edge-moe-server.service",
        "started": "2026-11-29T12:00:00Z",
        "n_predict": 4,
    }


def classes(verdict: dict[str, Any]) -> list[str]:
    return [failure["class"] for failure in verdict["failures"]]


def test_a_board_that_is_right() -> None:
    verdict = _verdict.judge(reference(), served(), PLAN)
    assert verdict["failures"] == []
    assert verdict["passed"] is True
    assert verdict["text_equal"] is True
    assert verdict["ratio"] == 1.5
    assert (verdict["requests"], verdict["prompts"]) == (4, 2)
    assert verdict["hit_share"] == 0.66
    assert (verdict["gpu_decode_hz"], verdict["gpu_after_hz"]) == (1_020_000_000, 305_965_000)
    assert (verdict["memory_swap_max"], verdict["swap_on"]) == ("0", True)


def change(path: str, value: Any) -> dict[str, Any]:
    measurement = served()
    place: Any = measurement
    *parents, last = path.split(".")
    for parent in parents:
        place = place[int(parent) if isinstance(place, list) else parent]
    place[int(last) if isinstance(place, list) else last] = value
    return measurement


def without(measurement: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    changed = copy.deepcopy(measurement)
    place = changed
    for parent in path[:-1]:
        place = place[parent]
    del place[path[-1]]
    return changed


def paths(value: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, item in value.items() if isinstance(value, dict) else ():
        yield (*above, key)
        yield from paths(item, (*above, key))


@pytest.mark.parametrize(
    ("path", "value", "kind", "evidence"),
    [
        ("requests.3.text", TEXT.replace("wears", "hears") + "ko-1", "text_differs", "character 39"),
        ("requests.0.text", TEXT, "text_differs", "character 77"),
        ("requests.2.tokens", [1, 2, 9, 4], "text_differs", "token 2 differs: [3, 4] against [9, 4]"),
        ("requests.2.text_sha256", "other", "text_differs", "their bytes differ"),
        ("requests.1.n_decoded", 0, "text_differs", "nothing was decoded"),
        ("requests", [], "incomplete", "no requests"),
        ("complete", False, "incomplete", "cut after 4"),
        ("cache_info", None, "cache_inert", "no health file"),
        ("cache_info.mode", "mmap", "cache_inert", "the cache is off"),
        ("cache", {"hits": {"decode": 0}, "misses": {"decode": 0}}, "cache_inert", "not one expert"),
        ("cache", None, "cache_inert", "not one expert"),
        ("cache.bypass.decode", 500, "cache_inert", "went past the cache"),
        ("cache.errors", 2, "read_errors", "2 reads"),
        ("floor", None, "floor_never_raised", "no /run/edge-moe/clock-floor.prom"),
        ("floor.transitions_delta", 0, "floor_never_raised", "did not move"),
        ("gpu", None, "floor_never_raised", "no GPU clock"),
        ("gpu.max_hz_seen", 612_000_000, "floor_never_raised", "612000000 Hz of 1020000000"),
        ("gpu.share_at_max", 0.1, "floor_never_raised", "10%"),
        ("gpu.after_hold_hz", 1_020_000_000, "floor_left_up", "1020000000 Hz after the hold"),
        ("floor.raised_after", 1, "floor_left_up", "still holds"),
        ("memory_swap_max", "max", "swap_not_off", "is max and must be 0"),
        ("memory_swap_max", None, "swap_not_off", "cannot be read"),
        ("decode_tokens_per_s", 2.0, "too_slow", "0.67 of the reference"),
        ("decode_tokens_per_s", None, "too_slow", "no decode speed"),
        ("log.nvmap_errors", 3, "nvmap_error", "3 lines of NvMap and 0 of CUDA errors"),
        ("log.cuda_errors", 1, "nvmap_error", "0 lines of NvMap and 1 of CUDA errors"),
        ("memory.oom_kills", 1, "out_of_memory", "killed 1 processes of edge-moe-server.service"),
        ("error", "the unit ended: Result=oom-kill", "out_of_memory", "Result=oom-kill"),
        ("error", "the unit ended: Result=exit-code", "incomplete", "ended after 4 requests: the unit ended"),
        ("log.gpu_layers", [0, 49], "cpu_fallback", "has 0 of 49 layers on the GPU, not 49"),
        ("log.no_gpu", True, "cpu_fallback", "no usable GPU"),
        ("throttle.cooling", {"cpu-throttle-alert": 1}, "throttled", "cpu-throttle-alert acted (state 1)"),
        ("throttle.events", {"oc1_event_cnt": 2}, "throttled", "oc1_event_cnt counted 2 more"),
        ("cpu.lowest_allowed_share", 0.25, "throttled", "of 1728000 in 25% of the samples"),
        ("heat.max_celsius", 99.5, "throttled", "cpu-thermal reached 99.5 C, hot is 99.0"),
        ("memory.swap_bytes", 3 << 20, "swap_in_use", "3.0 MiB of edge-moe-server.service lay in swap"),
    ],
)
def test_each_fault_has_its_class_evidence_and_remedy(path: str, value: Any, kind: str, evidence: str) -> None:
    verdict = _verdict.judge(reference(), change(path, value), GPU_PLAN)
    assert classes(verdict)[:1] == [kind]
    assert verdict["passed"] is False
    failure = verdict["failures"][0]
    assert evidence in failure["evidence"]
    assert len(failure["remedy"]) > 5
    assert "\n" not in failure["evidence"] + failure["remedy"]


def test_a_difference_is_shown_in_its_context() -> None:
    verdict = _verdict.judge(reference(), change("requests.0.text", TEXT.replace("wears", "hears") + "en-1"), PLAN)
    evidence = verdict["failures"][0]["evidence"]
    assert "prompt en-1: reference round 1 against served round 1" in evidence
    assert "er bank wears away" in evidence
    assert "er bank hears away" in evidence
    assert verdict["text_equal"] is False


def test_a_second_request_that_is_garbage_is_found() -> None:
    """The first is right and the second is not: a slot that was evicted while in use."""
    measurement = change("requests.2.text", "GGGGGGGG")
    assert classes(_verdict.judge(reference(), measurement, PLAN)) == ["text_differs"]


def test_a_reference_that_does_not_repeat_is_found() -> None:
    shaky = reference()
    shaky["requests"][2]["text"] = "else"
    verdict = _verdict.judge(shaky, served(), PLAN)
    assert "the reference itself does not repeat" in verdict["failures"][0]["evidence"]


@pytest.mark.parametrize("key", ["tokens", "text_sha256"])
def test_what_one_side_did_not_record_is_not_compared(key: str) -> None:
    old = reference()
    for request in old["requests"]:
        del request[key]
    assert _verdict.judge(old, served(), PLAN)["passed"] is True


def test_prompts_that_are_missing_on_one_side() -> None:
    fewer = served()
    fewer["requests"] = [request for request in fewer["requests"] if request["id"] != "ko-1"]
    assert "ko-1: the served path gave no answer" in _verdict.judge(reference(), fewer, PLAN)["failures"][0]["evidence"]
    assert "the reference has no answer" in _verdict.judge(fewer, served(), PLAN)["failures"][0]["evidence"]


def test_no_reference_is_no_pass() -> None:
    verdict = _verdict.judge({}, served(), PLAN)
    assert classes(verdict) == ["incomplete"]
    assert verdict["text_equal"] is None
    assert verdict["ratio"] is None


def test_a_dense_model_must_leave_cache_and_floor_alone() -> None:
    plan = {"decision": "resident", "floor": False}
    quiet = {**served(), "cache": None, "cache_info": {"mode": "mmap", "reason": "the model has no experts"}}
    quiet["floor"] = {"transitions_delta": 0, "raised_after": 0}
    assert _verdict.judge(reference(), quiet, plan)["passed"] is True
    assert classes(_verdict.judge(reference(), {**quiet, "floor": {"transitions_delta": 2}}, plan)) == [
        "dense_moved_floor"
    ]
    assert classes(_verdict.judge(reference(), {**quiet, "cache_info": {"mode": "cache"}}, plan)) == ["cache_unplanned"]
    assert _verdict.judge(reference(), {**quiet, "floor": None, "gpu": None}, plan)["passed"] is True


def test_several_faults_are_all_named() -> None:
    measurement = served()
    measurement.update(memory_swap_max="max", decode_tokens_per_s=1.0, cache=None, floor=None)
    assert classes(_verdict.judge(reference(), measurement, PLAN)) == [
        "cache_inert",
        "floor_never_raised",
        "swap_not_off",
        "too_slow",
    ]


def test_a_class_is_named_once_with_all_of_its_evidence() -> None:
    stopped = change("floor.transitions_delta", 0)
    stopped["gpu"].update(max_hz_seen=306_000_000, share_at_max=0.0)
    (failure,) = _verdict.judge(reference(), stopped, PLAN)["failures"]
    assert failure["class"] == "floor_never_raised"
    assert "did not move" in failure["evidence"]
    assert "306000000 Hz of 1020000000" in failure["evidence"]
    assert failure["remedy"] == _verdict.CLASSES["floor_never_raised"].remedy, "once, though it helps against both"
    assert classes(_verdict.judge({}, {}, PLAN)) == ["incomplete"]


def test_a_floor_goes_back_to_what_it_found() -> None:
    measurement = change("gpu.after_hold_hz", 408_000_000)
    assert classes(_verdict.judge(reference(), measurement, PLAN)) == ["floor_left_up"]
    measurement["floor"]["baseline_hz"] = 408_000_000
    assert _verdict.judge(reference(), measurement, PLAN)["passed"] is True


def test_thresholds_move_the_limits() -> None:
    slow = change("decode_tokens_per_s", 2.0)
    assert _verdict.judge(reference(), slow, PLAN, {"min_decode_ratio": "0.5"})["passed"] is True
    above = {"floor_hz": 2_000_000_000}
    assert _verdict.judge(reference(), served(), PLAN, above)["passed"] is True
    capped = change("gpu.max_hz_seen", 612_000_000)
    assert _verdict.judge(reference(), capped, PLAN, {"floor_hz": 612_000_000})["passed"] is True


@pytest.mark.parametrize(
    ("thresholds", "says"),
    [
        ({"min_ratio": 1}, "is not known"),
        ({"min_decode_ratio": "fast"}, "must be a number"),
        ({"min_decode_ratio": -1}, "at least 0"),
        ({"min_decode_ratio": float("nan")}, "at least 0"),
        ({"floor_hz": None}, "must be a number"),
    ],
)
def test_thresholds_that_are_none(thresholds: dict[str, Any], says: str) -> None:
    with pytest.raises(_verdict.VerdictError, match=says):
        _verdict.judge(reference(), served(), PLAN, thresholds)


def test_what_is_handed_in_stays_as_it_was() -> None:
    one, two = reference(), served()
    before = copy.deepcopy((one, two))
    _verdict.judge(one, two, PLAN)
    assert (one, two) == before
    json.dumps(_verdict.judge(one, two, PLAN))


@given(st.text(max_size=60), st.text(max_size=60))
def test_the_first_difference_is_the_first(reference_text: str, served_text: str) -> None:
    difference = _verdict.first_difference(reference_text, served_text)
    if reference_text == served_text:
        assert difference is None
        return
    assert difference is not None
    place = difference["character"]
    assert reference_text[:place] == served_text[:place]
    assert reference_text[place : place + 1] != served_text[place : place + 1]


@given(st.integers(0, 3), st.integers(0, len(TEXT) - 1), st.characters(exclude_categories=["Cs"]))
def test_any_one_wrong_character_is_found(request_number: int, place: int, character: str) -> None:
    measurement = served()
    request = measurement["requests"][request_number]
    changed = request["text"][:place] + character + request["text"][place + 1 :]
    same = changed == request["text"]
    request["text"] = changed
    assert _verdict.judge(reference(), measurement, PLAN)["passed"] is same


def test_every_class_is_found_by_some_rule_and_no_rule_finds_another() -> None:
    called = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(_verdict_rules)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
    ]
    assert {ast.literal_eval(node.args[0]) for node in called} == set(_verdict.CLASSES)


def test_causes_stand_above_what_they_explain() -> None:
    order = list(_verdict.CLASSES)
    for cause, about in _verdict.CLASSES.items():
        assert all(order.index(symptom) > order.index(cause) for symptom in about.explains)
        assert all(len(text) > 10 and "\n" not in text for text in (about.meaning, about.evidence, about.remedy))


@pytest.mark.parametrize(
    ("path", "value", "cause"),
    [
        ("throttle.cooling", {"gpu-devfreq": 3}, "throttled"),
        ("log.gpu_layers", [0, 49], "cpu_fallback"),
        ("memory.swap_bytes", 1 << 20, "swap_in_use"),
        ("cache_info.mode", "mmap", "cache_inert"),
    ],
)
def test_a_cause_comes_before_the_slowness_that_it_explains(path: str, value: Any, cause: str) -> None:
    slow = change(path, value)
    slow["decode_tokens_per_s"] = 1.0
    failures = _verdict.judge(reference(), slow, GPU_PLAN)["failures"]
    assert [(failure["class"], failure["because"]) for failure in failures] == [(cause, []), ("too_slow", [cause])]


def test_a_slow_board_without_a_known_cause_says_so() -> None:
    (failure,) = _verdict.judge(reference(), change("decode_tokens_per_s", 1.0), GPU_PLAN)["failures"]
    assert failure["because"] == []


def test_a_server_that_was_killed_is_incomplete_because_of_memory() -> None:
    """The measuring ended with the server: nothing is known of its cache, and nothing is said of it."""
    died = {
        "complete": False,
        "requests": requests()[:1],
        "error": "http://127.0.0.1:8080 broke a request off: edge-moe-server.service ended, Result=oom-kill, status 9",
        "unit": "edge-moe-server.service",
    }
    verdict = _verdict.judge(reference(), died, GPU_PLAN)
    assert [(failure["class"], failure["because"]) for failure in verdict["failures"]] == [
        ("out_of_memory", []),
        ("incomplete", ["out_of_memory"]),
    ]
    assert "ended after 1 requests" in verdict["failures"][1]["evidence"]
    assert (verdict["text_equal"], verdict["ratio"]) == (True, None)


def test_a_server_that_its_gpu_killed_is_incomplete_because_of_that() -> None:
    journal = (
        "load_tensors: offloaded 3/49 layers to GPU\n"
        "NvMapMemAllocInternalTagged: 1075072515 error 12\n"
        "CUDA error: out of memory\n"
    )
    died = {
        "complete": False,
        "requests": [],
        "error": "signal SIGABRT ended it (Result=core-dump)",
        "journal": journal,
    }
    failures = _verdict.judge(reference(), died, GPU_PLAN)["failures"]
    assert [(failure["class"], failure["because"]) for failure in failures] == [
        ("nvmap_error", []),
        ("incomplete", ["nvmap_error"]),
        ("cpu_fallback", ["nvmap_error"]),
    ]
    assert "1 lines of NvMap and 1 of CUDA errors, first: NvMapMemAllocInternalTagged" in failures[0]["evidence"]


def test_answers_before_a_death_are_compared() -> None:
    died = {"complete": False, "requests": requests("Something else. ")[:1], "error": "the server died"}
    assert classes(_verdict.judge(reference(), died, GPU_PLAN)) == ["incomplete", "text_differs"]


def test_a_server_that_never_started() -> None:
    error = "the unit edge-moe-server.service is not running"
    verdict = _verdict.judge(reference(), {"complete": False, "requests": [], "error": error}, GPU_PLAN)
    assert classes(verdict) == ["incomplete"]
    assert error in verdict["failures"][0]["evidence"]
    reversed_ = _verdict.judge({"complete": False, "requests": [], "error": error}, served(), GPU_PLAN)
    assert classes(reversed_) == ["incomplete"]
    assert "the reference measurement ended after 0 requests" in reversed_["failures"][0]["evidence"]


def test_the_log_line_is_shown_on_one_line() -> None:
    measurement = change("log.nvmap_errors", 1)
    measurement["log"]["first"] = {"nvmap_errors": "NvMap\nerror \x1b[31m12" + "x" * 999}
    evidence = _verdict.judge(reference(), measurement, GPU_PLAN)["failures"][0]["evidence"]
    assert "first: NvMap error ?[31m12" in evidence
    assert len(evidence) < 400


def test_a_plan_without_gpu_layers_needs_no_gpu() -> None:
    measurement = change("log.no_gpu", True)
    measurement["log"]["gpu_layers"] = [0, 49]
    measurement["gpu"]["load"]["max"] = 0
    assert _verdict.judge(reference(), measurement, PLAN)["passed"] is True


def test_an_idle_gpu_counts_where_the_log_says_nothing() -> None:
    idle = change("gpu.load.max", 0)
    assert _verdict.judge(reference(), idle, GPU_PLAN)["passed"] is True
    idle["log"] = None
    assert classes(_verdict.judge(reference(), idle, GPU_PLAN)) == ["cpu_fallback"]


def test_fewer_layers_than_the_plan_has() -> None:
    some = change("log.gpu_layers", [10, 49])
    assert classes(_verdict.judge(reference(), some, GPU_PLAN)) == ["cpu_fallback"]
    assert _verdict.judge(reference(), some, {**PLAN, "n_gpu_layers": 10})["passed"] is True


def test_a_clock_limit_that_never_moved_is_the_power_modes() -> None:
    capped = change("cpu.lowest_allowed_share", 1.0)
    capped["cpu"]["allowed_khz"] = 1_113_600
    assert _verdict.judge(reference(), capped, GPU_PLAN)["passed"] is True


# Earlier results


def result(started: str = "2026-11-28T12:00:00Z", tokens_per_s: float = 6.0, passed: bool = True) -> dict[str, Any]:
    return {
        "release": "r1",
        "model_sha256": "m1",
        "power_mode": {"id": 2, "name": "MAXN_SUPER"},
        "plan": PLAN,
        "served": {**served(), "started": started, "decode_tokens_per_s": tokens_per_s},
        "verdict": {"passed": passed},
    }


def test_slower_than_when_it_last_passed() -> None:
    verdict = _verdict.judge(reference(), served(), PLAN, previous=result())
    (failure,) = verdict["failures"]
    assert failure["class"] == "slower_than_before"
    assert "4.50 tokens/s, 0.75 of the 6.00" in failure["evidence"]
    assert "2026-11-28T12:00:00Z" in failure["evidence"]
    assert (verdict["previous_ratio"], verdict["previous_started"]) == (0.75, "2026-11-28T12:00:00Z")
    limits = {"min_previous_ratio": 0.7}
    assert _verdict.judge(reference(), served(), PLAN, limits, result())["passed"] is True
    assert _verdict.judge(reference(), served(), PLAN, previous=result(tokens_per_s=5.0))["passed"] is True


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("release",), "r2"),
        (("model_sha256",), "m2"),
        (("power_mode", "name"), "25W"),
        (("plan", "decision"), "mmap"),
        (("verdict", "passed"), False),
        (("served", "n_predict"), 256),
        (("served", "requests"), []),
        (("served", "started"), "2026-11-29T12:00:00Z"),
    ],
)
def test_only_a_result_under_the_same_conditions_counts(path: tuple[str, ...], value: Any) -> None:
    now = result("2026-11-29T12:00:00Z")
    other = copy.deepcopy(result())
    assert _history.last_passed([other], now) is other
    place = other
    for parent in path[:-1]:
        place = place[parent]
    place[path[-1]] = value
    assert _history.last_passed([other], now) is None


def test_the_newest_file_that_can_be_read_counts(tmp_path: Path) -> None:
    for name, text in {
        "20261126T120000Z.json": json.dumps(result("2026-11-26T12:00:00Z")),
        "20261127T120000Z.json": json.dumps(result("2026-11-27T12:00:00Z")),
        "20261128T120000Z.json": json.dumps(result("2026-11-28T12:00:00Z", passed=False)),
        "20261128T130000Z.json": '{"release": ',
        "20261128T140000Z.json": "[1]",
        "20261128T150000Z.json": "[" * 100_000,
        "notes.txt": "x",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "20261128T160000Z.json").mkdir()
    found = _history.last_passed(_history.earlier_results(str(tmp_path)), result("2026-11-29T12:00:00Z"))
    assert found is not None
    assert found["served"]["started"] == "2026-11-27T12:00:00Z"
    assert list(_history.earlier_results(str(tmp_path / "none"))) == []


# Old, cut and hostile results


def test_an_old_result_without_the_new_sources_is_judged_by_what_it_has() -> None:
    old = {key: value for key, value in served().items() if key not in ("cpu", "heat", "throttle", "memory", "log")}
    del old["gpu"]["load"]
    assert _verdict.judge(reference(), old, GPU_PLAN)["passed"] is True


NEEDED = ("requests", "decode_tokens_per_s", "cache_info", "cache", "floor", "gpu", "memory_swap_max")


@pytest.mark.parametrize("path", list(paths(served())), ids=".".join)
def test_a_source_that_is_missing_never_breaks_the_verdict(path: tuple[str, ...]) -> None:
    verdict = _verdict.judge(reference(), without(served(), path), GPU_PLAN)
    if path[0] not in NEEDED or path == ("gpu", "load"):
        assert verdict["passed"] is True
    json.dumps(verdict)


hostile = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, float("inf"), float("nan"), "0", "max", "edge-moe\x00"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ALL_PATHS = [*paths(served()), ("error",), ("journal",)]


@given(st.lists(st.tuples(st.sampled_from(ALL_PATHS), hostile), max_size=6), hostile, hostile)
def test_hostile_values_get_a_verdict_in_one_line_each(
    changes: list[tuple[tuple[str, ...], Any]], earlier: Any, plan_value: Any
) -> None:
    measurement = served()
    for path, value in changes:
        place: Any = measurement
        for parent in path[:-1]:
            place = place.get(parent) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place[path[-1]] = value
    plan = {**GPU_PLAN, "n_gpu_layers": plan_value}
    for one, two in ((reference(), measurement), (measurement, served()), (measurement, measurement)):
        verdict = _verdict.judge(one, two, plan, previous={"served": earlier})
        for failure in verdict["failures"]:
            assert failure["class"] in _verdict.CLASSES
            assert not set("\n\r\x1b\x00") & set(failure["evidence"])
        assert verdict["passed"] is not bool(verdict["failures"])
    _history.last_passed([{"served": measurement, "verdict": earlier}], {"served": earlier})


@given(hostile, hostile, hostile)
def test_no_whole_measurement_is_trusted(one: Any, two: Any, plan: Any) -> None:
    assert _verdict.judge(one, two, plan)["passed"] is False
