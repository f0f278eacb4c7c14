# SPDX-License-Identifier: GPL-3.0-or-later
"""The board after a run with other variables, and after all the mistakes: none of those has changed anything."""

from __future__ import annotations

from typing import Any

RULES = "/etc/udev/rules.d/99-edge-moe-nvme.rules"


def test_power_mode_is_the_other_one(host: Any) -> None:
    assert host.check_output("nvpmodel -q").splitlines() == ["NV Power Mode: 15W", "0"]


def test_a_mode_that_takes_a_reboot_was_asked_for_and_the_reboot_declined(host: Any) -> None:
    assert host.file("/run/board/nvpmodel.answered").content_string.strip() == "no"


def test_read_ahead_follows_its_variable(host: Any) -> None:
    assert host.file("/sys/block/nvme0n1/queue/read_ahead_kb").content_string.strip() == "512"
    assert host.file(RULES).content_string.count('ATTR{queue/read_ahead_kb}="512"') == 1
    assert '"128"' not in host.file(RULES).content_string


def test_zram_is_off_now_and_after_a_boot_and_other_swap_is_not(host: Any) -> None:
    assert not host.service("nvzramconfig").is_enabled
    devices = [line.split()[0] for line in host.file("/proc/swaps").content_string.splitlines()[1:]]
    assert devices == ["/swapfile"]
    assert host.file("/run/board/swapoff.asked").content_string.split() == ["/dev/zram0", "/dev/zram1"]


def test_what_the_first_run_made_is_there_still(host: Any) -> None:
    assert host.package("edge-moe-sample").is_installed
    assert host.check_output("apt-mark showhold").split() == ["nvidia-l4t-core"]


def test_no_refused_run_left_a_package(host: Any) -> None:
    assert not host.package("edge-moe-nowhere").is_installed
    assert not host.package("edge-moe-unfinished").is_installed
    assert host.check_output("dpkg --audit") == ""
