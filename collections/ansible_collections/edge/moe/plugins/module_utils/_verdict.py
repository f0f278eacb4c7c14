# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is this board right? A pure comparison of two measurements with the plan, each failure with evidence and remedy.

Private to this collection: it may change in any release.

Start here: the classes and the limits. What is looked for is in _verdict_rules.py, how texts are compared in _texts.py,
which earlier result counts in _history.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ansible_collections.edge.moe.plugins.module_utils._texts import by_prompt, compare_texts, first_difference
from ansible_collections.edge.moe.plugins.module_utils._values import count, entries, line, mapping, number, whole
from ansible_collections.edge.moe.plugins.module_utils._verdict_rules import (
    RULES,
    RULES_OF_FINISHED,
    Case,
    Finding,
    finished,
)

__all__ = ["CLASSES", "THRESHOLDS", "VerdictError", "check_thresholds", "compare_texts", "first_difference", "judge"]


class Class(NamedTuple):
    """A kind of failure. `explains` names the classes that are its symptoms; all of them stand below it."""

    meaning: str
    evidence: str
    remedy: str
    explains: tuple[str, ...] = ()


_SLOW = ("too_slow", "slower_than_before")

# Causes before symptoms: failures are listed in this order.
CLASSES: dict[str, Class] = {
    "nvmap_error": Class(
        "the GPU's driver refused memory (NvMap) or CUDA reported an error",
        "the server's journal since it was started; for one that died, its last lines",
        "free memory (desktop, other containers), lower `context` or `n_gpu_layers` in llama_server_overrides; after a "
        "crash of the driver restart the board",
        ("cpu_fallback", "incomplete"),
    ),
    "out_of_memory": Class(
        "the kernel killed the server, or a part of it, for lack of memory",
        "`oom_kill` of the unit's control group, or `oom-kill` as the unit's result",
        "lower `cache_mib` or `context` in llama_server_overrides, or stop what else takes memory",
        ("incomplete",),
    ),
    "read_errors": Class(
        "experts could not be read from the drive",
        "the cache's counter of errors",
        "check the drive: dmesg, nvme smart-log",
        ("incomplete",),
    ),
    "incomplete": Class(
        "a path was not measured, or not to its end",
        "requests that were answered, and what the measurement says of its end",
        "see journalctl -u edge-moe-server (or edge-moe-reference) on the board for why it ended, then measure again",
    ),
    "text_differs": Class(
        "the served path answers otherwise than stock mmap",
        "texts, tokens and hashes of every round against the reference's first; the first difference in its context",
        "do not serve from this board: set llama_server_overrides to {decision: mmap}, keep both result files and "
        "report them",
    ),
    "cpu_fallback": Class(
        "layers that the plan has on the GPU run on the CPU",
        "the server's log (layers offloaded, no usable GPU), or a GPU load of 0",
        "check that the release was built with CUDA (llama_cpp_cuda) and that the user edge-moe may open the GPU's "
        "devices (llama_server_groups); a reference that was measured so needs -e verify_refresh_reference=true",
        _SLOW,
    ),
    "cache_unplanned": Class(
        "an expert cache runs although the plan has none",
        "the cache's health file",
        "restart the server from the plan: ansible-playbook playbooks/site.yml --tags llama_server",
        _SLOW,
    ),
    "cache_inert": Class(
        "the plan has an expert cache, and it is off or nothing asks it",
        "lookups while decoding, not the mode alone",
        "see the server's journal for the line that starts with `edge-moe: cache`, and `systemctl cat edge-moe-server` "
        "for settings that are not the plan's",
        _SLOW,
    ),
    "throttled": Class(
        "clocks were taken down while the served path was measured",
        "cooling devices that acted, over-current and thermal events, a CPU's allowed clock that fell, a zone at its "
        "hot point",
        "heat: fan, heatsink, or a lower power mode (jetpack_power_mode); over-current events: the power supply, or a "
        "lower power mode",
        ("floor_never_raised", *_SLOW),
    ),
    "dense_moved_floor": Class(
        "the clock floor moved although the plan has none",
        "transitions of the clock-floor service",
        "check gpu_clock_floor_moe_flags against the server's command line, and look for other servers",
    ),
    "floor_never_raised": Class(
        "the plan has a clock floor, and the GPU's clock did not follow",
        "transitions of the service, and the GPU clock seen during requests",
        "journalctl -u edge-moe-clock-floor tells whether it runs and its probes are attached; a power mode with a "
        "lower cap also holds the clock down",
        _SLOW,
    ),
    "floor_left_up": Class(
        "the clock was not given back",
        "the GPU clock after the hold time",
        "`systemctl stop edge-moe-clock-floor` restores the lowest; else something other holds the clock",
    ),
    "swap_not_off": Class(
        "the server may be swapped out",
        "`memory.swap.max` of the running unit's control group",
        "run the swapless_slice and llama_server roles again: a drop-in or a daemon-reload can reset the limit",
        ("swap_in_use",),
    ),
    "swap_in_use": Class(
        "a part of the server lay in swap",
        "`memory.swap.current` of the unit's control group during requests",
        "what is in swap stays there when the limit is mended: run the swapless_slice and llama_server roles again, "
        "then systemctl restart edge-moe-server",
        _SLOW,
    ),
    "too_slow": Class(
        "decoding is slower than stock mmap allows",
        "decode as a part of the reference's, at least `min_decode_ratio`",
        "check for other load and throttling, then try llama_server_overrides {decision: mmap}",
    ),
    "slower_than_before": Class(
        "decoding is slower than when this board last passed",
        "decode as a part of that of the last passed result with the same release, model, decision, power mode and "
        "prompts, at least `min_previous_ratio`",
        "compare both result files: what the board read, its clocks, heat and memory; a drive that ages or fills also "
        "reads slower",
    ),
}

