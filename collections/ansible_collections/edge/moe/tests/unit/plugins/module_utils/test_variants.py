# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import shlex
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _variants
from ansible_collections.edge.moe.plugins.module_utils._systemd import assignment, command_word
from ansible_collections.edge.moe.plugins.module_utils._variants import Stage, StageError, StageLost, Variant
from hypothesis import given
from hypothesis import strategies as st

REFERENCE, SERVED, FLOOR = "edge-moe-reference.service", "edge-moe-server.service", "edge-moe-clock-floor.service"
ARGS = ("-t", "6", "-c", "4096", "--parallel", "1")
MMAP = Variant("mmap", "stock", ARGS, {"EDGE_MOE_CACHE_MIB": "0"}, False, 32)
SERVE = Variant("served", "as planned", ARGS, {"EDGE_MOE_CACHE_MIB": "512"}, True, None)
READ_AHEAD = "/sys/class/block/nvme0n1/queue/read_ahead_kb"

# Variants


def test_a_variant_is_read() -> None:
    given_ = {
        "name": "deep",
        "args": ["-t", 4],
        "environment": {"EDGE_MOE_IO_DEPTH": 32},
        "floor": True,
        "read_ahead_kb": 64,
    }
    variant = _variants.parse_variant(given_)
    assert variant == Variant("deep", "deep", ("-t", "4"), {"EDGE_MOE_IO_DEPTH": "32"}, True, 64)
    assert _variants.parse_variant(variant.as_dict()) == variant


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"name": "Deep"}, "variant name is 'Deep'; it must be at most 40 lower-case"),
        ({"name": "../x"}, "it must be at most 40 lower-case"),
        ({"name": None}, "variant name is None"),
        ({"flor": True}, "variant key 'flor' is not known; it can be any of name, title, args"),
        ({"args": "-t 4"}, "args is '-t 4'; it must be a list"),
        ({"args": [{"t": 4}]}, "an argument is {'t': 4}; it must be text"),
        ({"args": ["a\nExecStartPre=/bin/evil"]}, "must have no line break"),
        ({"args": ["a\x00b"]}, "must have no line break"),
        ({"args": ["\ud800"]}, "must have no line break"),
        ({"args": ["x" * 5000]}, "has 5000 bytes; it may have 4096"),
        ({"args": ["--port", "1"]}, "args holds --port; model and address are the same"),
        ({"args": ["--model=/etc/shadow"]}, "args holds --model="),
        ({"args": ["x"] * 400}, "a list of at most 300"),
        ({"environment": ["A=b"]}, "it must be a dictionary"),
        ({"environment": {"A B": "1"}}, "environment has 'A B'"),
        ({"environment": {"A": "b\nc"}}, "environment A is"),
        ({"environment": {"A": None}}, "environment A is None; it must be text"),
        ({"floor": "yes"}, "floor is 'yes'; it must be true or false"),
        ({"read_ahead_kb": -1}, "read_ahead_kb is -1; it must be a whole number between 0 and 1048576"),
        ({"read_ahead_kb": True}, "read_ahead_kb is True"),
        ({"title": "a\nb"}, "title is 'a\\nb'"),
    ],
)
def test_a_variant_that_is_none_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(_variants.VariantError) as caught:
        _variants.parse_variant({"name": "x", **wrong})
    assert says in str(caught.value)


def test_room_for_slots_and_long_prompts() -> None:
    assert _variants.with_room(MMAP, 1) is MMAP
    four = _variants.with_room(MMAP, 4)
    assert four.args == (*ARGS, "--parallel", "4", "-c", "16384")
    assert (four.environment, four.floor, four.read_ahead_kb) == (MMAP.environment, MMAP.floor, MMAP.read_ahead_kb)
    deep = _variants.with_room(MMAP, 1, 6000)
    assert deep.args[-4:] == ("--parallel", "1", "-c", "6000")
    # Slots share the context that is named: two of them had 2048 each.
    two = Variant("two", args=("-c", "4096", "-np", "2"))
    assert _variants.with_room(two, 2) is two
    assert _variants.with_room(two, 4).args[-1] == "8192"


