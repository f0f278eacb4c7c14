# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is this board right? A pure comparison of two measurements with the plan, each failure with evidence and remedy.

Private to this collection: it may change in any release.

Activity is judged by counters. A flag that was parsed, a unit that is active and a log line that was written prove
nothing: the commonest fault of such systems is a feature that is on and does nothing.
"""

from __future__ import annotations

from typing import Any

CONTEXT_CHARACTERS = 24
CLOCK_TOLERANCE = 0.01
THRESHOLDS: dict[str, float] = {
    # Decode of the served path as a part of the reference's.
    "min_decode_ratio": 0.95,
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
            number = float(value)
        except (TypeError, ValueError):
            raise VerdictError(f"threshold {key} is {value!r}; it must be a number") from None
        if not 0 <= number < float("inf"):
            raise VerdictError(f"threshold {key} is {value!r}; it must be a number of at least 0")
        thresholds[key] = number
    return thresholds


def first_difference(reference: str, served: str) -> dict[str, Any] | None:
    """Where two texts part, with what stands around it; None when they are equal."""
    if reference == served:
        return None
    place = 0
    for place in range(min(len(reference), len(served)) + 1):
        if reference[place : place + 1] != served[place : place + 1]:
            break
    start, end = max(0, place - CONTEXT_CHARACTERS), place + CONTEXT_CHARACTERS
    return {"character": place, "reference": reference[start:end], "served": served[start:end], "context_from": start}


def _by_prompt(measurement: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for request in measurement.get("requests") or []:
        found.setdefault(str(request.get("id")), []).append(request)
    return found


def _describe_difference(
    prompt: str, first: dict[str, Any], other: dict[str, Any], names: tuple[str, str]
) -> str | None:
    where = f"prompt {prompt}: {names[0]} round {first.get('round')} against {names[1]} round {other.get('round')}"
    difference = first_difference(str(first.get("text", "")), str(other.get("text", "")))
    if difference is not None:
        return (
            f"{where}: character {difference['character']}: ...{difference['reference']!r} against "
            f"...{difference['served']!r}"
        )
    first_tokens, other_tokens = first.get("tokens") or [], other.get("tokens") or []
    if first_tokens != other_tokens:
        place = next(
            (index for index, pair in enumerate(zip(first_tokens, other_tokens, strict=False)) if pair[0] != pair[1]),
            min(len(first_tokens), len(other_tokens)),
        )
        return (
            f"{where}: the texts look alike and token {place} differs: {first_tokens[place : place + 3]} against "
            f"{other_tokens[place : place + 3]}"
        )
    if first.get("text_sha256") != other.get("text_sha256"):
        return f"{where}: the texts look alike and their bytes differ"
    return None


def compare_texts(reference: dict[str, Any], served: dict[str, Any]) -> tuple[int, list[str]]:
    """How many requests were compared, and a line for each that differs from the reference's first round."""
    compared, differences = 0, []
    served_by_prompt = _by_prompt(served)
    for prompt, reference_requests in _by_prompt(reference).items():
        anchor = reference_requests[0]
        for other in reference_requests[1:]:
            line = _describe_difference(prompt, anchor, other, ("reference", "reference"))
            if line:
                differences.append(line + " (the reference itself does not repeat)")
        requests = served_by_prompt.pop(prompt, [])
        if not requests:
            differences.append(f"prompt {prompt}: the served path gave no answer to it")
        for other in requests:
            compared += 1
            if not anchor.get("n_decoded") or not other.get("n_decoded"):
                differences.append(f"prompt {prompt}: nothing was decoded, so nothing could be compared")
                continue
            line = _describe_difference(prompt, anchor, other, ("reference", "served"))
            if line:
                differences.append(line)
    differences += [f"prompt {prompt}: the reference has no answer to it" for prompt in served_by_prompt]
    return compared, differences


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


