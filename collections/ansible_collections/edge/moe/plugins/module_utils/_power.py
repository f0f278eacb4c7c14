# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The power mode of a board: its name and id, its caps, and whether the label is true.

Private to this collection: it may change in any release. Everything but `power_mode` is pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils._devfreq import Node, same_hz
from ansible_collections.edge.moe.plugins.module_utils._host import Host


def parse_query(text: str) -> dict[str, Any] | None:
    """Name and id of the power mode from `nvpmodel -q`; other lines may stand before, between and after."""
    name: str | None = None
    for raw in text.splitlines():
        line = raw.strip()
        match = re.search(r"NV Power Mode\s*:\s*(\S+)", line, re.IGNORECASE)
        if match:
            name = match.group(1)
        elif name is not None and re.fullmatch(r"\d{1,3}", line):
            return {"name": name, "id": int(line)}
    return None if name is None else {"name": name, "id": None}


def parse_status(text: str) -> int | None:
    """The mode id that nvpmodel last stored: `pmode:0002 fmode:fan_mode_quiet`."""
    match = re.search(r"\bpmode\s*:\s*(\d{1,6})\b", text)
    return int(match.group(1)) if match else None


def parse_conf(text: str) -> dict[int, dict[str, Any]]:
    """Modes by id, from nvpmodel.conf: `name`, `gpu_cap_hz` and `emc_cap_hz`.

    A cap is None where the mode sets none: no line, 0, -1, or a number that only stands for no limit.
    """
    modes: dict[int, dict[str, Any]] = {}
    mode: dict[str, Any] | None = None
    for raw in text.splitlines():
        line = raw.split("#", 1)[0].strip()
        head = re.match(r"<\s*POWER_MODEL\s+ID=(\d{1,4})\s+NAME=([^\s>]+)", line)
        if head:
            mode = {"name": head.group(2), "gpu_cap_hz": None, "emc_cap_hz": None}
            modes[int(head.group(1))] = mode
        elif line.startswith("<"):
            mode = None
        elif mode is not None:
            cap = re.match(r"(GPU|EMC)\s+MAX_FREQ\s+(-?\d{1,18})\s*$", line)
            if cap and 0 < int(cap.group(2)) < 100_000_000_000:
                mode[cap.group(1).lower() + "_cap_hz"] = int(cap.group(2))
    return modes


def parse_conf_names(text: str) -> dict[int, str]:
    """Mode id to name."""
    return {number: mode["name"] for number, mode in parse_conf(text).items()}


def truth(name: str, cap_hz: int | None, super_clocks: bool | None, nodes: Sequence[Node]) -> tuple[bool | None, str]:
    """Whether the GPU can do what the mode's label says, and the sentence that explains it.

    None when there is no clock to compare with. The clocks are believed before the label.
    """
    node = next((node for node in nodes if node.max_hz and node.available_hz), None)
    if node is None or node.max_hz is None:
        return None, "no GPU clock was read, so the label stands alone"
    top = node.available_hz[-1]
    if "SUPER" in name.upper() and super_clocks is False:
        return False, f"{name} on firmware without Super clocks: the GPU ends at {top / 1e6:g} MHz"
    wanted = top if cap_hz is None else min(top, max((hz for hz in node.available_hz if hz <= cap_hz), default=cap_hz))
    if cap_hz is not None and cap_hz > top * 1.01:
        return False, f"{name} allows {cap_hz / 1e6:g} MHz and the GPU's table ends at {top / 1e6:g} MHz"
    if same_hz(node.max_hz, wanted):
        return True, f"the GPU may run up to {node.max_hz / 1e6:g} MHz, as {name} says"
    return (
        False,
        f"{name} stands for {wanted / 1e6:g} MHz and max_freq is {node.max_hz / 1e6:g} MHz: something else set it",
    )


def _named(host: Host, modes: dict[int, dict[str, Any]], warnings: list[str]) -> dict[str, Any] | None:
    answer = host.command(["nvpmodel", "-q"])
    mode = parse_query(answer.stdout + "\n" + answer.stderr) if answer.problem is None else None
    if mode is not None and mode["id"] is not None:
        return mode
    stored = parse_status(host.read_text("/var/lib/nvpmodel/status", 4096) or "")
    if mode is not None:
        ids = [key for key, known in modes.items() if known["name"] == mode["name"]]
        return {"name": mode["name"], "id": ids[0] if len(ids) == 1 else stored}
    why = answer.problem or "printed no power mode"
    if stored is None:
        warnings.append(f"power mode unknown: nvpmodel -q: {why}; /var/lib/nvpmodel/status says nothing either")
        return None
    warnings.append(f"power mode from /var/lib/nvpmodel/status (id {stored}), as nvpmodel -q: {why}")
    return {"name": modes[stored]["name"] if stored in modes else None, "id": stored}


def power_mode(
    host: Host, super_clocks: bool | None, nodes: Sequence[Node], warnings: list[str]
) -> dict[str, Any] | None:
    """`name`, `id`, `gpu_cap_hz`, `emc_cap_hz`, `label_true` and `label_note`; None when no mode is known."""
    modes = parse_conf(host.read_text("/etc/nvpmodel.conf") or "")
    mode = _named(host, modes, warnings)
    if mode is None:
        return None
    known = modes.get(mode["id"], {}) if mode["id"] is not None else {}
    gpu_cap = known.get("gpu_cap_hz")
    label_true, note = truth(mode["name"], gpu_cap, super_clocks, nodes) if mode["name"] else (None, "no name")
    if label_true is False:
        warnings.append(f"power mode: {note}")
    return {
        **mode,
        "gpu_cap_hz": gpu_cap,
        "emc_cap_hz": known.get("emc_cap_hz"),
        "label_true": label_true,
        "label_note": note,
    }
