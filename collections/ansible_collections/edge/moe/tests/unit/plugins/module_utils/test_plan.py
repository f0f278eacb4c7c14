# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _estimate, _plan
from hypothesis import given, settings
from hypothesis import strategies as st

MIB = 1024 * 1024
GIB = 1024 * MIB
# Options of llama-server at the pinned commit that a plan may use.
KNOWN_OPTIONS = {
    "--load-mode",
    "--fit",
    "--no-host",
    "--no-repack",
    "--no-warmup",
    "--cpu-moe",
    "--no-op-offload",
    "-ngl",
    "-t",
    "-c",
    "-b",
    "-ub",
    "--parallel",
    "--cache-ram",
    "--ctx-checkpoints",
    "--metrics",
    "--no-ui",
    "-lv",
}


def model(
    dense: float, experts: float = 0, cycle: float = 0, expert: float = 0, kv: int = 0, recurrent: int = 0, **more: Any
) -> dict[str, Any]:
    """Sizes in MiB, but for keys and values and state, which are in bytes."""
    return {
        "path": "m.gguf",
        "dense_bytes": int(dense * MIB),
        "experts_total_bytes": int(experts * MIB),
        "cycle_bytes": int(cycle * MIB),
        "expert_bytes": int(expert * MIB),
        "kv_bytes_per_token": kv,
        "recurrent_bytes": recurrent,
        "embedding": 2048,
        "vocabulary": 200_000,
        "context_train": 131072,
        "shards": {"count": 1, "present": 1, "missing": []},
        **more,
    }


# The published models, with the sizes that the study gives or that follow from their shapes.
QWEN35B = model(2355, 18125, 567, 1.77, kv=20480, recurrent=65863680)
GPT_OSS_20B = model(1843, 9682, 1210.3, 12.607, kv=49152, embedding=2880)
LFM2_8B = model(614, 4200, 525, 5.5, kv=24576)
QWEN9B = model(5427, kv=32768, recurrent=50 * MIB, embedding=4096)
GEMMA_E2B = model(2900, kv=18432, embedding=1536, vocabulary=262144)
GEMMA_E4B = model(4700, kv=43008, embedding=2560, vocabulary=262144)
DEMO = model(16.2, 1071, 38.25, 0.6, kv=8192, embedding=512, vocabulary=512, context_train=4096)

ORIN_NANO = {
    "board": "orin-nano-8gb",
    "memory": {"total_bytes": 7620 * MIB, "available_bytes": 6 * GIB},
    "cores": 6,
    "cuda": {"version": "12.6"},
}
VIRTUAL = {"memory": {"total_bytes": 747716608, "available_bytes": 561000448}, "cores": 2, "cuda": None}


def plan(gguf: dict[str, Any], jetson: dict[str, Any] | None = None, **overrides: Any) -> dict[str, Any]:
    return _plan.make_plan(gguf, ORIN_NANO if jetson is None else jetson, {}, overrides)


def value_of(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1]


def test_the_published_35b_is_streamed_by_a_cache_of_about_2_gib() -> None:
    made = plan(QWEN35B)
    assert made["decision"] == "cache"
    assert 1900 <= made["cache_mib"] <= 2400
    assert made["cycles"] == pytest.approx(4, abs=0.01)
    assert (made["threads"], made["io_depth"], made["floor"], made["n_gpu_layers"]) == (4, 16, True, 99)
    arguments = made["server_args"]
    for option in ("--cpu-moe", "--no-host", "--no-repack", "--no-op-offload", "--no-warmup"):
        assert option in arguments
    assert value_of(arguments, "--load-mode") == "mmap"
    assert value_of(arguments, "-ngl") == "99"
    assert made["environment"]["EDGE_MOE_CACHE_MIB"] == str(made["cache_mib"])


def test_the_published_20b_is_not_given_a_cache() -> None:
    made = plan(GPT_OSS_20B)
    assert (made["decision"], made["cache_mib"], made["threads"]) == ("mmap", 0, 12)
    assert made["floor"] is True
    assert "--cpu-moe" in made["server_args"]
    assert made["environment"]["EDGE_MOE_CACHE_MIB"] == "0"
    assert made["read_ahead_kb"] in range(16, 129)
    assert "12.6 MiB" in made["reasons"]["decision"]