class _Judge:
    def __init__(
        self, reference: dict[str, Any], served: dict[str, Any], plan: dict[str, Any], thresholds: dict[str, float]
    ) -> None:
        self.reference, self.served, self.plan, self.thresholds = reference, served, plan, thresholds
        self.failures: list[dict[str, str]] = []

    def fail(self, kind: str, evidence: str, remedy: str) -> None:
        self.failures.append({"class": kind, "evidence": evidence, "remedy": remedy})

    def completeness(self) -> None:
        for name, measurement in (("reference", self.reference), ("served", self.served)):
            if not measurement.get("requests"):
                self.fail("incomplete", f"the {name} measurement has no requests", "measure again")
            elif not measurement.get("complete", True):
                self.fail(
                    "incomplete",
                    f"the {name} measurement was cut after {len(measurement['requests'])} requests",
                    "measure again; the server's journal tells whether it died",
                )

    def texts(self) -> bool | None:
        if not self.reference.get("requests") or not self.served.get("requests"):
            return None
        compared, differences = compare_texts(self.reference, self.served)
        if not compared and not differences:
            differences = ["no request was answered on both paths"]
        if differences:
            more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
            self.fail(
                "text_differs",
                "; ".join(differences[:3]) + more,
                "do not serve from this board: set llama_server_overrides to {decision: mmap}, keep both result files "
                "and report them",
            )
        return not differences

    def cache(self) -> None:
        info, counters = self.served.get("cache_info") or {}, self.served.get("cache") or {}
        mode = info.get("mode")
        if self.plan.get("decision") != "cache":
            if mode == "cache":
                self.fail(
                    "cache_unplanned",
                    f"the plan is {self.plan.get('decision')} and the server runs with an expert cache",
                    "restart the server from the plan: ansible-playbook playbooks/site.yml --tags serve",
                )
            return
        hits = _number((counters.get("hits") or {}).get("decode"))
        misses = _number((counters.get("misses") or {}).get("decode"))
        bypass = _number((counters.get("bypass") or {}).get("decode"))
        look = "see the server's journal for the line that starts with `edge-moe: cache`"
        if not info:
            self.fail("cache_inert", "the server wrote no health file of its cache under /run/edge-moe", look)
        elif mode != "cache":
            self.fail(
                "cache_inert", f"the cache is off: mode {mode}, reason: {info.get('reason') or 'none given'}", look
            )
        elif hits + misses <= 0:
            self.fail(
                "cache_inert",
                "the cache says that it is on, and not one expert was looked up in it while tokens were decoded "
                f"(hits {hits:.0f}, misses {misses:.0f}, bypassed {bypass:.0f})",
                "the model's experts are not reached by the patch: check that the unit runs the release that "
                "/opt/edge-moe/llama.cpp/current names, with the plan's arguments",
            )
        elif bypass > self.thresholds["max_bypass_share"] * (hits + misses + bypass):
            self.fail(
                "cache_inert",
                f"{bypass:.0f} of {hits + misses + bypass:.0f} decode lookups went past the cache",
                "lower `parallel`, or check the plan's arguments: only the CPU path without repacking uses the cache",
            )
        errors = _number(counters.get("errors"))
        if errors > 0:
            self.fail("read_errors", f"{errors:.0f} reads of experts failed", "check the drive: dmesg, nvme smart-log")

    def floor(self) -> None:
        floor, gpu = self.served.get("floor"), self.served.get("gpu")
        if not self.plan.get("floor"):
            moved = _number((floor or {}).get("transitions_delta"))
            if moved > 0:
                self.fail(
                    "dense_moved_floor",
                    f"the plan wants no clock floor and the service moved it {moved:.0f} times",
                    "check gpu_clock_floor_moe_flags against the server's command line, and look for other servers",
                )
            return
        journal = "journalctl -u edge-moe-clock-floor tells whether its probes are attached"
        if floor is None:
            self.fail(
                "floor_never_raised", "the clock-floor service has written no /run/edge-moe/clock-floor.prom", journal
            )
        elif _number(floor.get("transitions_delta")) <= 0:
            self.fail(
                "floor_never_raised", "the clock-floor service did not move the floor during the requests", journal
            )
        if gpu is None:
            self.fail(
                "floor_never_raised",
                "no GPU clock could be sampled: no GPU node in /sys/class/devfreq",
                "run edge.moe.devfreq_facts on the board",
            )
            return
        highest, lowest = gpu.get("highest_hz"), gpu.get("lowest_hz")
        asked = self.thresholds["floor_hz"]
        wanted = min(asked, highest) if asked and highest else asked or highest or 0
        seen = _number(gpu.get("max_hz_seen"))
        if seen < wanted * (1 - CLOCK_TOLERANCE):
            self.fail(
                "floor_never_raised",
                f"the highest GPU clock seen was {seen:.0f} Hz of {wanted:.0f} ({gpu.get('samples')} samples)",
                journal + "; a power mode with a lower cap also holds it down",
            )
        elif wanted == highest and _number(gpu.get("share_at_max")) < self.thresholds["min_floor_share"]:
            self.fail(
                "floor_never_raised",
                f"the GPU was at {wanted:.0f} Hz in {_number(gpu.get('share_at_max')):.0%} "
                f"of {gpu.get('samples')} samples",
                "something else writes min_freq, or the board throttles: see temperatures and the service's journal",
            )
        after = gpu.get("after_hold_hz")
        # What the service found when it started is what it must go back to.
        lowest = max(lowest or 0, int(_number((floor or {}).get("baseline_hz"))))
        if floor is not None and floor.get("raised_after") == 1:
            self.fail(
                "floor_left_up", "the service still holds the floor after the last request and its hold time", journal
            )
        elif after is not None and lowest and after > lowest * (1 + CLOCK_TOLERANCE):
            self.fail(
                "floor_left_up",
                f"the GPU clock is {after} Hz after the hold time and should be {lowest}",
                "`systemctl stop edge-moe-clock-floor` restores the lowest; else something other holds the clock",
            )

    def swap(self) -> None:
        limit = self.served.get("memory_swap_max")
        if limit is None:
            self.fail(
                "swap_not_off",
                f"memory.swap.max of {self.served.get('unit') or 'the server'} cannot be read",
                "the server must run as a systemd unit in edge-moe.slice on a machine with cgroup v2",
            )
        elif limit != "0":
            self.fail(
                "swap_not_off",
                f"memory.swap.max of {self.served.get('unit') or 'the server'} is {limit} and must be 0",
                "run the swapless_slice and llama_server roles again: a daemon-reload can reset the limit",
            )

    def speed(self) -> float | None:
        reference, served = self.reference.get("decode_tokens_per_s"), self.served.get("decode_tokens_per_s")
        if not reference or not served:
            if self.served.get("requests") and self.reference.get("requests"):
                self.fail(
                    "too_slow", "no decode speed was reported", "ask for more tokens: n_predict must be at least 2"
                )
            return None
        ratio = float(served) / float(reference)
        least = self.thresholds["min_decode_ratio"]
        if ratio < least:
            self.fail(
                "too_slow",
                f"decode is {served:.2f} tokens/s, {ratio:.2f} of the reference's {reference:.2f}; {least:g} is needed",
                "check for other load and throttling, then try llama_server_overrides {decision: mmap}",
            )
        return ratio


