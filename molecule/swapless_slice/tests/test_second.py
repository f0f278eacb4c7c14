# SPDX-License-Identifier: GPL-3.0-or-later
"""The slice with a limit, which its running member did not notice, and a second slice beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_limit_holds_at_once(show: Callable[[str, str], str]) -> None:
    assert show("edge-moe.slice", "MemoryMax") == str(512 * 2**20)
    assert show("edge-moe.slice", "MemorySwapMax") == "0"


def test_member_goes_on_running(show: Callable[[str, str], str]) -> None:
    assert show("member.service", "ActiveState") == "active"
    assert "/edge.slice/edge-moe.slice/member.service" in show("member.service", "ControlGroup")


def test_second_slice_has_its_own_settings(show: Callable[[str, str], str]) -> None:
    assert show("models.slice", "LoadState") == "loaded"
    assert show("models.slice", "MemorySwapMax") == "0"
    assert show("models.slice", "MemoryMax") == "infinity"


def test_command_runs_in_the_slice_of_the_last_run(member: tuple[str, str, str]) -> None:
    group, asked, kernel = member
    assert "/models.slice/" in group
    assert (asked, kernel) == ("0", "0")


def test_no_refused_run_left_a_unit(host: Any) -> None:
    names = host.check_output("ls /etc/systemd/system").split()
    assert sorted(name for name in names if name.endswith(".slice")) == ["edge-moe.slice", "models.slice"]
    assert not host.file("/etc/systemd/system/edge-moe.service").exists
    assert not host.file("/etc/moe.slice").exists
