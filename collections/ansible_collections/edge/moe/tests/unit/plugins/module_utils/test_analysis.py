# SPDX-License-Identifier: GPL-3.0-or-later
"""What the figures of a run say: the published study's own come back, and no file that a cut run left stops it."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _analysis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("edge_moe_testbed", reason="needs the project's test bed, which no archive holds")
from edge_moe_testbed import samples


def described(run: Any) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in _analysis.analyse(run)["variants"]}


def leg(variant: str, round_number: int, speeds: dict[str, float], **measurement: Any) -> dict[str, Any]:
    requests = [
        {"id": prompt, "round": 1, "decode_tokens_per_s": speed, "n_decoded": 8, "text": "a", "tokens": [1]}
        for prompt, speed in speeds.items()
    ]
    return {"variant": variant, "round": round_number, "measurement": {"requests": requests, **measurement}}


def run_of(*legs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "bench", "complete": True, "reference": "a", "legs": list(legs), **more}


def test_the_published_stages_come_back() -> None:
    found = described(samples.stages_run())
    assert list(found) == ["mmap", "mmap-floor", "cache-published", "served"]
    assert [round(row["decode"]["mean"], 2) for row in found.values()] == [2.73, 3.37, 4.39, 4.96]
    assert [row["ratio"]["value"] for row in found.values()] == pytest.approx([1.00, 1.235, 1.61, 1.82], abs=0.006)
    assert [found[name]["joules_per_token"] for name in ("mmap", "mmap-floor")] == pytest.approx(
        [2.95, 2.86], abs=0.005
    )
    for row in found.values():
        assert row["ratio"]["low"] <= row["ratio"]["value"] <= row["ratio"]["high"]
        assert row["ratio"]["pairs"] == row["decode"]["n"] == 24
    assert found["mmap"]["clocks"]["shares"][samples.LOW_HZ] == pytest.approx(0.994)
    assert found["mmap"]["clocks"]["load"] == 0.36
    assert found["served"]["hit_share"] == pytest.approx(0.68, abs=0.001)
    assert found["mmap"]["hit_share"] is None
    assert found["mmap"]["nvme_mib_per_token"] == pytest.approx(270, rel=0.01)
    # a prompt costs energy too, so a token of a whole request takes more than one of decoding
    assert found["mmap"]["power"]["joules_per_token_with_prompts"] > found["mmap"]["joules_per_token"]


def test_the_published_line_comes_back() -> None:
    line = _analysis.analyse(samples.line_run())["line"]
    assert line["points"] == 24
    assert line["fixed_ms"] == pytest.approx(193, abs=3)
    assert line["ms_per_mib"] == pytest.approx(0.64, abs=0.01)
    assert line["ceiling_tokens_per_s"] == pytest.approx(5.2, abs=0.05)
    assert line["r2"] > 0.99


def test_stages_lie_on_lines_of_their_own_and_no_line_is_drawn_through_all() -> None:
    analysed = _analysis.analyse(samples.stages_run())
    assert analysed["line"] is None
    lines = {row["name"]: row["line"] for row in analysed["variants"]}
    assert lines["mmap"]["ceiling_tokens_per_s"] == pytest.approx(5.2, abs=0.1)
    # the floor takes 69 ms off what is fixed and nothing off what is read
    assert lines["mmap"]["fixed_ms"] - lines["mmap-floor"]["fixed_ms"] == pytest.approx(69, abs=6)
    assert lines["mmap"]["ms_per_mib"] == pytest.approx(lines["mmap-floor"]["ms_per_mib"], abs=0.02)


def test_a_ratio_pairs_the_same_prompt_and_round_and_nothing_else() -> None:
    slow, fast = {"x": 1.0, "y": 10.0}, {"x": 2.0, "y": 20.0}
    found = described(run_of(leg("a", 1, slow), leg("b", 1, {**fast, "z": 900.0}), leg("b", 2, {"x": 700.0})))
    assert found["b"]["ratio"] == pytest.approx({"value": 2.0, "low": 2.0, "high": 2.0, "pairs": 2, "prompts": 2})


def test_rounds_of_a_prompt_are_one_witness() -> None:
    """Ten rounds of two prompts that disagree say no more than two prompts: the interval stays wide."""
    base = {(prompt, number, 1): 1.0 for prompt in "xy" for number in range(10)}
    other = {key: 1.1 if key[0] == "x" else 1.3 for key in base}
    ratio = _analysis.paired_ratio(base, other)
    assert ratio is not None
    assert ratio["value"] == pytest.approx(math.sqrt(1.1 * 1.3))
    assert ratio["low"] < 1
    assert ratio["high"] > 1.3
    assert (ratio["pairs"], ratio["prompts"]) == (20, 2)


def test_one_pair_has_no_interval_and_one_prompt_has_that_of_its_rounds() -> None:
    one = _analysis.paired_ratio({("x", 1, 1): 2.0}, {("x", 1, 1): 3.0})
    assert one is not None
    assert (one["value"], one["low"], one["high"]) == (pytest.approx(1.5), None, None)
    rounds = _analysis.paired_ratio(
        {("x", number, 1): 2.0 for number in (1, 2, 3)}, {("x", 1, 1): 2.9, ("x", 2, 1): 3.0, ("x", 3, 1): 3.1}
    )
    assert rounds is not None
    assert 1.3 < rounds["low"] < 1.5 < rounds["high"] < 1.7
    assert _analysis.paired_ratio({("x", 1, 1): 2.0}, {("y", 1, 1): 2.0}) is None


@pytest.mark.parametrize(("prompts", "least"), [(3, 0.93), (12, 0.93), (40, 0.93)])
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(prompts: int, least: float) -> None:
    chance, held, tries = random.Random(prompts), 0, 600
    for _try in range(tries):
        base = {(str(number), 1, 1): chance.lognormvariate(0, 0.3) for number in range(prompts)}
        other = {key: speed * 1.5 * chance.lognormvariate(0, 0.1) for key, speed in base.items()}
        ratio = _analysis.paired_ratio(base, other)
        assert ratio is not None
        held += ratio["low"] <= 1.5 <= ratio["high"]
    assert least <= held / tries <= 0.98


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(10.0, 100.0)],
        [(10.0, 100.0), (90.0, 150.0)],
        [(50.0, 100.0)] * 9,
        [(100.0 + step / 10, 100.0 + step) for step in range(9)],
    ],
    ids=["none", "one", "two", "equal reads", "reads too alike"],
)
def test_no_line_through_what_is_none(points: list[tuple[float, float]]) -> None:
    assert _analysis.fit_line(points) is None


@pytest.mark.parametrize(
    "points",
    [
        [(10.0, 300.0), (100.0, 200.0), (200.0, 100.0)],
        [(100.0, 10.0), (200.0, 110.0), (300.0, 210.0)],
    ],
    ids=["reading more is faster", "reading nothing takes less than no time"],
)
def test_no_ceiling_from_a_line_that_cannot_be(points: list[tuple[float, float]]) -> None:
    line = _analysis.fit_line(points)
    assert line is not None
    assert line["ceiling_tokens_per_s"] is None


def test_a_run_that_was_cut_says_so_and_gives_what_it_has() -> None:
    run = samples.stages_run()
    run["complete"] = False
    run["legs"] = [*run["legs"][:2], {"variant": "cache-published", "round": 1, "error": "the server died: oom-kill"}]
    analysed = _analysis.analyse(run)
    rows = {row["name"]: row for row in analysed["variants"]}
    assert rows["mmap-floor"]["ratio"]["value"] == pytest.approx(1.235, abs=0.006)
    assert rows["served"]["decode"] is rows["served"]["ratio"] is None
    assert any("was cut" in line for line in analysed["warnings"])
    assert any("cache-published" in line and "oom-kill" in line for line in analysed["warnings"])


def test_throttling_swap_and_heat_are_told() -> None:
    run = samples.stages_run(rounds=1)
    run["legs"][3]["measurement"].update(
        throttle={"events": {"oc1_event_cnt": 12}, "cooling": {"cpufreq-cpu0": 3}},
        memory={"oom_kills": 1, "swap_bytes": 64 * samples.MIB},
        heat={"max_celsius": 97.2, "hot_celsius": 99.0},
        cpu={"lowest_allowed_share": 0.25},
        warnings=["bytes read are unknown"],
    )
    told = "\n".join(_analysis.analyse(run)["warnings"])
    for part in ("oc1_event_cnt 12", "cpufreq-cpu0 3", "97 °C", "64 MiB", "killed for memory 1", "25%", "are unknown"):
        assert part in told
    assert "mmap:" not in told


def test_unsteady_requests_few_prompts_and_short_answers_are_told() -> None:
    run = run_of(leg("a", 1, {"x": 1.0, "y": 1.05}), leg("b", 1, {"x": 1.0, "y": 2.0}))
    for entry in run["legs"]:
        for request in entry["measurement"]["requests"]:
            request["n_prompt"] = 30
    told = "\n".join(_analysis.analyse(run)["warnings"])
    assert "Decode varies between requests: b by 47%." in told
    assert "Ratios rest on 2 prompts" in told
    assert "30 tokens of prompt for 8 decoded ones" in told


def test_load_and_depth_and_perplexity_are_tables() -> None:
    analysed = _analysis.analyse(samples.stages_run())
    assert [row["at_once"] for row in analysed["load"]] == [1, 2, 4, 8]
    assert [row["throughput_tokens_per_s"] for row in analysed["load"]] == pytest.approx([4.9, 6.6, 8.1, 8.2])
    assert analysed["load"][2]["latency_ms"]["mean"] == pytest.approx(256 * 4 / 8.1 * 1000)
    assert [(row["depth"], row["decode"]["mean"]) for row in analysed["depth"]][-1] == (4096, 4.62)
    assert [row["change"] for row in analysed["perplexity"]] == [0, 0]


def test_texts_are_compared_with_the_reference_in_every_round() -> None:
    run = samples.stages_run()
    assert all(row["equal"] and row["compared"] == 24 for row in _analysis.analyse(run)["texts"])
    run["legs"][-1]["measurement"]["requests"][5]["text"] += " another end"
    rows = {row["variant"]: row for row in _analysis.analyse(run)["texts"]}
    assert rows["mmap-floor"]["equal"] is True
    assert rows["served"]["equal"] is False
    assert "another end" in rows["served"]["differences"][0]


def test_a_verify_result_is_a_run_of_two() -> None:
    result = samples.verify_result()
    analysed = _analysis.analyse(result)
    assert [row["name"] for row in analysed["variants"]] == ["reference", "served"]
    assert analysed["variants"][1]["ratio"]["value"] == pytest.approx(4.96 / 3.37, rel=0.01)
    assert analysed["variants"][1]["ratio"]["pairs"] == 24
    assert analysed["started"] == result["served"]["started"]
    assert analysed["warnings"] == []


def test_two_results_compared() -> None:
    old = samples.verify_result(release="1" * 16, started="2026-11-26T12:00:00Z", speed=4.39, threads=6)
    new = samples.verify_result(failures=[{"class": "throttled", "evidence": "", "remedy": ""}])
    new["served"]["requests"][3]["text"] = "reference or served, it stays."
    found = _analysis.compare(old, new)
    assert {row["what"]: (row["old"], row["new"]) for row in found["changed"]} == {
        "release": ("1" * 16, "49a62990f65c5724"),
        "plan: threads": ("6", "4"),
    }
    speeds = {row["variant"]: row for row in found["speeds"]}
    assert speeds["served"]["ratio"]["value"] == pytest.approx(4.96 / 4.39, rel=0.01)
    assert speeds["reference"]["same_measurement"] is True
    assert speeds["served"]["same_measurement"] is False
    assert (found["old"]["verdict"], found["new"]["verdict"]) == ("passed", "throttled")
    texts = {row["variant"]: row for row in found["texts"]}
    assert texts["reference"]["equal"] is True
    (line,) = texts["served"]["differences"]
    assert "earlier round 1 against later round 1" in line
    assert "reference or served, it" in line, "the text itself is left as it is"


def test_runs_of_different_models_or_lengths_are_not_compared_by_text() -> None:
    old, new = samples.verify_result(), samples.verify_result()
    new["model_sha256"] = "other"
    assert _analysis.compare(old, new)["texts_apart"] == "they are of different models"
    short = copy.deepcopy(old)
    for request in short["served"]["requests"]:
        request["n_decoded"] = 12
    assert _analysis.compare(old, short)["texts_apart"] == "they are of different lengths"
    assert _analysis.compare(old, short)["texts"] == []


def test_runs_with_other_variants_say_which() -> None:
    new = samples.stages_run()
    old = copy.deepcopy(new)
    old["legs"] = [entry for entry in old["legs"] if entry["variant"] != "served"]
    old["variants"] = old["variants"][:3]
    found = _analysis.compare(old, new)
    assert found["only_new"] == ["served"]
    assert [row["variant"] for row in found["speeds"]] == ["mmap", "mmap-floor", "cache-published"]


def test_history_is_in_order_of_time() -> None:
    results = [samples.verify_result(started=f"2026-11-{day}T12:00:00Z", speed=day / 4) for day in (29, 11, 20)]
    rows = _analysis.history([*results, {"served": {"decode_tokens_per_s": 9.0}, "reference": {}}])
    assert [row["started"][8:10] for row in rows] == ["11", "20", "29"]
    assert [row["verdict"] for row in rows] == ["passed"] * 3


# What a file may hold


HOSTILE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just(10**400), st.just(-1),
    st.just(5e-324), st.just(1e308), st.lists(st.integers(), max_size=2), st.just({}), st.just([{}]),
)  # fmt: skip


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, item in below for path in paths(item, (*at, key)))]


def small(record: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(record)
    record = json.loads(text)
    for side in [entry["measurement"] for entry in record.get("legs", [])] or [record["reference"], record["served"]]:
        side["requests"] = side["requests"][:3]
    return record


RECORDS = [small(samples.stages_run(rounds=1)), small(samples.verify_result())]
PLACES = [paths(record)[1:] for record in RECORDS]


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), which=st.sampled_from([0, 1]))
def test_no_value_anywhere_stops_it(data: st.DataObject, which: int) -> None:
    record = copy.deepcopy(RECORDS[which])
    for path in data.draw(st.lists(st.sampled_from(PLACES[which]), min_size=1, max_size=4)):
        holder: Any = record
        try:
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = data.draw(HOSTILE)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    for made in (
        _analysis.analyse(record),
        _analysis.compare(record, RECORDS[which]),
        _analysis.compare(RECORDS[1 - which], record),
        _analysis.history([record]),
    ):
        json.dumps(made, allow_nan=False)


@pytest.mark.parametrize("record", [None, [], "text", 3, {}, {"legs": None}, {"reference": 1, "served": []}])
def test_what_is_no_record_has_no_figures(record: Any) -> None:
    analysed = _analysis.analyse(record)
    assert all(row["decode"] is None for row in analysed["variants"])
    assert analysed["line"] is None
    assert _analysis.compare(record, record)["changed"] == []