def judge(
    reference: dict[str, Any], served: dict[str, Any], plan: dict[str, Any], thresholds: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The verdict and the fields of its table row."""
    work = _Judge(reference or {}, served or {}, plan, check_thresholds(thresholds or {}))
    work.completeness()
    text_equal = work.texts()
    work.cache()
    work.floor()
    work.swap()
    ratio = work.speed()
    gpu = work.served.get("gpu") or {}
    counters = work.served.get("cache") or {}
    hits = _number((counters.get("hits") or {}).get("decode"))
    lookups = hits + _number((counters.get("misses") or {}).get("decode"))
    return {
        "passed": not work.failures,
        "failures": work.failures,
        "text_equal": text_equal,
        "ratio": None if ratio is None else round(ratio, 3),
        "requests": len(work.served.get("requests") or []),
        "prompts": len(_by_prompt(work.served)),
        "reference_decode_tokens_per_s": work.reference.get("decode_tokens_per_s"),
        "served_decode_tokens_per_s": work.served.get("decode_tokens_per_s"),
        "reference_nvme_bytes": work.reference.get("nvme_bytes"),
        "served_nvme_bytes": work.served.get("nvme_bytes"),
        "hit_share": round(hits / lookups, 4) if lookups else None,
        "gpu_decode_hz": gpu.get("max_hz_seen"),
        "gpu_after_hz": gpu.get("after_hold_hz"),
        "memory_swap_max": work.served.get("memory_swap_max"),
        "swap_on": work.served.get("swap_on"),
    }