@pytest.mark.parametrize("gguf", [LFM2_8B, QWEN9B, GEMMA_E2B, GEMMA_E4B])
def test_the_published_controls_stay_in_memory_without_floor(gguf: dict[str, Any]) -> None:
    made = plan(gguf)
    assert (made["decision"], made["cache_mib"], made["floor"]) == ("resident", 0, False)
    assert "--cpu-moe" not in made["server_args"]
    assert "--no-host" not in made["server_args"]


def test_the_virtual_board_streams_its_demo_model() -> None:
    made = plan(DEMO, VIRTUAL)
    assert made["decision"] == "cache"
    assert made["cycles"] >= 3
    assert made["cache_mib"] * MIB < 747716608 / 3 + MIB
    assert (made["threads"], made["n_gpu_layers"], made["floor"]) == (2, 0, True)
    assert made["budget"][-1]["bytes"] > 50 * MIB


def test_a_dense_model_that_does_not_fit_says_why() -> None:
    made = plan(model(16000, kv=65536, embedding=5120))
    assert (made["decision"], made["floor"], made["n_gpu_layers"]) == ("mmap", False, 0)
    assert "--cpu-moe" not in made["server_args"]
    assert "dense" in made["reasons"]["decision"]
    assert "do not fit" in made["reasons"]["decision"]


def test_a_model_of_which_no_cycle_fits() -> None:
    made = plan(model(5000, 60000, 4000, 10, kv=20480))
    assert made["decision"] == "mmap"
    assert "below 1.25 a cache only costs" in made["reasons"]["decision"]


def test_more_memory_means_more_cache_and_then_none() -> None:
    sizes = []
    for gib in (7.4, 15.3, 30, 62):
        made = plan(QWEN35B, {**ORIN_NANO, "memory": {"total_bytes": int(gib * GIB)}})
        sizes.append((made["decision"], made["cache_mib"]))
    assert [decision for decision, _mib in sizes] == ["cache", "cache", "resident", "resident"]
    assert sizes[1][1] > sizes[0][1]


def test_a_shorter_context_where_it_lets_the_model_in() -> None:
    made = plan(model(5200, kv=262144, embedding=4096))
    assert made["decision"] == "resident"
    assert made["context"] < 4096
    assert "would not fit" in made["reasons"]["context"]


@pytest.mark.parametrize("gguf", [QWEN35B, GPT_OSS_20B, LFM2_8B, QWEN9B, DEMO, model(16000, kv=65536)])
@pytest.mark.parametrize("jetson", [ORIN_NANO, VIRTUAL])
def test_only_options_that_exist_and_a_reason_for_each_value(gguf: dict[str, Any], jetson: dict[str, Any]) -> None:
    try:
        made = plan(gguf, jetson)
    except _plan.PlanError:
        assert jetson is VIRTUAL
        return
    options = {argument for argument in made["server_args"] if argument.startswith("-")}
    assert options <= KNOWN_OPTIONS
    for key in (*_plan.INTEGER_OVERRIDES, "decision", "floor"):
        assert made["reasons"][key].strip().endswith((".", ";")), key
    assert sum(line["bytes"] for line in made["budget"][:-1]) == made["budget"][-1]["bytes"]
    json.dumps(made)


# Estimates


@pytest.mark.parametrize(
    ("gguf", "overrides", "published"),
    [
        # decode of the published runs: mmap without and with the floor, the cache with it, and the 20B in its ways
        (QWEN35B, {"decision": "mmap", "floor": False}, 2.73),
        (QWEN35B, {"decision": "mmap"}, 3.37),
        (QWEN35B, {"cache_mib": 2048}, 4.96),
        (GPT_OSS_20B, {"floor": False}, 2.86),
        (GPT_OSS_20B, {}, 3.97),
        (GPT_OSS_20B, {"cache_mib": 2048}, 2.70),
    ],
)
def test_the_estimate_holds_the_published_speeds_in_its_range(
    gguf: dict[str, Any], overrides: dict[str, Any], published: float
) -> None:
    estimate = plan(gguf, **overrides)["estimate"]
    assert estimate["basis"] == "published"
    assert estimate["low"] <= published <= estimate["high"]
    assert estimate["high"] < 2 * estimate["low"]
    assert "ms a token fixed" in estimate["sentence"]


