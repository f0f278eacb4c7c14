# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import subprocess
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _boards
from ansible_collections.edge.moe.plugins.plugin_utils import _targets
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("edge_moe_testbed", reason="needs the project's test bed, which no archive holds")
from edge_moe_testbed.sshfleet import Board


def names(*entries: Any, **more: Any) -> list[str]:
    return [target.name for target in _targets.expand(entries, **more)]


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("kitchen", ["kitchen"]),
        ("board-1.example.com", ["board-1.example.com"]),
        ("board[08:11]", ["board08", "board09", "board10", "board11"]),
        ("192.0.2.[1:3]", ["192.0.2.1", "192.0.2.2", "192.0.2.3"]),
        ("192.0.2.11", ["192.0.2.11"]),
        ("192.0.2.254-192.0.3.1", ["192.0.2.254", "192.0.2.255", "192.0.3.0", "192.0.3.1"]),
        ("192.0.2.11-13", ["192.0.2.11", "192.0.2.12", "192.0.2.13"]),
        ("192.0.2.0/30", ["192.0.2.1", "192.0.2.2"]),
        ("192.0.2.5/30", ["192.0.2.5", "192.0.2.6"]),
        ("192.0.2.0/31", ["192.0.2.0", "192.0.2.1"]),
        ("192.0.2.7/32", ["192.0.2.7"]),
        ("2001:db8::10", ["2001:db8::10"]),
        ("2001:db8::1-2001:db8::3", ["2001:db8::1", "2001:db8::2", "2001:db8::3"]),
        (" 192.0.2.1 ", ["192.0.2.1"]),
    ],
)
def test_what_an_entry_names(entry: str, named: list[str]) -> None:
    assert names(entry) == named


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("10.0.0.0/8", "16777216 addresses and at most 1024"),
        ("0.0.0.0-255.255.255.255", "at most 1024"),
        ("::/0", "at most 1024"),
        ("board[1:99999999999]", "at most 1024"),
        ("board[9:1]", "ends before it begins"),
        ("192.0.2.9-192.0.2.1", "no host, range or network"),
        ("192.0.2.300", "no host, range or network"),
        ("192.0.2", "no host, range or network"),
        ("10", "no host, range or network"),
        ("192.0.2.0/99", "no host, range or network"),
        ("", "no host name"),
        ("a b", "no host name"),
        ("$(reboot)", "no host name"),
        ("-oProxyCommand=x", "no host name"),
        ({"address": "192.0.2.1"}, "must have name"),
        ({"name": "a", "adress": "192.0.2.1"}, "may have address"),
        ({"name": "a", "address": "192.0.2.0/30"}, "one host by one address"),
        ({"name": "a", "port": 70000}, "between 1 and 65535"),
        (7, "neither text nor a mapping"),
    ],
)
def test_what_cannot_be_named_is_refused(entry: Any, says: str) -> None:
    with pytest.raises(_targets.TargetError) as caught:
        _targets.expand([entry])
    assert says in str(caught.value)


def test_many_small_entries_are_counted_together() -> None:
    with pytest.raises(_targets.TargetError, match="12 hosts are named and at most 10"):
        _targets.expand(["192.0.2.1-6", "198.51.100.1-6"], limit=10)


def test_order_repeats_exclusion_and_names() -> None:
    entries = [{"name": "kitchen", "address": "192.0.2.2", "port": "2222", "user": "x"}, "192.0.2.1-4", "192.0.2.3"]
    made = _targets.expand(entries, exclude=["192.0.2.4/32"], user="jetson")
    assert made[0] == _targets.Target("kitchen", "192.0.2.2", 2222, "x")
    assert [target.name for target in made] == ["kitchen", "192.0.2.1", "192.0.2.2", "192.0.2.3"]
    assert made[1] == _targets.Target("192.0.2.1", "192.0.2.1", 22, "jetson")


@given(st.text(max_size=40))
def test_any_text_is_a_bounded_list_or_a_refusal(text: str) -> None:
    try:
        found = _targets.addresses(text, 64)
    except _targets.TargetError:
        return
    assert 0 <= len(found) <= 66


@pytest.mark.parametrize(
    ("answer", "groups"),
    [
        (Board().answer(), ["jetson", "orin_nano_8gb", "l4t_36_4_7", "memory_8gb"]),
        # the package wins over a file that an upgrade left behind
        (Board(package="36.5.0-20260116035045").answer(), ["jetson", "orin_nano_8gb", "l4t_36_5_0", "memory_8gb"]),
        (Board(package="", release="").answer(), ["jetson", "orin_nano_8gb", "l4t_unknown", "memory_8gb"]),
        (
            Board(compatible="nvidia,p3737-0000+p3701-0005\nnvidia,tegra234", memory_kb=64302332).answer(),
            ["jetson", "agx_orin_64gb", "l4t_36_4_7", "memory_64gb"],
        ),
        (
            Board(compatible="acme,x\nnvidia,tegra234", memory_kb=0).answer(),
            ["jetson", "board_unknown", "l4t_36_4_7", "memory_unknown"],
        ),
        (Board(compatible="raspberrypi,5-model-b").answer(), ["other"]),
        (b"Welcome!\r\n" + Board().answer(), ["jetson", "orin_nano_8gb", "l4t_36_4_7", "memory_8gb"]),
    ],
)
def test_groups(answer: bytes, groups: list[str]) -> None:
    assert _boards.groups_of(_boards.parse_answer(answer)) == groups


@pytest.mark.parametrize("answer", [b"", b"\xff" * 99, b"This account is not available.\n", Board().answer()[:60]])
def test_what_is_no_answer_says_what_it_was(answer: bytes) -> None:
    with pytest.raises(_boards.AnswerError, match="not that of the probe"):
        _boards.parse_answer(answer)


def test_control_characters_do_not_reach_a_terminal() -> None:
    facts = _boards.parse_answer(Board().answer().replace(b"NVIDIA Jetson", b"\x1b[2JNVIDIA\x07"))
    assert facts["model"] == "[2JNVIDIA"


def test_the_probe_runs_in_any_posix_shell() -> None:
    script, path = _boards.PROBE.encode(), {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-s"], input=script, capture_output=True, check=False, timeout=30, env=path)
    assert (done.returncode, done.stderr) == (0, b"")
    facts = _boards.parse_answer(done.stdout)
    assert facts["memory_bytes"] > 0
    assert facts["kernel"]


@given(st.binary(max_size=600))
def test_any_bytes_after_a_good_start_are_judged(data: bytes) -> None:
    try:
        facts = _boards.parse_answer(Board().answer()[:120] + data + b"\n@@ end\n")
    except _boards.AnswerError:
        return
    for group in _boards.groups_of(facts):
        assert group.isidentifier()


@pytest.mark.parametrize(
    ("total", "size"), [(7802332 * 1024, 8), (747716608, 1), (1 << 30, 1), ((1 << 30) + 1, 2), (1 << 60, None)]
)
def test_memory_is_named_as_it_is_sold(total: int, size: int | None) -> None:
    assert _boards.memory_gb(total) == size