def test_what_only_a_server_has_is_left_out() -> None:
    args = ["-t", "4", "--cache-ram", "0", "--metrics", "--no-ui", "--alias", "-t", "-lv", "4"]
    assert _variants.without_server_flags(args) == ["-t", "4", "-lv", "4"]


def test_a_final_estimate() -> None:
    assert _variants.parse_perplexity("[1]4.2,\nFinal estimate: PPL = 6.2344 +/- 0.10000\n\nperf") == (6.2344, 0.1)
    for text in ("", "Final estimate: PPL = nan +/- nan", "Final estimate: PPL = 6.2344"):
        assert _variants.parse_perplexity(text) is None


# The drop-in

ODD = [
    "plain",
    "",
    "two words",
    "100%",
    "$HOME",
    "${A}",
    'a"b',
    "a'b",
    "back\\slash",
    ";",
    "a;b",
    "\\x41",
    "한국어",
    "a\tb",
]


def read(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(key + "=")]


def unquote(word: str) -> str:
    """systemd's quotes and backslashes are shlex's, as far as they are used here."""
    (plain,) = shlex.split(word)
    return str(plain)


@pytest.mark.parametrize("odd", ODD)
def test_words_reach_the_program_as_they_are(odd: str) -> None:
    text = _variants.drop_in_text("x", ["/bin/program", odd], {"ODD": odd}, ["/mnt/" + odd])
    reset, command = read(text, "ExecStart")
    assert reset == ""
    words = shlex.split(command)
    assert len(words) == 2
    # Of a doubled character systemd makes one, and a single one it would have expanded.
    assert "$" not in words[1].replace("$$", "")
    assert "%" not in words[1].replace("%%", "")
    assert words[1].replace("$$", "$").replace("%%", "%") == odd
    # The dollar sign means nothing in Environment=, so it must not be doubled there.
    assert [unquote(line).replace("%%", "%") for line in read(text, "Environment")[1:]] == [
        "EDGE_MOE_STATS_DIR=/run/edge-moe",
        f"ODD={odd}",
    ]
    assert shlex.split(read(text, "ExecStartPre")[1])[1].replace("$$", "$").replace("%%", "%") == "if=/mnt/" + odd


@given(st.text(max_size=60))
def test_no_word_makes_a_line_of_its_own(text: str) -> None:
    for quote in (command_word, lambda value: assignment("A", value)):
        try:
            quoted = quote(text)
        except ValueError:
            assert not text.isprintable()
            continue
        assert len(f"ExecStart={quoted}".split("\n")) == 1
        assert len(shlex.split(quoted)) == 1


def test_a_drop_in_says_only_what_differs(base: Any) -> None:
    text = _variants.drop_in_text("mmap", base.server_command(MMAP), MMAP.environment, ["/m-1", "/m-2"])
    keys = {line.split("=")[0] for line in text.splitlines() if "=" in line}
    assert keys == {
        *("Requisite", "After", "StartLimitIntervalSec"),
        *("EnvironmentFile", "Environment", "ExecStartPre", "ExecStart"),
    }
    assert read(text, "EnvironmentFile") == [""]
    assert len(read(text, "ExecStartPre")) == 3
    assert read(text, "ExecStart")[1].startswith(
        "/opt/edge-moe/bin/llama-server --model /mnt/nvme/m.gguf --host 127.0.0.1 --port "
    )


def test_all_shards_leave_the_page_cache(systemd: Any) -> None:
    for number in (1, 2):
        systemd.write(f"/mnt/m-0000{number}-of-00003.gguf", "")
    assert _variants.model_files(systemd, "/mnt/m-00001-of-00003.gguf") == [
        "/mnt/m-00001-of-00003.gguf",
        "/mnt/m-00002-of-00003.gguf",
    ]
    with pytest.raises(StageError, match="not the first"):
        _variants.model_files(systemd, "/mnt/m-00002-of-00003.gguf")


