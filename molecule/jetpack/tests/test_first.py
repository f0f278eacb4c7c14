# SPDX-License-Identifier: GPL-3.0-or-later
"""The board after a first run: what was asked for is set, and what was not asked for is as it was."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

RULES = "/etc/udev/rules.d/99-edge-moe-nvme.rules"


def test_power_mode_is_the_named_one(host: Any) -> None:
    assert host.check_output("nvpmodel -q").splitlines() == ["NV Power Mode: MAXN_SUPER", "2"]


def test_read_ahead_of_the_nvme_drive_is_set_now_and_at_each_boot(host: Any) -> None:
    assert host.file("/sys/block/nvme0n1/queue/read_ahead_kb").content_string.strip() == "128"
    rules = host.file(RULES)
    assert (rules.user, rules.group, rules.mode) == ("root", "root", 0o644)
    rule = rules.content_string.splitlines()[-1]
    assert rule.endswith('ENV{DEVTYPE}=="disk", ATTR{queue/read_ahead_kb}="128"')
    kernel = rule.partition('KERNEL=="')[2].partition('"')[0]
    drives = ("nvme0n1", "nvme1n1", "mmcblk0", "sda", "zram0")
    assert [name for name in drives if fnmatchcase(name, kernel)] == ["nvme0n1", "nvme1n1"]


def test_no_other_drive_is_touched(host: Any) -> None:
    assert host.file("/sys/block/mmcblk0/queue/read_ahead_kb").content_string.strip() == "1024"


def test_package_is_installed(host: Any) -> None:
    assert host.package("edge-moe-sample").is_installed


def test_board_packages_are_held(host: Any) -> None:
    assert host.check_output("apt-mark showhold").split() == ["nvidia-l4t-core"]


def test_zram_is_kept_unless_asked_for(host: Any) -> None:
    assert host.service("nvzramconfig").is_enabled
    assert "/dev/zram0" in host.file("/proc/swaps").content_string
    assert not host.file("/run/board/swapoff.asked").exists
