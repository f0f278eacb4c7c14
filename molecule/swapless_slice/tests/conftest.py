# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd says of a unit, and the kernel where it can: not every machine lends the memory controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

# Runs as a member of the slice: where it is, and what systemd holds for its scope.
MEMBER = r"""
group=$(sed -n 's/^0:://p' /proc/self/cgroup)
scope=${group##*/}
echo "$group"
systemctl show --value -p MemorySwapMax "$scope"
cat "/sys/fs/cgroup$group/memory.swap.max" 2>/dev/null || echo 0
"""


@pytest.fixture
def show(host: Any) -> Callable[[str, str], str]:
    return lambda unit, name: str(host.check_output("systemctl show --value -p %s %s", name, unit)).strip()


@pytest.fixture
def member(host: Any) -> tuple[str, str, str]:
    """Control group, MemorySwapMax and memory.swap.max of a command that edge-moe-run runs."""
    group, asked, kernel = host.check_output("/usr/local/bin/edge-moe-run sh -c %s", MEMBER).split()
    return group, asked, kernel