@pytest.mark.parametrize(
    "wrong",
    [
        {"unit": "../x.service"},
        {"unit": "x"},
        {"floor_unit": "a b.service"},
        {"block_device": "../sda"},
        {"model": "m"},
    ],
)
def test_a_base_that_leads_elsewhere_is_refused(base: Any, wrong: dict[str, str]) -> None:
    with pytest.raises(StageError):
        _variants.Base(**{**vars(base), **wrong})


# The stage


def test_variants_are_served_one_after_another(systemd: Any, llama: Any, base: Any) -> None:
    found = systemd.as_found()
    with Stage(systemd, base) as stage:
        stage.serve(MMAP)
        assert systemd.units == {REFERENCE: "active", SERVED: "inactive", FLOOR: "inactive"}
        assert systemd.read_int(READ_AHEAD) == 32
        stage.serve(SERVE)
        assert systemd.units == {REFERENCE: "active", SERVED: "inactive", FLOOR: "active"}
        assert systemd.read_int(READ_AHEAD) == 64, "what a variant does not set is as it was found"
    assert systemd.as_found() == found
    port = base.url.rpartition(":")[2]
    command, environment = systemd.started[0]
    assert command[:7] == [base.program, "--model", base.model, "--host", "127.0.0.1", "--port", port]
    assert command[7:] == list(ARGS)
    assert environment == {"EDGE_MOE_CACHE_MIB": "0", "EDGE_MOE_STATS_DIR": "/run/edge-moe"}
    assert systemd.started[1][1]["EDGE_MOE_CACHE_MIB"] == "512"


@pytest.mark.parametrize(("served", "floor"), [("inactive", "active"), ("active", "inactive"), ("failed", "inactive")])
def test_a_board_is_put_back_as_it_was_found(systemd: Any, llama: Any, base: Any, served: str, floor: str) -> None:
    systemd.units.update({SERVED: served, FLOOR: floor})
    systemd.write(READ_AHEAD, "128\n")
    found = systemd.as_found()
    with Stage(systemd, base) as stage:
        stage.serve(SERVE)
        stage.serve(MMAP)
    assert systemd.as_found() == found


def test_a_process_that_vanishes_leaves_the_board_as_it_was(systemd: Any, llama: Any, base: Any) -> None:
    found = systemd.as_found()
    stage = Stage(systemd, base)
    stage.__enter__()
    stage.serve(MMAP)
    assert systemd.as_found() != found
    stage._drop_lock()  # as the kernel does it for a process that was killed
    systemd.command(["systemctl", "daemon-reload"])
    assert systemd.as_found() == found
    with Stage(systemd, base) as another:
        another.serve(SERVE)
    assert systemd.as_found() == found


def test_a_guard_that_is_stopped_ends_the_measurement(systemd: Any, llama: Any, base: Any) -> None:
    found = systemd.as_found()
    # the stage is lost on the way, so what comes before belongs inside
    with pytest.raises(StageLost, match="somebody stopped it"), Stage(systemd, base) as stage:  # noqa: PT012
        stage.serve(MMAP)
        systemd.command(["systemctl", "stop", _variants.GUARD])
        assert systemd.as_found() == found
        stage.serve(SERVE)
    assert systemd.as_found() == found


def test_what_was_changed_after_the_guard_is_put_back_as_well(systemd: Any, llama: Any, base: Any) -> None:
    """The guard is stopped between the drop-in and the start: the unit does not start without it."""
    found = systemd.as_found()
    reload = systemd._daemon_reload

    def stopped(names: list[str]) -> Any:
        if systemd.guard is not None and systemd.entries("/run/systemd/system"):
            systemd._daemon_reload = reload
            systemd.end_guard()
            systemd.write(base.drop_in, "[Service]\nExecStart=\nExecStart=/bin/x\n")
        return reload(names)

    systemd._daemon_reload = stopped
    with pytest.raises(StageLost, match="somebody stopped it"), Stage(systemd, base) as stage:
        stage.serve(MMAP)
    assert systemd.as_found() == found