THRESHOLDS: dict[str, float] = {
    # Decode of the served path as a part of the reference's.
    "min_decode_ratio": 0.95,
    # Decode of the served path as a part of what it was when the board last passed.
    "min_previous_ratio": 0.85,
    # Part of the clock samples during requests that must be at the floor.
    "min_floor_share": 0.5,
    # The floor's clock in Hz; 0 stands for the highest of the table.
    "floor_hz": 0,
    # Part of the decode lookups that may bypass the cache.
    "max_bypass_share": 0.05,
}


class VerdictError(Exception):
    """What was handed in cannot be judged."""


def check_thresholds(given: dict[str, Any]) -> dict[str, float]:
    thresholds = dict(THRESHOLDS)
    for key, value in given.items():
        if key not in THRESHOLDS:
            raise VerdictError(f"threshold {key!r} is not known; it can be any of {', '.join(sorted(THRESHOLDS))}")
        try:
            limit = float(value)
        except (TypeError, ValueError):
            raise VerdictError(f"threshold {key} is {value!r}; it must be a number") from None
        if not 0 <= limit < float("inf"):
            raise VerdictError(f"threshold {key} is {value!r}; it must be a number of at least 0")
        thresholds[key] = limit
    return thresholds


def _failures(findings: list[Finding]) -> list[dict[str, Any]]:
    """One for each class that was found, with all of its evidence."""
    by_kind = {kind: [finding for finding in findings if finding.kind == kind] for kind in CLASSES}
    found = [kind for kind, of_kind in by_kind.items() if of_kind]
    return [
        {
            "class": kind,
            "evidence": "; ".join(finding.evidence for finding in by_kind[kind]),
            "remedy": "; ".join(dict.fromkeys(finding.remedy or CLASSES[kind].remedy for finding in by_kind[kind])),
            "because": [cause for cause in found if kind in CLASSES[cause].explains],
        }
        for kind in found
    ]


def judge(
    reference: dict[str, Any],
    served: dict[str, Any],
    plan: dict[str, Any],
    thresholds: dict[str, Any] | None = None,
    previous: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The verdict and the fields of its table row. `previous` is an earlier result that this one is held against."""
    limits = check_thresholds(thresholds or {})
    case = Case(mapping(reference), mapping(served), mapping(plan), limits, mapping(previous))
    rules = (*RULES, *RULES_OF_FINISHED) if finished(case.served) else RULES
    failures = _failures([finding for rule in rules for finding in rule(case)])
    gpu, counters = mapping(case.served.get("gpu")), mapping(case.served.get("cache"))
    hits, misses = (count(mapping(counters.get(kind)).get("decode")) for kind in ("hits", "misses"))
    swap_max, swap_on = case.served.get("memory_swap_max"), case.served.get("swap_on")
    return {
        "passed": not failures,
        "failures": failures,
        "text_equal": None if case.differences is None else not case.differences,
        "ratio": _rounded(case.ratio),
        "previous_ratio": _rounded(case.previous_ratio),
        "previous_started": mapping(case.previous.get("served")).get("started"),
        "requests": len(entries(case.served.get("requests"))),
        "prompts": len(by_prompt(case.served)),
        "reference_decode_tokens_per_s": number(case.reference.get("decode_tokens_per_s")),
        "served_decode_tokens_per_s": number(case.served.get("decode_tokens_per_s")),
        "reference_nvme_bytes": whole(case.reference.get("nvme_bytes")),
        "served_nvme_bytes": whole(case.served.get("nvme_bytes")),
        "hit_share": round(hits / (hits + misses), 4) if hits + misses > 0 else None,
        "gpu_decode_hz": whole(gpu.get("max_hz_seen")),
        "gpu_after_hz": whole(gpu.get("after_hold_hz")),
        "memory_swap_max": None if swap_max is None else line(swap_max),
        "swap_on": swap_on if isinstance(swap_on, bool) else None,
    }


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)
