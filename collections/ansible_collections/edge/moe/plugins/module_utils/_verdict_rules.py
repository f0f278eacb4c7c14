# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is looked for in two measurements and a plan: one function a topic, each yields what it finds. Pure.

Private to this collection: it may change in any release.

Activity is judged by counters. A flag that was parsed, a unit that is active and a log line that was written prove
nothing: the commonest fault of such systems is a feature that is on and does nothing.

A source that an older measurement did not have is no evidence and no fault. The cache's, the floor's and the swap
limit's are: without them it is not known that the board is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ansible_collections.edge.moe.plugins.module_utils._server_unit import parse_log
from ansible_collections.edge.moe.plugins.module_utils._texts import compare_texts, shared_prompts
from ansible_collections.edge.moe.plugins.module_utils._values import count, entries, line, mapping, number

CLOCK_TOLERANCE = 0.01
SHOWN_DIFFERENCES = 3
MIB = 1024**2
# How systemd and the kernel spell it when a measurement ends with the server.
KILLED_FOR_MEMORY = re.compile(r"oom[-_ ]?kill", re.IGNORECASE)


class Finding(NamedTuple):
    """`kind` is a name of _verdict.CLASSES, whose remedy holds unless this evidence allows a narrower one."""

    kind: str
    evidence: str
    remedy: str = ""


