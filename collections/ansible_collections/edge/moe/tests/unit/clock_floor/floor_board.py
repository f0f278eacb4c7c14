# SPDX-License-Identifier: GPL-3.0-or-later
"""A fixture tree that a test may write to."""

from __future__ import annotations

from pathlib import Path

COLLECTION = Path(__file__).parents[3]
PACKAGE_DIR = COLLECTION / "roles" / "gpu_clock_floor" / "files"
FIXTURES = COLLECTION / "tests" / "unit" / "fixtures" / "sysfs"
NODE = "/sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu"


class Board:
    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, name: str, node: str = NODE) -> Path:
        return self.root / node.lstrip("/") / name

    def set_cpus(self, min_khz: int, max_khz: int = 1728000) -> None:
        """Two clusters that can go from 115.2 MHz up to 1728 MHz."""
        for name in ("policy0", "policy4"):
            folder = self.root / "sys/devices/system/cpu/cpufreq" / name
            folder.mkdir(parents=True, exist_ok=True)
            for file, khz in (
                ("scaling_min_freq", min_khz),
                ("scaling_max_freq", max_khz),
                ("cpuinfo_min_freq", 115200),
            ):
                (folder / file).write_text(f"{khz}\n")

    @property
    def min_hz(self) -> int:
        return int(self.file("min_freq").read_text() or 0)

    @min_hz.setter
    def min_hz(self, value: int) -> None:
        self.file("min_freq").write_text(f"{value}\n")
