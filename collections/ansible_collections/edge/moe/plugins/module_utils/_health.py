# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a board is well, from its facts: problems with what was seen and what to do, and one line for a table.

Private to this collection: it may change in any release. Pure.

A problem is something that a person should act on. A board without a server, or with a null where a source is
missing, is none.
"""

from __future__ import annotations

from typing import Any

GIB = 1024**3
# A zone this near to its limit throttles before the next look.
HEAT_MARGIN_C = 3.0
# The kernel starts to kill below a few per cent.
LEAST_AVAILABLE_SHARE = 0.02
WORN_PERCENT = 100
BAD_VERDICTS = {
    "inert": "read its log for the line that begins with edge-moe: cache",
    "thrashing": "run edge.moe.plan and give the cache the size that it names",
    "below_cycle": "run edge.moe.plan and give the cache the size that it names",
}
COLUMNS = ("host", "state", "board", "L4T", "power", "GPU", "cache", "floor", "hottest", "free", "first problem")


def problems_of(
    jetson: dict[str, Any], devfreq: dict[str, Any], cache: dict[str, Any], units: dict[str, str]
) -> list[str]:
    """One sentence for each thing that is wrong; `units` holds the ActiveState of the project's enabled units."""
    found: list[str] = []
    for unit, state in units.items():
        if state in ("failed", "inactive"):
            found.append(f"{unit} is {state} and should run: systemctl status {unit}")
    l4t = jetson.get("l4t") or {}
    if l4t.get("agree") is False:
        found.append(
            f"L4T is {l4t.get('release_file')} by its file and {l4t.get('package')} by its package: finish the upgrade"
        )
    mode = jetson.get("power_mode") or {}
    if mode.get("label_true") is False:
        found.append(f"power mode: {mode.get('label_note')}: choose the mode again, or reboot")
    for zone in jetson.get("thermal") or []:
        celsius, hot = zone.get("celsius"), zone.get("hot_celsius")
        if celsius is not None and hot is not None and celsius >= hot - HEAT_MARGIN_C:
            found.append(f"{zone.get('name')} is at {celsius:.0f} of {hot:.0f} degrees: look at fan and airflow")
    for drive in jetson.get("nvme") or []:
        health, name = drive.get("health") or {}, drive.get("name")
        if health.get("state") not in (None, "live"):
            found.append(f"{name} is {health['state']}: read the kernel's log; the drive or its power may be failing")
        if health.get("critical_warning"):
            found.append(f"{name} gives critical warning {health['critical_warning']}: back up, and replace it")
        elif (health.get("percent_used") or 0) >= WORN_PERCENT:
            found.append(f"{name} has used {health['percent_used']}% of its life: plan its replacement")
        if health.get("media_errors"):
            found.append(f"{name} has had {health['media_errors']} media errors: check the model's hash")
    memory = jetson.get("memory") or {}
    total, available = memory.get("total_bytes"), memory.get("available_bytes")
    if total and available is not None and available < total * LEAST_AVAILABLE_SHARE:
        found.append(f"{available >> 20} MiB of {total >> 20} are available: a smaller cache or context is needed")
    for node in devfreq.get("nodes") or []:
        if node.get("pinned_externally"):
            found.append(
                f"{node.get('name')} is pinned at {(node.get('max_hz') or 0) / 1e6:.0f} MHz: jetson_clocks --restore"
            )
    floor = devfreq.get("floor") or {}
    if floor.get("degraded"):
        found.append(f"the clock floor cannot be held: {floor['degraded']}")
    for server in cache.get("servers") or []:
        if not server.get("running"):
            continue
        if server.get("verdict") in BAD_VERDICTS:
            remedy = BAD_VERDICTS[server["verdict"]]
            found.append(
                f"cache of process {server.get('pid')} is {server['verdict']}: {server['explanation']}; {remedy}"
            )
        if server.get("errors"):
            found.append(f"process {server.get('pid')} had {server['errors']} failed reads: check drive and model file")
    return found


def line_of(jetson: dict[str, Any], devfreq: dict[str, Any], cache: dict[str, Any], problems: list[str]) -> list[str]:
    """The cells of one board after its name, in the order of COLUMNS."""
    nodes = devfreq.get("nodes") or [{}]
    cur, top = nodes[0].get("cur_hz"), nodes[0].get("max_hz")
    floor = devfreq.get("floor")
    raised = (floor or {}).get("raised")
    degrees = [zone["celsius"] for zone in jetson.get("thermal") or [] if zone.get("celsius") is not None]
    memory = jetson.get("memory") or {}
    shares = [server["hit_share"] for server in cache.get("servers") or [] if server.get("hit_share") is not None]
    hits = f" {max(shares):.0%}" if shares else ""
    return [
        "ok" if not problems else f"{len(problems)} wrong",
        str(jetson.get("board") or ("unknown" if jetson.get("is_jetson") else "no Jetson")),
        str((jetson.get("l4t") or {}).get("version") or "-"),
        str((jetson.get("power_mode") or {}).get("name") or "-"),
        f"{cur / 1e6:.0f}/{top / 1e6:.0f} MHz" if cur is not None and top is not None else "-",
        str(cache.get("verdict") or "-") + hits,
        "-" if floor is None else {None: "silent", True: "raised", False: "low"}[raised],
        f"{max(degrees):.0f} C" if degrees else "-",
        f"{memory['available_bytes'] / GIB:.1f} GiB" if memory.get("available_bytes") is not None else "-",
        problems[0] if problems else "",
    ]


def table(rows: dict[str, list[str] | None]) -> str:
    """One line a board; None stands for a board that did not answer."""
    empty = ["-"] * (len(COLUMNS) - 3)
    lines = [list(COLUMNS)]
    for host, cells in rows.items():
        lines.append([host, *(cells or ["SILENT", *empty, "did not answer, or its facts could not be read"])])
    # The last column is as long as it is: a problem cut short is none that can be acted on.
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS) - 1)]
    return "\n".join(
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    )