def test_two_measurements_do_not_meet(systemd: Any, llama: Any, base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_variants, "TAKEN_S", 0.3)
    with Stage(systemd, base) as first:
        first.serve(MMAP)
        with pytest.raises(StageLost, match=r"another measurement has this board: .* is held and .* is active"):
            Stage(systemd, base).__enter__()
        first.check()
        assert systemd.units[REFERENCE] == "active"


def test_a_server_that_dies_is_told_with_its_last_words(systemd: Any, llama: Any, base: Any) -> None:
    def die(_command: list[str], _environment: dict[str, str]) -> str:
        systemd.results[REFERENCE] = ("oom-kill", "9")
        return "failed"

    systemd.on_start = die
    systemd.journal = "loading\nEDGE_MOE_IO_DEPTH is 99; it can be 1 to 64\nbye\n"
    found = systemd.as_found()
    with Stage(systemd, base) as stage:
        with pytest.raises(StageError) as caught:
            stage.serve(MMAP, 600.0)
        systemd.on_start = lambda _command, _environment: "active"
        stage.serve(SERVE)
    said = str(caught.value)
    for part in ("variant mmap does not start", "result oom-kill", "EDGE_MOE_IO_DEPTH is 99", "ran out of memory"):
        assert part in said
    assert systemd.as_found() == found


def test_a_server_that_never_loads_is_given_up(systemd: Any, llama: Any, base: Any) -> None:
    llama.web.answers["/health"] = lambda _request: (503, b"{}")
    with Stage(systemd, base) as stage, pytest.raises(StageError, match=r"not ready after 0\.1 s"):
        stage.serve(MMAP, 0.1)


def test_a_board_without_its_parts_is_told(systemd: Any, llama: Any, base: Any) -> None:
    del systemd.units[FLOOR]
    with Stage(systemd, base) as stage:
        stage.serve(MMAP)
        with pytest.raises(StageError, match=r"clock-floor\.service is not installed"):
            stage.serve(SERVE)
    assert systemd.units == {REFERENCE: "inactive", SERVED: "active"}
    del systemd.units[REFERENCE]
    with pytest.raises(StageLost, match="is not installed on this board"):
        Stage(systemd, base).__enter__()
    assert systemd.guard is None


def test_read_ahead_without_a_drive_is_told(systemd: Any, llama: Any, base: Any) -> None:
    nowhere = _variants.Base(base.program, base.model, base.url)
    with Stage(systemd, nowhere) as stage, pytest.raises(StageError, match="no block device is known"):
        stage.serve(MMAP)


def test_perplexity_runs_in_the_servers_place(systemd: Any, llama: Any, base: Any) -> None:
    systemd.on_start = lambda _command, _environment: "inactive"
    systemd.journal = "[1]7.1,[2]6.9,\nFinal estimate: PPL = 6.9012 +/- 0.31000\n\nllama_perf: total\n"
    with Stage(systemd, base) as stage:
        assert stage.perplexity(SERVE, "/var/lib/edge-moe/text.txt", 4, 512, 60.0) == (6.9012, 0.31)
    command, environment = systemd.started[0]
    assert command[0] == "/opt/edge-moe/bin/llama-perplexity"
    assert command[-6:] == ["-c", "512", "--chunks", "4", "--file", "/var/lib/edge-moe/text.txt"]
    assert environment["EDGE_MOE_CACHE_MIB"] == "512"


def test_perplexity_that_is_none_is_told(systemd: Any, llama: Any, base: Any) -> None:
    systemd.on_start = lambda _command, _environment: "failed"
    systemd.journal = "error: you need at least 1024 tokens to evaluate perplexity with a context of 512\n"
    with Stage(systemd, base) as stage, pytest.raises(StageError, match="you need at least 1024 tokens"):
        stage.perplexity(MMAP, "/text", 4, 512, 60.0)
    systemd.on_start = lambda _command, _environment: "active"
    with Stage(systemd, base) as stage, pytest.raises(StageError, match=r"took more than 0\.1 s"):
        stage.perplexity(MMAP, "/text", 4, 512, 0.1)
