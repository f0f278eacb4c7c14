# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU devfreq nodes: find, read, choose a frequency, write a floor.

Private to edge.moe: no promise of stability is made to anything outside the collection.

One file, two readers: the facts module imports it as module_utils, and the clock-floor service carries the same
file on the board. So it knows nothing of Ansible, prints nothing, and takes the file-system root as an argument.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

DEVFREQ = "sys/class/devfreq"
PLATFORM_LOAD = "sys/devices/platform/gpu.0/load"
BOOT_ID = "proc/sys/kernel/random/boot_id"

# What the device tree calls the GPU, from Xavier to Thor.
GPU_NAMES = ("gv11b", "gp10b", "ga10b", "gb10b", "gpu")
# Thor has two clock domains and names the entries after them.
_GPU_ENTRY = re.compile(r"gpu-(gpc|nvd)-\d+$")

# Real clocks settle a little off the table (305965000 for 306000000); neighbouring entries are 2 % apart or more.
TOLERANCE = 0.01


class Node(NamedTuple):
    """What one GPU devfreq node said at one moment. A file that could not be read is None or empty."""

    name: str
    path: str  # real path, without the injected root
    of_node_name: str | None
    available_hz: tuple[int, ...]
    min_hz: int | None
    max_hz: int | None
    cur_hz: int | None
    governor: str | None
    load_permille: int | None

    @property
    def pinned(self) -> bool:
        """min_freq equals max_freq although there is a choice: jetson_clocks, or a floor at the very top."""
        if self.min_hz is None or self.max_hz is None or len(self.available_hz) == 1:
            return False
        return self.min_hz >= self.max_hz


class Applied(NamedTuple):
    """requested: what was asked; applied: what was written; effective: what the kernel then said."""

    requested_hz: int
    applied_hz: int
    effective_hz: int


def same_hz(one: int | None, other: int | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= TOLERANCE * max(one, other)


def read_text(path: str) -> str | None:
    """Text of a small kernel file, NULs and blanks stripped; None if it cannot be read. Never fails on odd bytes."""
    try:
        with open(path, "rb") as handle:
            return handle.read(65536).decode("utf-8", errors="replace").strip("\0 \t\r\n")
    except OSError:
        return None


def parse_hz(text: str | None) -> int | None:
    try:
        value = int((text or "").split()[0])
    except (IndexError, ValueError):
        return None
    return value if value >= 0 else None


def parse_table(text: str | None) -> tuple[int, ...]:
    """Ascending, without repeats; a token that is no number is skipped, as boards print odd things."""
    return tuple(sorted({int(token) for token in (text or "").split() if token.isascii() and token.isdigit()}))


def is_gpu(entry: str, of_node_name: str | None) -> bool:
    """By the device tree's name or by the entry's own, which is all that Thor and a machine without a tree have."""
    return of_node_name in GPU_NAMES or entry.rpartition(".")[2] in GPU_NAMES or bool(_GPU_ENTRY.match(entry))


class Sysfs:
    """Kernel files below `root`: "/" on a board, a fixture tree in a test. The only place that joins the two."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.realpath(root)

    def at(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def real(self, path: str) -> str:
        """Resolve links below the root and drop the root again, so that the path means the same to any reader."""
        return "/" + os.path.relpath(os.path.realpath(self.at(path)), self.root)

    def text(self, path: str) -> str | None:
        return read_text(self.at(path))

    def boot_id(self) -> str | None:
        return self.text(BOOT_ID)

    def entries(self) -> list[str] | None:
        """Names below /sys/class/devfreq; None where the kernel has no devfreq at all."""
        try:
            return sorted(os.listdir(self.at(DEVFREQ)))
        except OSError:
            return None

    def seen(self) -> str:
        """For a message: what there is where a GPU was looked for."""
        entries = self.entries()
        if entries is None:
            return f"/{DEVFREQ} does not exist"
        return f"/{DEVFREQ} has " + (", ".join(entries) or "no entries")

    def gpu_nodes(self) -> list[Node]:
        found = []
        for entry in self.entries() or []:
            base = f"{DEVFREQ}/{entry}"
            of_node_name = self.text(f"{base}/device/of_node/name")
            if is_gpu(entry, of_node_name):
                found.append(self.read_node(self.real(base), entry, of_node_name))
        return found

    def read_node(self, path: str, name: str | None = None, of_node_name: str | None = None) -> Node:
        load = self.text(f"{path}/device/load")
        if load is None:
            load = self.text(PLATFORM_LOAD)
        return Node(
            name=name or os.path.basename(path),
            path=path,
            of_node_name=of_node_name,
            available_hz=parse_table(self.text(f"{path}/available_frequencies")),
            min_hz=self.min_hz(path),
            max_hz=parse_hz(self.text(f"{path}/max_freq")),
            cur_hz=parse_hz(self.text(f"{path}/cur_freq")),
            governor=self.text(f"{path}/governor") or None,
            load_permille=parse_hz(load),
        )

    def min_hz(self, path: str) -> int | None:
        return parse_hz(self.text(f"{path}/min_freq"))

    def write_min(self, path: str, value_hz: int) -> int | None:
        """Write, close, read back. An OSError from write or close is the caller's: sysfs may report either way."""
        descriptor = os.open(self.at(f"{path}/min_freq"), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"{value_hz}\n".encode())
        finally:
            os.close(descriptor)
        return self.min_hz(path)


def choose_floor(node: Node, requested_hz: int) -> int | None:
    """The smallest table entry at or above the request, never above max_freq; 0 asks for the highest.

    The kernel does not check the range of a min_freq write (it clamps when read), so it is done here. None: the node
    says too little to choose.
    """
    highest = node.available_hz[-1] if node.available_hz else node.max_hz
    if highest is None:
        return None
    wanted = requested_hz or highest
    snapped = next((hz for hz in node.available_hz if hz >= wanted), highest)
    return min(snapped, node.max_hz) if node.max_hz else snapped