@dataclass
class Case:
    reference: dict[str, Any]
    served: dict[str, Any]
    plan: dict[str, Any]
    thresholds: dict[str, float]
    # an earlier result file of the same board, as _history.last_passed chooses it
    previous: dict[str, Any] = field(default_factory=dict)

    def sides(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "reference", self.reference
        yield "served", self.served

    @property
    def finished(self) -> bool:
        return all(finished(measurement) for _side, measurement in self.sides())

    @cached_property
    def differences(self) -> list[str] | None:
        """A line for each text that differs; None when there is nothing to compare."""
        if not entries(self.reference.get("requests")) or not entries(self.served.get("requests")):
            return None
        pair = (self.reference, self.served)
        compared, differences = compare_texts(*(pair if self.finished else shared_prompts(*pair)))
        return differences if compared or differences else None

    @property
    def ratio(self) -> float | None:
        """Decode speed of the served path over that of the reference."""
        return _over(self.served, self.reference)

    @property
    def previous_ratio(self) -> float | None:
        """Decode speed over that of the earlier result."""
        return _over(self.served, mapping(self.previous.get("served")))


Rule = Callable[[Case], Iterator[Finding]]


def finished(measurement: dict[str, Any]) -> bool:
    """Whether all requests were answered; only then is it known what the counters came to."""
    complete = bool(measurement.get("complete", True)) and not measurement.get("error")
    return complete and bool(entries(measurement.get("requests")))


def _decode(measurement: dict[str, Any]) -> float:
    return count(measurement.get("decode_tokens_per_s"))


def _over(measurement: dict[str, Any], other: dict[str, Any]) -> float | None:
    speed, base = _decode(measurement), _decode(other)
    return speed / base if speed > 0 and base > 0 else None


def _unit(measurement: dict[str, Any]) -> str:
    return line(measurement.get("unit")) or "the server"


def _log(measurement: dict[str, Any]) -> dict[str, Any]:
    """What the server's journal tells; a measurement that failed has no more than the journal itself."""
    journal = measurement.get("journal")
    return mapping(measurement.get("log")) or (parse_log(journal) if isinstance(journal, str) else {})


def _first_line(log: dict[str, Any], kind: str) -> str:
    said = line(mapping(log.get("first")).get(kind))
    return f", first: {said}" if said else ""


def server(case: Case) -> Iterator[Finding]:
    """Did the servers live, and were all requests answered?"""
    for name, measurement in case.sides():
        error = line(measurement.get("error"), 600)
        log, memory = _log(measurement), mapping(measurement.get("memory"))
        nvmap, cuda = count(log.get("nvmap_errors")), count(log.get("cuda_errors"))
        if nvmap > 0 or cuda > 0:
            first = _first_line(log, "nvmap_errors") or _first_line(log, "cuda_errors")
            yield Finding(
                "nvmap_error",
                f"the {name} server's journal has {nvmap:.0f} lines of NvMap and {cuda:.0f} of CUDA errors{first}",
            )
        kills = count(memory.get("oom_kills"))
        if kills > 0:
            peak = count(memory.get("peak_bytes"))
            most = f"; it had taken {peak / MIB:.0f} MiB" if peak > 0 else ""
            yield Finding(
                "out_of_memory",
                f"the kernel killed {kills:.0f} processes of {_unit(measurement)} for lack of memory while the {name} "
                f"path was measured{most}",
            )
        elif KILLED_FOR_MEMORY.search(error):
            yield Finding("out_of_memory", f"the {name} measurement ended: {error}")
        requests = len(entries(measurement.get("requests")))
        if error:
            yield Finding("incomplete", f"the {name} measurement ended after {requests} requests: {error}")
        elif not requests:
            yield Finding("incomplete", f"the {name} measurement has no requests", "measure again")
        elif not measurement.get("complete", True):
            yield Finding("incomplete", f"the {name} measurement was cut after {requests} requests")


def texts(case: Case) -> Iterator[Finding]:
    if case.differences:
        hidden = len(case.differences) - SHOWN_DIFFERENCES
        more = f" (and {hidden} more)" if hidden > 0 else ""
        yield Finding("text_differs", "; ".join(case.differences[:SHOWN_DIFFERENCES]) + more)


def gpu_layers(case: Case) -> Iterator[Finding]:
    """Are the layers where the plan has them? The log names them; without it an idle GPU gives them away."""
    planned = count(case.plan.get("n_gpu_layers"))
    if planned <= 0:
        return
    for name, measurement in case.sides():
        log = _log(measurement)
        layers = log.get("gpu_layers")
        found = [number(layer) for layer in layers] if isinstance(layers, list) else []
        load = mapping(mapping(measurement.get("gpu")).get("load"))
        evidence = ""
        if log.get("no_gpu") is True:
            evidence = f"the {name} server's log says that it has no usable GPU{_first_line(log, 'no_gpu')}"
        elif len(found) == 2 and found[0] is not None and found[1] is not None:
            wanted = min(planned, found[1])
            if found[0] < wanted:
                evidence = f"the {name} server has {found[0]:.0f} of {found[1]:.0f} layers on the GPU, not {wanted:.0f}"
        elif number(load.get("max")) == 0:
            evidence = f"the GPU's load was 0 whenever the {name} server was looked at during requests"
        if evidence:
            yield Finding("cpu_fallback", f"{evidence} (n_gpu_layers is {planned:.0f} in the plan)")


def cache(case: Case) -> Iterator[Finding]:
    info, counters = mapping(case.served.get("cache_info")), mapping(case.served.get("cache"))
    mode = info.get("mode")
    if case.plan.get("decision") != "cache":
        if mode == "cache":
            yield Finding(
                "cache_unplanned",
                f"the plan is {line(case.plan.get('decision'))} and the server runs with an expert cache",
            )
        return
    hits, misses, bypass = (count(mapping(counters.get(kind)).get("decode")) for kind in ("hits", "misses", "bypass"))
    lookups = hits + misses
    if not info:
        yield Finding("cache_inert", "the server wrote no health file of its cache under /run/edge-moe")
    elif mode != "cache":
        reason = line(info.get("reason")) or "none given"
        yield Finding("cache_inert", f"the cache is off: mode {line(mode)}, reason: {reason}")
    elif lookups <= 0:
        yield Finding(
            "cache_inert",
            "the cache says that it is on, and not one expert was looked up in it while tokens were decoded "
            f"(hits {hits:.0f}, misses {misses:.0f}, bypassed {bypass:.0f})",
            "the model's experts are not reached by the patch: check that the unit runs the release that "
            "/opt/edge-moe/llama.cpp/current names, with the plan's arguments",
        )
    elif bypass > case.thresholds["max_bypass_share"] * (lookups + bypass):
        yield Finding(
            "cache_inert",
            f"{bypass:.0f} of {lookups + bypass:.0f} decode lookups went past the cache",
            "lower `parallel`, or check the plan's arguments: only the CPU path without repacking uses the cache",
        )
    errors = count(counters.get("errors"))
    if errors > 0:
        yield Finding("read_errors", f"{errors:.0f} reads of experts failed")


def throttling(case: Case) -> Iterator[Finding]:
    """Whatever took clocks down while the served path was measured, all of it in one line."""
    throttle, heat, cpu = (mapping(case.served.get(key)) for key in ("throttle", "heat", "cpu"))
    seen = []
    for kind, state in sorted(mapping(throttle.get("cooling")).items()):
        if count(state) > 0:
            seen.append(f"cooling device {line(kind)} acted (state {count(state):.0f})")
    for event, times in sorted(mapping(throttle.get("events")).items()):
        if count(times) > 0:
            seen.append(f"{line(event)} counted {count(times):.0f} more")
    lowered = count(cpu.get("lowest_allowed_share"))
    # a limit that holds from the first sample to the last is that of the power mode
    if 0 < lowered < 1:
        allowed, full = count(cpu.get("allowed_khz")), count(cpu.get("full_khz"))
        seen.append(f"a CPU was held to {allowed:.0f} kHz of {full:.0f} in {lowered:.0%} of the samples")
    hottest, hot = number(heat.get("max_celsius")), number(heat.get("hot_celsius"))
    if hottest is not None and hot is not None and hottest >= hot > 0:
        seen.append(f"{line(heat.get('zone')) or 'a thermal zone'} reached {hottest:.1f} C, hot is {hot:.1f}")
    if seen:
        yield Finding("throttled", "; ".join(seen))


def unwanted_floor(case: Case) -> Iterator[Finding]:
    if case.plan.get("floor"):
        return
    moved = count(mapping(case.served.get("floor")).get("transitions_delta"))
    if moved > 0:
        yield Finding("dense_moved_floor", f"the plan wants no clock floor and the service moved it {moved:.0f} times")


def floor_raised(case: Case) -> Iterator[Finding]:
    """Did the service move the floor, and did the GPU's clock follow it?"""
    if not case.plan.get("floor"):
        return
    floor, gpu = mapping(case.served.get("floor")), mapping(case.served.get("gpu"))
    if not floor:
        yield Finding("floor_never_raised", "the clock-floor service has written no /run/edge-moe/clock-floor.prom")
    elif count(floor.get("transitions_delta")) <= 0:
        yield Finding("floor_never_raised", "the clock-floor service did not move the floor during the requests")
    if not gpu:
        yield Finding(
            "floor_never_raised",
            "no GPU clock could be sampled: no GPU node in /sys/class/devfreq",
            "run edge.moe.devfreq_facts on the board",
        )
        return
    highest, asked = count(gpu.get("highest_hz")), case.thresholds["floor_hz"]
    wanted = min(asked, highest) if asked and highest else asked or highest
    seen, samples, share = (count(gpu.get(key)) for key in ("max_hz_seen", "samples", "share_at_max"))
    if seen < wanted * (1 - CLOCK_TOLERANCE):
        yield Finding(
            "floor_never_raised",
            f"the highest GPU clock seen was {seen:.0f} Hz of {wanted:.0f} ({samples:.0f} samples)",
        )
    elif highest and wanted == highest and share < case.thresholds["min_floor_share"]:
        yield Finding(
            "floor_never_raised",
            f"the GPU was at {wanted:.0f} Hz in {share:.0%} of {samples:.0f} samples",
            "something else writes min_freq, or the board throttles: see temperatures and the service's journal",
        )


def floor_given_back(case: Case) -> Iterator[Finding]:
    if not case.plan.get("floor"):
        return
    floor, gpu = mapping(case.served.get("floor")), mapping(case.served.get("gpu"))
    after = number(gpu.get("after_hold_hz"))
    # What the service found when it started is what it must go back to.
    lowest = max(count(gpu.get("lowest_hz")), count(floor.get("baseline_hz")))
    if count(floor.get("raised_after")) == 1:
        yield Finding(
            "floor_left_up",
            "the service still holds the floor after the last request and its hold time",
            "journalctl -u edge-moe-clock-floor tells which call it believes to be in progress",
        )
    elif after is not None and lowest and after > lowest * (1 + CLOCK_TOLERANCE):
        yield Finding(
            "floor_left_up", f"the GPU clock is {after:.0f} Hz after the hold time and should be {lowest:.0f}"
        )


def swap_limit(case: Case) -> Iterator[Finding]:
    limit, unit = case.served.get("memory_swap_max"), _unit(case.served)
    if limit is None:
        yield Finding(
            "swap_not_off",
            f"memory.swap.max of {unit} cannot be read",
            "the server must run as a systemd unit in edge-moe.slice on a machine with cgroup v2",
        )
    elif str(limit) != "0":
        yield Finding("swap_not_off", f"memory.swap.max of {unit} is {line(limit)} and must be 0")


def swapped(case: Case) -> Iterator[Finding]:
    most = count(mapping(case.served.get("memory")).get("swap_bytes"))
    if most > 0:
        yield Finding(
            "swap_in_use", f"up to {most / MIB:.1f} MiB of {_unit(case.served)} lay in swap during the requests"
        )


def speed(case: Case) -> Iterator[Finding]:
    """Against the stock path of the same build, and against the board's own past."""
    served, ratio, before = _decode(case.served), case.ratio, case.previous_ratio
    if ratio is None:
        if case.finished:
            yield Finding(
                "too_slow", "no decode speed was reported", "ask for more tokens: n_predict must be at least 2"
            )
    elif ratio < case.thresholds["min_decode_ratio"]:
        yield Finding(
            "too_slow",
            f"decode is {served:.2f} tokens/s, {ratio:.2f} of the reference's {_decode(case.reference):.2f}; "
            f"{case.thresholds['min_decode_ratio']:g} is needed",
        )
    if before is not None and before < case.thresholds["min_previous_ratio"]:
        earlier = mapping(case.previous.get("served"))
        yield Finding(
            "slower_than_before",
            f"decode is {served:.2f} tokens/s, {before:.2f} of the {_decode(earlier):.2f} with which this board passed "
            f"at {line(earlier.get('started')) or 'an earlier time'}; "
            f"{case.thresholds['min_previous_ratio']:g} is needed",
        )


RULES: tuple[Rule, ...] = (server, texts, gpu_layers, throttling, swapped, speed)
# These take a missing source for a fault, and a served path that was not measured to its end has no sources.
RULES_OF_FINISHED: tuple[Rule, ...] = (cache, unwanted_floor, floor_raised, floor_given_back, swap_limit)
