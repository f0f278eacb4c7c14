# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Heat, drives and memory's state on a board: pure parsers, and readers that go through a Host.

Private to this collection: it may change in any release. What cannot be read is None.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils._host import Host

PAGE_BYTES = 4096
MAX_ZONES = 64
# Names under which nvme-cli has given the wear of a drive.
_WEAR_KEYS = ("percent_used", "percentage_used")


def parse_largest_free_block(buddyinfo: str, page_bytes: int = PAGE_BYTES) -> int | None:
    """Bytes of the largest free block of any zone, from /proc/buddyinfo; 0 when nothing is free."""
    largest: int | None = None
    for line in buddyinfo.splitlines():
        match = re.match(r"\s*Node\s+\d+,\s*zone\s+\S+((?:\s+\d{1,18})+)\s*$", line)
        if match is None:
            continue
        orders = [order for order, count in enumerate(match.group(1).split()) if int(count) > 0]
        largest = max(largest or 0, page_bytes << min(orders[-1], 40) if orders else 0)
    return largest


def parse_nvmap_clients(text: str) -> int | None:
    """Bytes that NvMap holds in all, from the last line `total ... 1234K` of its list of clients."""
    for line in reversed(text.splitlines()):
        match = re.match(r"\s*total\b.*?(\d{1,15})\s*([KMG]?)B?\s*$", line, re.IGNORECASE)
        if match:
            return int(match.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[match.group(2).upper()]
    return None


def parse_millidegrees(text: str | None) -> float | None:
    """Degrees Celsius; None for what no part of a running board has, such as the -256 of a sensor that is off."""
    match = re.fullmatch(r"\s*(-?\d{1,9})\s*", text or "")
    degrees = int(match.group(1)) / 1000 if match else None
    return degrees if degrees is not None and -60 <= degrees <= 250 else None


def parse_smart_log(text: str) -> dict[str, int] | None:
    """`critical_warning`, `percent_used` and `media_errors` of `nvme smart-log -o json`; None when it is none."""
    try:
        log = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(log, dict):
        return None

    def number(*names: str) -> int | None:
        for name in names:
            value = log.get(name)
            # Newer tools spell the warning's bits out below `value`, and big counters as text.
            if isinstance(value, dict):
                value = value.get("value")
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 40:
                return int(value)
        return None

    found = {
        "critical_warning": number("critical_warning"),
        "percent_used": number(*_WEAR_KEYS),
        "media_errors": number("media_errors"),
    }
    known = {key: value for key, value in found.items() if value is not None}
    return known or None


def thermal_zone_dirs(host: Host) -> list[str]:
    """Where the zones are, in the order of `thermal_zones`."""
    base = "/sys/class/thermal"
    entries = [name for name in host.entries(base) if re.fullmatch(r"thermal_zone\d{1,4}", name)]
    return [f"{base}/{name}" for name in sorted(entries, key=lambda name: int(name[len("thermal_zone") :]))[:MAX_ZONES]]


def thermal_zones(host: Host) -> list[dict[str, Any]]:
    """Zones with name, temperature and the lowest trip point that throttles or stops the board, in degrees Celsius."""
    zones: list[dict[str, Any]] = []
    for zone in thermal_zone_dirs(host):
        trips: dict[str, float] = {}
        for number in range(16):
            kind = host.read_text(f"{zone}/trip_point_{number}_type", 64)
            if kind is None:
                break
            degrees = parse_millidegrees(host.read_text(f"{zone}/trip_point_{number}_temp", 64))
            # A trip point of zero or less is one that is switched off.
            if degrees is not None and degrees > 0:
                trips[kind] = min(degrees, trips.get(kind, degrees))
        zones.append(
            {
                "name": host.read_text(f"{zone}/type", 64) or zone.rpartition("/")[2],
                "celsius": parse_millidegrees(host.read_text(f"{zone}/temp", 64)),
                "hot_celsius": min((trips[kind] for kind in ("hot", "critical") if kind in trips), default=None),
            }
        )
    return zones


def nvme_health(host: Host, controller: str, warnings: list[str]) -> dict[str, Any]:
    """State by the kernel, and by nvme-cli where it is installed and allowed."""
    base = f"/sys/class/nvme/{controller}"
    celsius = None
    for folder in (base, f"{base}/device"):
        for entry in host.entries(folder):
            if re.fullmatch(r"hwmon\d{1,4}", entry) and celsius is None:
                celsius = parse_millidegrees(host.read_text(f"{folder}/{entry}/temp1_input", 64))
    answer = host.command(["nvme", "smart-log", f"/dev/{controller}", "-o", "json"])
    smart = parse_smart_log(answer.stdout) if answer.problem is None and answer.rc == 0 else None
    if smart is None:
        why = answer.problem or (answer.stderr.strip().splitlines() or ["printed no log"])[0][:120]
        warnings.append(f"wear and errors of {controller} are not known: nvme smart-log: {why}")
    smart = smart or {}
    return {
        "state": host.read_text(f"{base}/state", 64) or None,
        "celsius": celsius,
        "critical_warning": smart.get("critical_warning"),
        "percent_used": smart.get("percent_used"),
        "media_errors": smart.get("media_errors"),
    }
