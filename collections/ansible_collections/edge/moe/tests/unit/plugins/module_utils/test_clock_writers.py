# SPDX-License-Identifier: GPL-3.0-or-later
"""What sets a clock at every boot is found in a tree of a board's files, and what only looks like it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.edge.moe.plugins.module_utils._clock_writers import clock_writers, jtop_sets
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from hypothesis import given
from hypothesis import strategies as st

ETC, USR = "etc/systemd/system", "usr/lib/systemd/system"
PINS = "[Unit]\nDescription=Pin it\n[Service]\nType=oneshot\nExecStart=/usr/bin/jetson_clocks\n"


class Board:
    """A board's root folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        (self.root / path).chmod(mode)

    def enable(self, name: str, target: str = "multi-user.target.wants") -> None:
        link = self.root / ETC / target / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/{USR}/{name}")

    @property
    def writers(self) -> list[str]:
        return clock_writers(Host(str(self.root)))


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_a_board_with_nothing_has_none(board: Board) -> None:
    assert board.writers == []


def test_each_kind_of_writer_is_named(board: Board) -> None:
    board.write(f"{USR}/pin-clocks.service", PINS)
    board.enable("pin-clocks.service")
    board.enable("pin-clocks.service", "graphical.target.requires")
    board.enable("jetson-moe-gpu-stabilizer.service")
    board.write("etc/rc.local", "#!/bin/sh\n/usr/bin/jetson_clocks\nexit 0\n", 0o755)
    board.write("usr/local/jtop/config.json", json.dumps({"fan": {}, "jetson_clocks": {"wait": 60, "boot": True}}))
    assert board.writers == [
        "/etc/rc.local",
        "/usr/local/jtop/config.json",
        "jetson-moe-gpu-stabilizer.service",
        "pin-clocks.service",
    ]


@pytest.mark.parametrize(
    ("line", "sets"),
    [
        ("ExecStart=/usr/bin/jetson_clocks", True),
        ("ExecStartPost=-/usr/bin/jetson_clocks --fan", True),
        ("ExecStart=/bin/sh -c 'echo 1020000000 > /sys/class/devfreq/17000000.gpu/min_freq'", True),
        ("ExecStart=/bin/sh -c \\\n  /usr/bin/jetson_clocks", True),
        ("# ExecStart=/usr/bin/jetson_clocks", False),
        ("; before jetson_clocks", False),
        ("Description=before jetson_clocks", False),
        ("After=jetson_clocks.service", False),
        ("ExecStart=/usr/bin/jetson_clocks --store", False),
        ("ExecStart=/usr/bin/jetson_clocks --restore /etc/clocks", False),
        ("ExecStart=/usr/sbin/nvpmodel -f /etc/nvpmodel.conf", False),
        ("ExecStart=/bin/cat /sys/class/devfreq/17000000.gpu/cur_freq", False),
    ],
)
def test_a_service_sets_it_by_any_of_its_commands(board: Board, line: str, sets: bool) -> None:
    board.write(f"{USR}/some.service", f"[Service]\n{line}\n")
    board.enable("some.service")
    assert board.writers == (["some.service"] if sets else [])


def test_what_does_not_run_at_boot_is_none(board: Board) -> None:
    board.write(f"{USR}/jetson_clocks.service", PINS)
    board.write("etc/rc.local", "#!/bin/sh\n/usr/bin/jetson_clocks\n", 0o644)
    board.write("usr/local/jtop/config.json", json.dumps({"jetson_clocks": {"boot": False}}))
    assert board.writers == []


def test_an_administrators_file_is_taken_before_the_distributions(board: Board) -> None:
    board.write(f"{USR}/some.service", PINS)
    board.enable("some.service")
    assert board.writers == ["some.service"]
    (board.root / ETC / "some.service").symlink_to("/dev/null")
    assert board.writers == [], "it is masked"
    (board.root / ETC / "some.service").unlink()
    board.write(f"{ETC}/some.service", "[Service]\nExecStart=/bin/true\n")
    assert board.writers == []


@pytest.mark.parametrize(
    ("line", "sets"),
    [
        ("/usr/bin/jetson_clocks", True),
        ("[ -x /usr/bin/jetson_clocks ] && jetson_clocks &", True),
        ("sleep 60; jetson_clocks  # for the demo", True),
        ("echo 918000000 > /sys/class/devfreq/17000000.gpu/min_freq", True),
        ("# jetson_clocks", False),
        ("jetson_clocks --show", False),
        ("nvpmodel -m 0", False),
    ],
)
def test_the_boot_script(board: Board, line: str, sets: bool) -> None:
    board.write("etc/rc.local", f"#!/bin/sh\n{line}\nexit 0\n", 0o755)
    assert board.writers == (["/etc/rc.local"] if sets else [])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"jetson_clocks": 1}', '{"jetson_clocks": {"boot": "true"}}', "[" * 99999]
)
def test_settings_that_are_none_set_nothing(text: str) -> None:
    assert jtop_sets(text) is False


@given(st.text(max_size=200))
def test_any_file_is_read(text: str) -> None:
    assert jtop_sets(text) in (True, False)
