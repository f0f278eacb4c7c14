# SPDX-License-Identifier: GPL-3.0-or-later
"""The sign of `jetson_clocks` that a floor at the very top cannot hide: it pins the CPUs as well as the GPU."""

from __future__ import annotations

import os
from typing import NamedTuple

from ._devfreq import Sysfs, parse_hz

CLUSTERS = "sys/devices/system/cpu/cpufreq"


class _Cluster(NamedTuple):
    """All in kHz, as cpufreq has it."""

    min_khz: int
    max_khz: int
    lowest_khz: int  # of the hardware

    @property
    def pinned(self) -> bool:
        """Held at one frequency by its minimum. One that heat has pushed down to its lowest is not."""
        return self.min_khz >= self.max_khz and self.min_khz > self.lowest_khz


def _read(sysfs: Sysfs, name: str) -> _Cluster | None:
    path = f"{CLUSTERS}/{name}"
    minimum = parse_hz(sysfs.text(f"{path}/scaling_min_freq"))
    maximum = parse_hz(sysfs.text(f"{path}/scaling_max_freq"))
    lowest = parse_hz(sysfs.text(f"{path}/cpuinfo_min_freq"))
    return None if minimum is None or maximum is None or lowest is None else _Cluster(minimum, maximum, lowest)


def cpus_pinned(sysfs: Sysfs) -> bool:
    """Every CPU cluster is held at one frequency. False where the kernel has no cpufreq: then it cannot be told."""
    try:
        names = os.listdir(sysfs.at(CLUSTERS))
    except OSError:
        return False
    clusters = [_read(sysfs, name) for name in names if name.startswith("policy")]
    return bool(clusters) and all(cluster is not None and cluster.pinned for cluster in clusters)