def test_another_board_is_a_guess_and_says_so() -> None:
    other = plan(QWEN35B, {**ORIN_NANO, "board": None})["estimate"]
    assert "a guess until it has been measured" in other["sentence"]
    assert other["high"] > 2 * other["low"]


def test_a_resident_model_is_guessed_from_the_memory() -> None:
    estimate = plan(QWEN9B)["estimate"]
    assert (estimate["basis"], estimate["mib_per_token"]) == ("bandwidth", 0)
    assert estimate["low"] < 9 < estimate["high"]
    assert "half of the 102 GB/s" in estimate["sentence"]
    assert "MiB read" not in estimate["sentence"]


def test_what_verify_measured_becomes_points() -> None:
    cache_info = {"mode": "cache", "delivered_bytes": 7 * MIB}
    side = {"complete": True, "decode_tokens_per_s": 4.0, "nvme_bytes": 100 * MIB, "requests": [{"n_decoded": 10}] * 2}
    result: dict[str, Any] = {"model": "m.gguf", "reference": side, "served": {**side, "cache_info": cache_info}}
    assert _estimate.points_of_result(result, "m.gguf") == [
        {"decode_tokens_per_s": 4.0, "mib_per_token": 5.0, "path": "mmap"},
        {"decode_tokens_per_s": 4.0, "mib_per_token": 5.0, "path": "cache", "cache_mib": 7.0},
    ]
    # prompts miss as well, and their reads are not those of a token
    result["served"]["cache"] = {"misses": {"decode": 30, "prefill": 10}, "read_bytes": 80 * MIB}
    assert _estimate.points_of_result(result, "m.gguf")[1]["mib_per_token"] == 3.0
    assert _estimate.points_of_result(result, "other.gguf") == []
    assert _estimate.points_of_result({"model": "m.gguf", "served": {"complete": False}}, "m.gguf") == []
    assert _estimate.points_of_result("odd", "m.gguf") == []


def test_own_measurements_win() -> None:
    slow_drive = [
        {"decode_tokens_per_s": 1000 / (100 + 2.0 * 100), "mib_per_token": 100, "path": "cache"},
        {"decode_tokens_per_s": 1000 / (100 + 2.0 * 300), "mib_per_token": 300, "path": "mmap"},
    ]
    made = _plan.make_plan(QWEN35B, ORIN_NANO, {}, {}, slow_drive)
    estimate = made["estimate"]
    assert (estimate["basis"], estimate["fixed_ms"], estimate["ms_per_mib"]) == ("measured", 100.0, 2.0)
    assert "2 measurements of this board" in estimate["sentence"]
    assert not any("edge.moe.verify" in sentence for sentence in made["would_change"])
    one = _plan.make_plan(QWEN35B, ORIN_NANO, {}, {}, slow_drive[:1])["estimate"]
    assert (one["ms_per_mib"], one["fixed_ms"]) == (0.4, 260.0)


@pytest.mark.parametrize(
    "odd",
    [
        [{}],
        ["x"],
        [{"decode_tokens_per_s": "fast", "mib_per_token": 1}],
        [{"decode_tokens_per_s": float("inf"), "mib_per_token": 1}],
        [{"decode_tokens_per_s": 0, "mib_per_token": 1}],
        [{"decode_tokens_per_s": 3, "mib_per_token": -1}],
        [{"decode_tokens_per_s": 3, "mib_per_token": 1, "path": "tape"}],
    ],
)
def test_measurements_that_are_none_change_nothing(odd: list[Any]) -> None:
    assert _plan.make_plan(QWEN35B, ORIN_NANO, {}, {}, odd)["estimate"]["basis"] == "published"


def test_reads_follow_what_caches_of_this_board_have_read() -> None:
    points = [
        _estimate.Point(1, 300, "cache", 100),
        _estimate.Point(1, 75, "cache", 400),
        _estimate.Point(1, 0, "cache", 500),
        _estimate.Point(1, 9, "mmap"),
    ]

    def reads(size: float) -> float:
        return _estimate.cache_reads(points, size, lambda mib: 600 - mib)

    # as a power of the size, and evenly to where nothing is read
    assert [reads(size) for size in (100, 200, 400, 450, 500)] == pytest.approx([300, 150, 75, 37.5, 0])
    assert [reads(size) for size in (50, 550)] == pytest.approx([330, 0])
    assert _estimate.cache_reads([], 100, lambda _size: 100.0) == 100
    assert _estimate.cache_reads(points[:2], 450, lambda _size: 0.0) == 75
    measured = [{"decode_tokens_per_s": 4, "mib_per_token": 444, "path": "cache", "cache_mib": 2268}]
    assert _plan.make_plan(QWEN35B, ORIN_NANO, {}, {}, measured)["estimate"]["mib_per_token"] == 444


