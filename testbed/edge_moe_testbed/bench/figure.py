# SPDX-License-Identifier: GPL-3.0-or-later
"""One benchmark's result as a file: name, value, unit, goal, direction and everything needed to judge it."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


class BenchError(Exception):
    """A benchmark cannot run here; the text says what was seen and what is needed, in one line."""


@dataclass
class Figure:
    name: str
    value: float
    unit: str
    goal: float
    better: str  # "higher" or "lower"
    detail: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower"):
            raise ValueError(f"better is {self.better!r}, not 'higher' or 'lower'")

    def met(self) -> bool:
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        partial = path.with_name(path.name + ".part")
        partial.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")
        partial.replace(path)
        return path


def bench_dir() -> Path:
    return Path(os.environ.get("EDGE_MOE_BENCH_DIR") or "build/bench")


def load_figures(folder: Path) -> list[Figure]:
    return [Figure(**json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


def machine() -> dict[str, Any]:
    """What the figure was measured on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    memory = next(
        int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal")
    )
    return {"cpu": model, "cores": os.cpu_count(), "memory_mib": memory // 1024, "kernel": platform.release()}
