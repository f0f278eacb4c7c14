# SPDX-License-Identifier: GPL-3.0-or-later
"""The slice after a first run, and the command that runs anything in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_files_are_root_s(host: Any) -> None:
    unit, command = host.file("/etc/systemd/system/edge-moe.slice"), host.file("/usr/local/bin/edge-moe-run")
    assert (unit.user, unit.group, unit.mode) == ("root", "root", 0o644)
    assert (command.user, command.group, command.mode) == ("root", "root", 0o755)


def test_systemd_took_every_line_of_the_unit(host: Any) -> None:
    assert host.check_output("systemd-analyze verify /etc/systemd/system/edge-moe.slice 2>&1") == ""


def test_slice_forbids_swap_and_limits_nothing_else(show: Callable[[str, str], str]) -> None:
    assert show("edge-moe.slice", "LoadState") == "loaded"
    assert show("edge-moe.slice", "MemorySwapMax") == "0"
    assert show("edge-moe.slice", "MemoryMax") == "infinity"


def test_command_runs_in_the_slice_and_may_not_swap(member: tuple[str, str, str]) -> None:
    group, asked, kernel = member
    assert "/edge.slice/edge-moe.slice/" in group
    assert group.endswith(".scope")
    assert (asked, kernel) == ("0", "0")


def test_command_hands_on_the_exit_code_and_arguments(host: Any) -> None:
    done = host.run("/usr/local/bin/edge-moe-run sh -c %s 'a b' c", 'printf "%s." "$0" "$@"; exit 7')
    assert (done.rc, done.stdout) == (7, "a b.c.")


def test_command_without_arguments_says_how_it_is_used(host: Any) -> None:
    done = host.run("/usr/local/bin/edge-moe-run")
    assert (done.rc, done.stderr) == (2, "usage: edge-moe-run COMMAND [ARGUMENT...]\n")


def test_command_without_root_says_what_to_type(host: Any) -> None:
    with host.sudo("jetson"):
        done = host.run("/usr/local/bin/edge-moe-run id")
    assert done.rc == 1
    assert done.stderr.endswith("sudo edge-moe-run id\n")
