# SPDX-License-Identifier: GPL-3.0-or-later
"""Health as Prometheus text, for node_exporter, the facts module and `cat`."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

PATH = "/run/edge-moe/clock-floor.prom"
_PREFIX = "edge_moe_clock_floor_"


class Snapshot(NamedTuple):
    raised: bool
    requested_hz: int
    applied_hz: int
    effective_hz: int
    baseline_hz: int
    transitions: int
    raised_seconds: float
    in_flight: int
    probes_attached: int
    write_errors: int
    lost_events: int
    reaction_seconds: float
    degraded: str
    updated: float


_METRICS = (
    ("raised", "gauge", "1 while the floor is up."),
    ("requested_hz", "gauge", "Floor that the settings ask for; 0 while it is down."),
    ("applied_hz", "gauge", "Floor that was written, from the table of frequencies; 0 while it is down."),
    ("effective_hz", "gauge", "min_freq as the kernel reads it back."),
    ("baseline_hz", "gauge", "min_freq that is restored after inference."),
    ("transitions_total", "counter", "Times that the floor went up or down."),
    ("raised_seconds_total", "counter", "Time with the floor up."),
    ("in_flight", "gauge", "Calls in progress in processes that count."),
    ("probes_attached", "gauge", "Function entries and returns that are watched."),
    ("write_errors_total", "counter", "Writes that the kernel refused."),
    ("lost_events_total", "counter", "Probe events dropped because a ring was full."),
    ("reaction_seconds", "gauge", "From the last call that raised the floor to min_freq written."),
    ("degraded", "gauge", "1 with the reason if the floor cannot be held."),
    ("updated_timestamp_seconds", "gauge", "Unix time of this file."),
)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def render(snapshot: Snapshot) -> str:
    values: dict[str, float] = {
        "raised": int(snapshot.raised),
        "requested_hz": snapshot.requested_hz,
        "applied_hz": snapshot.applied_hz,
        "effective_hz": snapshot.effective_hz,
        "baseline_hz": snapshot.baseline_hz,
        "transitions_total": snapshot.transitions,
        "raised_seconds_total": round(snapshot.raised_seconds, 3),
        "in_flight": snapshot.in_flight,
        "probes_attached": snapshot.probes_attached,
        "write_errors_total": snapshot.write_errors,
        "lost_events_total": snapshot.lost_events,
        "reaction_seconds": round(snapshot.reaction_seconds, 6),
        "degraded": int(bool(snapshot.degraded)),
        "updated_timestamp_seconds": round(snapshot.updated, 3),
    }
    lines = []
    for name, kind, text in _METRICS:
        label = f'{{reason="{_escape(snapshot.degraded)}"}}' if name == "degraded" else ""
        lines += [
            f"# HELP {_PREFIX}{name} {text}",
            f"# TYPE {_PREFIX}{name} {kind}",
            f"{_PREFIX}{name}{label} {values[name]}",
        ]
    return "\n".join(lines) + "\n"


def write(path: str, text: str) -> None:
    """Replace atomically. Its directory is writable for a group, so the temporary name must be new and no link."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    os.rename(temporary, path)
