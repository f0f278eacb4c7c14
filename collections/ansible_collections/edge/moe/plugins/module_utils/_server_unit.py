# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd unit of a server: its process, its control group, its journal, and how it ended.

Private to this collection: it may change in any release.
"""

from __future__ import annotations

import re
import signal
import time
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils._host import Host

GONE_S = 2.0
JOURNAL_S = 30.0
# A board that reads a model through its page cache may take seconds to bring systemctl itself back into memory.
SHOW_S = 30.0
TAIL_LINES = 2000
FIRST_CHARACTERS = 300
# Kinds of line that tell of a GPU that fails or is not there: from the driver's library, from CUDA, from llama.cpp.
FAULTS = {
    "nvmap_errors": re.compile(r"\bNvMap\w*\b.*\berror\b", re.IGNORECASE),
    "cuda_errors": re.compile(r"\bCUDA error\b|\bcudaMalloc\w* failed\b|\bcuBLAS error\b", re.IGNORECASE),
    "no_gpu": re.compile(r"no usable GPU found|failed to initialize CUDA|no CUDA-capable device", re.IGNORECASE),
}
_GPU_LAYERS = re.compile(r"\boffloaded (\d{1,5})/(\d{1,5}) layers to GPU")


def parse_major_faults(text: str) -> int | None:
    """Field 12 of /proc/PID/stat. The command name, in parentheses, may hold anything, so count from its end."""
    after = text.rpartition(")")[2].split()
    return int(after[9]) if len(after) > 9 and after[9].isdecimal() else None


def parse_unit_properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def parse_unified_mount(mounts: str) -> str | None:
    """Where cgroup v2 is mounted; /sys/fs/cgroup/unified on a hybrid machine."""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[2] == "cgroup2":
            return fields[1]
    return None


def parse_oom_kills(events: str) -> int | None:
    """`oom_kill` of a control group's memory.events: processes that were killed for want of memory."""
    match = re.search(r"^oom_kill (\d{1,18})$", events, re.MULTILINE)
    return int(match.group(1)) if match else None


def parse_log(text: str) -> dict[str, Any]:
    """What a llama-server's log says about the GPU: see RETURN of the measure module, `log`."""
    counts = dict.fromkeys(FAULTS, 0)
    first: dict[str, str] = {}
    layers: list[int] | None = None
    lines = text.splitlines()
    for line in lines:
        for kind, pattern in FAULTS.items():
            if pattern.search(line):
                counts[kind] += 1
                first.setdefault(kind, line.strip()[:FIRST_CHARACTERS])
        if found := _GPU_LAYERS.search(line):
            layers = [int(found.group(1)), int(found.group(2))]
    return {
        "lines": len(lines),
        "nvmap_errors": counts["nvmap_errors"],
        "cuda_errors": counts["cuda_errors"],
        "gpu_layers": layers,
        "no_gpu": counts["no_gpu"] > 0,
        "first": first,
    }


def describe_end(properties: dict[str, str]) -> str:
    """How a unit's main process ended, in words and as systemd spells it."""
    result, code, status = (properties.get(key, "") for key in ("Result", "ExecMainCode", "ExecMainStatus"))
    if result == "oom-kill":
        words = "the kernel killed it for want of memory"
    elif code in ("2", "3"):  # killed, or dumped core
        try:
            words = f"signal {signal.Signals(int(status)).name} ended it"
        except ValueError:
            words = f"signal {status} ended it"
    elif code == "1":
        words = f"it exited with status {status}"
    elif properties.get("MainPID", "0") != "0":
        words = "systemd has started it anew"
    else:
        words = "systemd does not tell how it ended"
    return f"{words} (Result={result or '?'}, ExecMainStatus={status or '?'})"


class Unit:
    """A server's unit as it is now. Nothing of it is known where `name` is None or systemd does not answer."""

    def __init__(self, host: Host, name: str | None) -> None:
        self.host = host
        self.name = name
        # Why systemd has told nothing, where it has not.
        self.problem: str | None = None
        properties = self._show("MainPID,ControlGroup,InvocationID")
        pid = properties.get("MainPID", "0")
        self.pid = int(pid) if pid.isdecimal() and int(pid) > 0 else None
        invocation = properties.get("InvocationID", "")
        self._invocation = invocation if re.fullmatch(r"[0-9a-f]{32}", invocation) else None
        group = properties.get("ControlGroup", "")
        # Where the files of its control group are.
        self.group_dir: str | None = None
        if group.startswith("/") and ".." not in group.split("/"):
            mount = parse_unified_mount(host.read_text("/proc/self/mounts") or "") or "/sys/fs/cgroup"
            self.group_dir = mount + group
        self._oom_kills_before = self.oom_kills()

    def _show(self, names: str) -> dict[str, str]:
        if not self.name:
            return {}
        answer = self.host.command(["systemctl", "show", f"--property={names}", "--", self.name], SHOW_S)
        self.problem = answer.problem
        return parse_unit_properties(answer.stdout)

    def _group_file(self, name: str) -> str | None:
        return self.host.read_text(f"{self.group_dir}/{name}", 4096) if self.group_dir else None

    def swap_max(self) -> str | None:
        return self._group_file("memory.swap.max")

    def oom_kills(self) -> int | None:
        return parse_oom_kills(self._group_file("memory.events") or "")

    def oom_kills_since(self) -> int | None:
        """How many were killed for want of memory since this object was made."""
        now = self.oom_kills()
        return None if now is None or self._oom_kills_before is None else now - self._oom_kills_before

    def memory_peak(self) -> int | None:
        """Bytes; None on kernels older than 5.19."""
        peak = self._group_file("memory.peak") or ""
        return int(peak) if peak.isdecimal() else None

    def major_faults(self) -> int | None:
        text = self.host.read_text(f"/proc/{self.pid}/stat", 4096) if self.pid else None
        return parse_major_faults(text) if text else None

    def end(self) -> str | None:
        """Evidence of how the main process ended; None while it runs. Waits a little: a socket closes first."""
        if not self.name:
            return None
        deadline = time.monotonic() + GONE_S
        while self.pid and self.host.exists(f"/proc/{self.pid}"):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        killed = self.oom_kills_since()
        more = f"; oom_kill of its control group grew by {killed}" if killed else ""
        return f"{self.name}: {describe_end(self._show('MainPID,Result,ExecMainCode,ExecMainStatus'))}{more}"

    def log(self) -> dict[str, Any] | None:
        """`parse_log` of the journal since the unit was started: its beginning and its end where it is long."""
        if self._invocation is None or not self.name:
            return None
        journalctl = ["journalctl", "--no-pager", "--quiet", "-o", "cat", "-u", self.name]
        match = f"_SYSTEMD_INVOCATION_ID={self._invocation}"
        answer = self.host.command([*journalctl, match], JOURNAL_S)
        text = answer.stdout
        if answer.problem is not None and text:
            tail = self.host.command([*journalctl, f"--lines={TAIL_LINES}", match], JOURNAL_S)
            text += "\n" + tail.stdout
        return parse_log(text) if text else None