def test_reads_between_two_sizes_are_those_of_the_bench_model() -> None:
    """MiB a token by cache size, as measured: 24 layers x 64 experts, 4 used, under a limit of 1000 MB."""
    measured = {180: 145.0, 288: 103.7, 396: 86.4, 540: 74.8, 720: 63.5}
    ends = [_estimate.Point(1, measured[size], "cache", size) for size in (180, 720)]
    for size, read in measured.items():
        assert _estimate.cache_reads(ends, size, lambda _size: 0.0) == pytest.approx(read, rel=0.07)


def test_no_token_takes_less_than_no_time() -> None:
    fixed, slopes, _worst = _estimate.fit([_estimate.Point(1, 100, "cache"), _estimate.Point(4, 50, "cache")]) or (
        0,
        {},
        0,
    )
    assert fixed == pytest.approx(0, abs=20)
    assert slopes["cache"] == pytest.approx((100 * 1000 + 50 * 250) / (100**2 + 50**2))


def test_a_line_that_falls_does_not_make_reading_faster_than_not() -> None:
    points = [_estimate.Point(5, 300, "cache"), _estimate.Point(2, 10, "cache")]
    fixed, slopes, worst = _estimate.fit(points) or (0, {}, 0)
    assert slopes == _estimate.MS_PER_MIB
    assert fixed > 0
    assert worst > 0.2


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 100))
def test_more_held_never_misses_more(one: float, other: float, cycles: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= _estimate.miss_share(high, cycles) <= _estimate.miss_share(low, cycles) <= 1


def test_what_would_change_the_decision() -> None:
    cached = " ".join(plan(QWEN35B)["would_change"])
    assert "A board with" in cached
    assert "A file of at most" in cached
    assert "Below 1.25 token cycles" in cached
    mmapped = " ".join(plan(GPT_OSS_20B)["would_change"])
    assert "A cache becomes worth it with 3 token cycles, 3.55 GiB" in mmapped
    resident = " ".join(plan(QWEN9B)["would_change"])
    assert "A context of more than" in resident
    assert "No context" in " ".join(plan(model(100, kv=1024))["would_change"])


def test_the_longest_context_is_as_long_as_it_says() -> None:
    for gguf in (QWEN9B, QWEN35B, GEMMA_E4B):
        made = plan(gguf)
        longest = made["context_max"]
        assert longest >= made["context"]
        again = plan(gguf, context=longest)
        assert again["decision"] == made["decision"]
    assert plan(QWEN9B, context=plan(QWEN9B)["context_max"] + 1)["decision"] == "mmap"


# Overrides


def test_an_override_wins_and_tells_what_it_means() -> None:
    made = plan(QWEN35B, cache_mib="1200", threads=6, floor="no", context=8192, extra_args=["--no-slots"])
    assert (made["cache_mib"], made["threads"], made["floor"], made["context"]) == (1200, 6, False, 8192)
    assert made["server_args"][-1] == "--no-slots"
    assert made["reasons"]["cache_mib"].startswith("set by an override; the plan had 2268: 2.1 token cycles")
    assert made["reasons"]["threads"].startswith("set by an override; the plan had 4")
    assert "lowest clock" in made["reasons"]["floor"]
    assert made["overridden"] == ["cache_mib", "context", "extra_args", "floor", "threads"]


@pytest.mark.parametrize(
    ("gguf", "overrides", "key", "says"),
    [
        (QWEN35B, {"parallel": 2}, "parallel", "each keeps 62.8 MiB of state"),
        (QWEN35B, {"io_depth": 32}, "io_depth", "A deeper queue serves"),
        (QWEN35B, {"io_depth": 1}, "io_depth", "Fewer reads are in flight"),
        (QWEN35B, {"read_kib": 64}, "read_kib", "takes more reads"),
        (QWEN9B, {"read_kib": 64}, "read_kib", "changes nothing here"),
        (QWEN35B, {"threads": 12}, "threads", "halve a cache's speed"),
        (QWEN35B, {"threads": 2}, "threads", "stay idle"),
        (QWEN9B, {"threads": 12}, "threads", "wait for one another"),
        (GPT_OSS_20B, {"threads": 2}, "threads", "fewer reads in flight"),
        (QWEN35B, {"n_gpu_layers": 0}, "n_gpu_layers", "on the CPU, at its speed"),
        (QWEN35B, {"read_ahead_kb": 8192}, "read_ahead_kb", "13 times slower"),
        (QWEN35B, {"context": 8192}, "context", "8192 tokens take 222.8 MiB"),
    ],
)
def test_each_override_states_what_it_means(
    gguf: dict[str, Any], overrides: dict[str, Any], key: str, says: str
) -> None:
    assert says in plan(gguf, **overrides)["reasons"][key]


def test_the_speed_is_compared_with_the_plan_s_own() -> None:
    own = plan(QWEN35B)["estimate"]
    assert own["without_overrides"] is None
    slower = plan(QWEN35B, decision="mmap", floor=False)["estimate"]
    assert slower["without_overrides"] == own["tokens_per_s"] > slower["tokens_per_s"]
    assert slower["sentence"].endswith("Without the overrides it would be 4.7.")


def test_empty_overrides_change_nothing() -> None:
    assert plan(QWEN35B, cache_mib="", threads=None, decision="") == plan(QWEN35B)


def test_a_cache_can_be_forced_and_forbidden() -> None:
    forced = plan(GPT_OSS_20B, decision="cache")
    assert forced["decision"] == "cache"
    assert forced["cache_mib"] == 2421
    assert "the plan had mmap" in forced["reasons"]["decision"]
    assert plan(GPT_OSS_20B, cache_mib=2048)["decision"] == "cache"
    for overrides in ({"decision": "mmap"}, {"cache_mib": 0}):
        made = plan(QWEN35B, **overrides)
        assert (made["decision"], made["cache_mib"], made["threads"]) == ("mmap", 0, 12)


def test_a_model_that_fits_can_be_streamed_by_an_override() -> None:
    made = plan(LFM2_8B, decision="mmap")
    assert made["decision"] == "mmap"
    assert "the plan had resident" in made["reasons"]["decision"]
    assert made["floor"] is True
    assert plan(LFM2_8B, decision="cache", cache_mib=1100)["cycles"] == pytest.approx(2.1, abs=0.01)


def test_a_tight_cache_is_warned_of() -> None:
    made = plan(QWEN35B, cache_mib=3200)
    assert "speed collapse" in made["reasons"]["cache_mib"]


@pytest.mark.parametrize(
    ("gguf", "overrides", "says"),
    [
        (QWEN35B, {"cache_mib": 5000}, "does not fit: system, buffers"),
        (QWEN35B, {"cache_mib": 400}, "0.71 token cycles"),
        (QWEN35B, {"decision": "resident"}, "and the board has 7.44 GiB"),
        (QWEN35B, {"decision": "cache", "cache_mib": 0}, "name a size"),
        (QWEN9B, {"decision": "cache"}, "has no experts"),
        (QWEN35B, {"context": 131072 * 8, "parallel": 4}, "does not fit"),
        (QWEN35B, {"threads": 0}, "between 1 and"),
        (QWEN35B, {"threads": "many"}, "whole number"),
        (QWEN35B, {"threads": True}, "whole number"),
        (QWEN35B, {"threads": 2.5}, "whole number"),
        (QWEN35B, {"decision": "gpu"}, "resident, cache, mmap"),
        (QWEN35B, {"floor": "maybe"}, "true or false"),
        (QWEN35B, {"chache_mib": 1}, "is not known"),
        (QWEN35B, {"extra_args": "-t 4"}, "list of strings"),
        (QWEN35B, {"extra_args": ["--port=1"]}, "sets that itself"),
        ({**QWEN35B, "shards": {"count": 2, "present": 1, "missing": ["b"]}}, {}, "missing: b"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(gguf: dict[str, Any], overrides: dict[str, Any], says: str) -> None:
    with pytest.raises(_plan.PlanError) as caught:
        plan(gguf, **overrides)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gpu_layers_need_cuda() -> None:
    with pytest.raises(_plan.PlanError, match="has no CUDA"):
        plan(DEMO, VIRTUAL, n_gpu_layers=99)


def test_unknown_memory_is_refused() -> None:
    with pytest.raises(_plan.PlanError, match="memory is not known"):
        plan(DEMO, {"memory": {"total_bytes": None}})


def test_a_running_server_does_not_change_the_plan() -> None:
    busy = {**VIRTUAL, "memory": {"total_bytes": 747716608, "available_bytes": 50 * MIB}}
    assert plan(DEMO, busy) == plan(DEMO, VIRTUAL)


@settings(deadline=2000, max_examples=300)
@given(
    total=st.integers(256, 65536),
    cores=st.integers(1, 64),
    cuda=st.booleans(),
    dense=st.integers(1, 40000),
    experts=st.integers(0, 200_000),
    share=st.integers(2, 200),
    kv=st.integers(0, 1 << 20),
)
def test_no_plan_promises_memory_that_is_not_there(
    total: int, cores: int, cuda: bool, dense: int, experts: int, share: int, kv: int
) -> None:
    board = {"memory": {"total_bytes": total * MIB}, "cores": cores, "cuda": {"version": "12"} if cuda else None}
    gguf = model(dense, experts, experts / share, 2, kv=kv)
    try:
        made = plan(gguf, board)
    except _plan.PlanError:
        # Only a board too small for the least context, whatever the model.
        with pytest.raises(_plan.PlanError, match="does not fit"):
            plan(gguf, board)
        return
    assert made == plan(gguf, board)
    left = made["budget"][-1]["bytes"]
    if made["decision"] == "resident":
        assert left >= 0
    if made["decision"] == "cache":
        assert left > 0
        assert made["cycles"] >= _plan.MIN_CYCLES
        assert experts > 0
        assert (made["cache_mib"] - 1) * MIB <= total * MIB * _plan.CACHE_MAX_SHARE
    assert made["floor"] == (experts > 0 and made["decision"] != "resident")


# What a search on the board has found

TUNED: dict[str, Any] = {
    "format": 1,
    "model_sha256": "ab" * 32,
    "board": "orin-nano-8gb",
    "power_mode": {"name": "MAXN_SUPER", "id": 2},
    "release_kind": "orin-nano-8gb-l4t-36.4.7-llama.cpp",
    "when": "2026-11-29T12:00:00Z",
    "gain": {"confirmed": True, "ratio": 1.134},
    "setting": {
        "decision": "cache",
        "threads": 5,
        "cache_mib": 2268,
        "io_depth": 16,
        "read_kib": 512,
        "lookahead": "1",
        "read_ahead_kb": 64,
    },
}
MODE = {**ORIN_NANO, "power_mode": {"name": "MAXN_SUPER", "id": 0}}


def tuned_plan(tuned: Any, gguf: dict[str, Any] | None = None, **overrides: Any) -> dict[str, Any]:
    release_kind = "orin-nano-8gb-l4t-36.4.7-llama.cpp"
    return _plan.make_plan(gguf or QWEN35B, MODE, {}, overrides, [], tuned, "ab" * 32, release_kind)


def with_setting(**values: Any) -> dict[str, Any]:
    return {**TUNED, "setting": {**TUNED["setting"], **values}}


def test_a_tuned_setting_wins_over_the_rules_and_says_by_how_much_and_when() -> None:
    made = tuned_plan(TUNED)
    assert made["tuned"] == ["lookahead", "read_kib", "threads"]
    assert (made["threads"], made["read_kib"], made["lookahead"]) == (5, 512, "1")
    assert made["environment"]["EDGE_MOE_LOOKAHEAD"] == "1"
    assert value_of(made["server_args"], "-t") == "5"
    said = "measured 13% faster than the plan's own setting on 2026-11-29T12:00:00Z"
    assert made["reasons"]["threads"].startswith(f"{said}; the plan had 4: ")
    assert made["reasons"]["tuned"] == f"{said}."
    assert made["reasons"]["io_depth"] == plan(QWEN35B)["reasons"]["io_depth"]
    assert made["overridden"] == []


def test_without_one_the_plan_is_what_it_was() -> None:
    made = plan(QWEN35B)
    assert made["tuned"] == []
    assert "tuned" not in made["reasons"]
    assert "EDGE_MOE_LOOKAHEAD" not in made["environment"]


def test_a_tuned_path_other_than_the_planned_one() -> None:
    made = tuned_plan(with_setting(cache_mib=1600), GPT_OSS_20B)
    assert (made["decision"], made["cache_mib"]) == ("cache", 1600)
    assert "faster than the plan's own setting" in made["reasons"]["decision"]
    assert "the plan had mmap" in made["reasons"]["decision"]
    back = tuned_plan({**TUNED, "setting": {"decision": "mmap", "threads": 9, "read_ahead_kb": 16}})
    assert (back["decision"], back["threads"], back["cache_mib"], back["read_ahead_kb"]) == ("mmap", 9, 0, 16)


def test_an_override_wins_over_a_tuned_value() -> None:
    made = tuned_plan(TUNED, threads=7, lookahead="0")
    assert (made["threads"], made["read_kib"], made["lookahead"]) == (7, 512, "0")
    assert made["tuned"] == ["read_kib"]
    assert made["reasons"]["threads"].startswith("set by an override; the plan had 4")
    assert made["overridden"] == ["lookahead", "threads"]
    for overrides in ({"decision": "mmap"}, {"cache_mib": 0}):
        other = tuned_plan(TUNED, **overrides)
        assert (other["decision"], other["tuned"]) == ("mmap", [])
        assert other["reasons"]["tuned"] == "ignored: it is for cache, and an override wants mmap."


@pytest.mark.parametrize(
    ("tuned", "said"),
    [
        ({**TUNED, "model_sha256": "cd" * 32}, "it was found for model_sha256 'cdcd"),
        ({**TUNED, "board": "orin-nx-16gb"}, "board 'orin-nx-16gb' and this is 'orin-nano-8gb'"),
        ({**TUNED, "power_mode": {"name": "15W"}}, "power_mode '15W' and this is 'MAXN_SUPER'"),
        ({**TUNED, "power_mode": "15W"}, "power_mode 'None'"),
        ({**TUNED, "release_kind": "other"}, "release_kind 'other'"),
        ({**TUNED, "format": 2}, "its format is '2'"),
        ({"problem": "tuned/nano.json is no JSON"}, "tuned/nano.json is no JSON"),
        ({**TUNED, "gain": {"confirmed": True, "ratio": "much"}}, "gain.ratio is 'much'"),
        ({**TUNED, "gain": {"confirmed": True, "ratio": float("nan")}}, "gain.ratio is 'nan'"),
        ({**TUNED, "setting": {"decision": "cache", "n_gpu_layers": 0}}, "its setting holds ['n_gpu_layers']"),
        ({**TUNED, "setting": {"decision": "resident"}}, "its setting holds 'resident'"),
        ({**TUNED, "setting": None}, "its setting holds None"),
        (with_setting(threads=0), "its setting's threads is 0; it must be between 1 and 1024"),
        (with_setting(threads=[4]), "threads is [4]; it must be a whole number"),
        (with_setting(lookahead="2; reboot"), "lookahead is '2; reboot'"),
        (with_setting(cache_mib=6000), "its cache of 6000 MiB is too large here, where"),
        (with_setting(cache_mib=100), "a cache of 100 MiB is 0.18 token cycles"),
    ],
)
def test_a_tuned_file_that_does_not_fit_is_ignored_and_the_reason_is_told(tuned: Any, said: str) -> None:
    made = tuned_plan(tuned)
    assert made["tuned"] == []
    assert made["reasons"]["tuned"].startswith("ignored: ")
    assert said in made["reasons"]["tuned"]
    assert len(made["reasons"]["tuned"]) < 600
    del made["reasons"]["tuned"]
    assert made == plan(QWEN35B)


def test_a_search_without_a_gain_leaves_the_plan_alone() -> None:
    made = tuned_plan({**TUNED, "gain": {"confirmed": False, "ratio": 1.01}})
    assert made["tuned"] == []
    assert made["reasons"]["tuned"] == "the search on this board found nothing faster than the plan's own setting."


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from([*TUNED, *TUNED["setting"]]),
)
@settings(deadline=None)
def test_no_tuned_file_breaks_the_plan(value: Any, key: str) -> None:
    broken = with_setting(**{key: value}) if key in TUNED["setting"] else {**TUNED, key: value}
    made = tuned_plan(broken)
    assert made["decision"] in ("cache", "mmap")
    assert 1 <= made["threads"] <= 1024
