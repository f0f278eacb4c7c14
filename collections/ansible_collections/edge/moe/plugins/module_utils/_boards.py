# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a fleet inventory asks a machine that it reaches, and what it makes of the answer.

Private to this collection: it may change in any release. Pure: the answer's bytes in, facts and group names out.

The answer comes from whatever machine has the address, so it is material to be judged: every part is bounded, text is
stripped of control characters, and a group's name is built from what was recognised, never from what was sent.
"""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _jetson

# Read by `sh -s`: POSIX only, nothing is written, and a part whose source is missing is empty.
PROBE = r"""
LC_ALL=C; export LC_ALL
part() { printf '\n@@ %s\n' "$1"; }
part compatible; head -c 2048 /proc/device-tree/compatible 2>/dev/null | tr '\000' '\n'
part model; head -c 256 /proc/device-tree/model 2>/dev/null | tr '\000' '\n'
part release; head -c 1024 /etc/nv_tegra_release 2>/dev/null
part package; dpkg-query --show --showformat='${Version}' nvidia-l4t-core 2>/dev/null </dev/null
part memory; head -n 3 /proc/meminfo 2>/dev/null
part kernel; head -c 256 /proc/sys/kernel/osrelease 2>/dev/null
part end
"""
ANSWER_LIMIT = 16 * 1024
PARTS = ("compatible", "model", "release", "package", "memory", "kernel", "end")
# What is sold as 8 GB shows 7.4 GiB or less to Linux.
_MEMORY_SIZES_GB = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class AnswerError(Exception):
    """The answer is not that of the probe; the text says what it was."""


def printable(text: str, limit: int = 120) -> str:
    """One line without control characters, fit for a terminal and a message."""
    return _UNPRINTABLE.sub(" ", text).strip()[:limit]


def split_answer(data: bytes) -> dict[str, str]:
    """The parts of an answer by name. Whatever stands before the first mark (a login's greeting) is passed over."""
    text = data[:ANSWER_LIMIT].decode("utf-8", errors="replace")
    parts: dict[str, str] = {}
    for chunk in ("\n" + text).split("\n@@ ")[1:]:
        name, _break, content = chunk.partition("\n")
        # The first of a name counts: a file that holds a mark of its own cannot replace an earlier part.
        if name.strip() in PARTS:
            parts.setdefault(name.strip(), content)
    if "end" not in parts:
        seen = printable(text) or "nothing"
        raise AnswerError(f"the answer is not that of the probe, it says {seen!r}: is there a free login with /bin/sh?")
    return parts


def parse_answer(data: bytes) -> dict[str, Any]:
    """Facts of one machine: `jetson`, `board`, `super`, `soc`, `model`, `l4t`, `jetpack`, `kernel`, `memory_bytes`.

    What was not recognised is None. Raises AnswerError when it is no answer of the probe at all.
    """
    parts = split_answer(data)
    compatible = [printable(line) for line in parts.get("compatible", "").splitlines() if line.strip()][:32]
    board, super_clocks, soc = _jetson.identify(compatible)
    package = parts.get("package", "").strip()
    l4t = _jetson.parse_l4t_package(package) or _jetson.parse_nv_tegra_release(parts.get("release", ""))
    return {
        "jetson": board is not None or soc is not None,
        "board": board,
        "super": super_clocks,
        "soc": soc,
        "model": printable(parts.get("model", "")) or None,
        "l4t": l4t,
        "jetpack": _jetson.JETPACK_BY_L4T.get(l4t or ""),
        "kernel": printable(parts.get("kernel", "")) or None,
        "memory_bytes": _jetson.parse_meminfo(parts.get("memory", "")).get("MemTotal"),
    }


def memory_gb(total_bytes: int) -> int | None:
    """The size that a board is sold with: the next one above what Linux has left of it."""
    return next((size for size in _MEMORY_SIZES_GB if total_bytes <= size * 1024**3), None)


def groups_of(facts: dict[str, Any]) -> list[str]:
    """Groups of a machine that answered: `jetson`, its board, its L4T and its memory; `other` for what is no Jetson."""
    if not facts.get("jetson"):
        return ["other"]
    groups = ["jetson"]
    board, l4t, total = facts.get("board"), facts.get("l4t"), facts.get("memory_bytes")
    groups.append(str(board).replace("-", "_") if board else "board_unknown")
    groups.append("l4t_" + str(l4t).replace(".", "_") if l4t else "l4t_unknown")
    size = memory_gb(total) if isinstance(total, int) and total > 0 else None
    groups.append(f"memory_{size}gb" if size else "memory_unknown")
    return groups
