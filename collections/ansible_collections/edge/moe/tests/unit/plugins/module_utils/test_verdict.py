# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _verdict
from hypothesis import given
from hypothesis import strategies as st

PLAN = {"decision": "cache", "floor": True}
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
        },
        "memory_swap_max": "0",
        "swap_on": True,
        "unit": "edge-moe-server.service",
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
    ],
)
def test_each_fault_has_its_class_evidence_and_remedy(path: str, value: Any, kind: str, evidence: str) -> None:
    verdict = _verdict.judge(reference(), change(path, value), PLAN)
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
