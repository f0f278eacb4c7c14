# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""State of the expert cache of each running server, from its health file, and a verdict with its sentence.

Private to this collection: it may change in any release. Everything but `gather` is pure.
"""

from __future__ import annotations

import re
import time
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _prometheus
from ansible_collections.edge.moe.plugins.module_utils._host import Host

HEALTH_DIR = "/run/edge-moe"
MAX_FILES = 64
# Under this share of hits the cache does work and saves next to none: per-layer slots smaller than one token's
# experts still reach 25 to 38 %.
THRASHING_HIT_SHARE = 0.25
# Too few lookups to judge: the cache starts empty, so the first tokens are all misses.
JUDGED_LOOKUPS = 2000
PHASES = ("decode", "prefill")
# The kernel's boot time is rounded to a second and moves when the clock is set.
CLOCK_SLACK_S = 5.0
# Worst first: the verdict of a machine is that of its worst running server.
SEVERITY = ("inert", "thrashing", "below_cycle", "stale", "off", "healthy")


def _ratio(part: float | None, whole: float | None, digits: int = 3) -> float | None:
    return None if part is None or not whole else round(part / whole, digits)


def since(server: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any] | None:
    """What one server did between two looks at it; None when it is another process, or has done nothing to compare.

    `stall_share` is seconds waited over seconds passed: 1 means that one compute thread waited all the time.
    """
    if earlier.get("pid") != server["pid"]:
        return None

    def change(now: Any, then: Any) -> Any:
        return None if now is None or then is None else now - then

    def phase(name: str) -> dict[str, Any]:
        then = earlier.get(name) or {}
        return {key: change(server[name][key], then.get(key)) for key in PHASES}

    seconds = change(server["updated"], earlier.get("updated"))
    tokens = change(server["decode_tokens"], earlier.get("decode_tokens"))
    hits, misses = phase("hits"), phase("misses")
    read, stall = (
        change(server["read_bytes"], earlier.get("read_bytes")),
        change(server["stall_seconds"], earlier.get("stall_seconds")),
    )
    counted = [seconds, tokens, read, stall, *hits.values(), *misses.values()]
    # A counter that went back belongs to another process of the same number.
    if seconds is None or any(value is not None and value < 0 for value in counted):
        return None
    lookups = None if hits["decode"] is None or misses["decode"] is None else hits["decode"] + misses["decode"]
    return {
        "seconds": round(seconds, 3),
        "decode_tokens": tokens,
        "hits": hits,
        "misses": misses,
        "read_bytes": read,
        "errors": change(server["errors"], earlier.get("errors")),
        "hit_share": _ratio(hits["decode"], lookups),
        "bytes_per_token": _ratio(read, tokens, 0),
        "stall_share": _ratio(stall, seconds),
    }


def server_from_text(text: str, pid: int) -> dict[str, Any]:
    """The counters of one health file under the names of the facts; a counter that is missing is None."""
    samples = _prometheus.parse(text).samples
    prefix = "edge_moe_cache_"
    info = _prometheus.find(samples, prefix + "info")
    labels = info.labels if info is not None else {}

    def by_phase(name: str) -> dict[str, int | None]:
        return {phase: _prometheus.whole(samples, prefix + name, phase=phase) for phase in PHASES}

    return {
        "pid": pid,
        "mode": labels.get("mode"),
        "reason": labels.get("reason") or None,
        "policy": labels.get("policy"),
        "engine": labels.get("engine"),
        "direct": None if "direct" not in labels else labels["direct"] == "1",
        "asked_bytes": _prometheus.whole(samples, prefix + "asked_bytes"),
        "delivered_bytes": _prometheus.whole(samples, prefix + "delivered_bytes"),
        "slots": _prometheus.whole(samples, prefix + "slots"),
        "cycle_bytes": _prometheus.whole(samples, prefix + "cycle_bytes"),
        "cycles": _prometheus.value(samples, prefix + "cycles"),
        "hits": by_phase("hits_total"),
        "misses": by_phase("misses_total"),
        "bypass": by_phase("bypass_total"),
        "decode_tokens": _prometheus.whole(samples, prefix + "decode_tokens_total"),
        "read_bytes": _prometheus.whole(samples, prefix + "read_bytes_total"),
        "read_seconds": _prometheus.value(samples, prefix + "read_seconds_total"),
        "stall_seconds": _prometheus.value(samples, prefix + "stall_seconds_total"),
        "evictions": _prometheus.whole(samples, prefix + "evictions_total"),
        "errors": _prometheus.whole(samples, prefix + "errors_total"),
        "updated": _prometheus.value(samples, prefix + "updated_timestamp_seconds"),
    }


def judge(server: dict[str, Any], running: bool) -> tuple[str, str]:
    """Verdict of one server and the sentence that explains it."""
    pid = server["pid"]
    if not running:
        return "stale", f"process {pid} is gone and left its health file behind; start the server again"
    mode, reason = server["mode"], server["reason"]
    if mode is None:
        return "inert", f"the health file of process {pid} does not say which mode is active"
    decode = (server["hits"]["decode"] or 0) + (server["misses"]["decode"] or 0)
    prefill = (server["hits"]["prefill"] or 0) + (server["misses"]["prefill"] or 0)
    tokens = server["decode_tokens"] or 0
    cycles = server["cycles"]
    if mode != "cache":
        if reason and "below one token cycle" in reason:
            return "below_cycle", f"the cache did not start: {reason}; give it at least two token cycles"
        return "off", f"experts are read through the page cache: {reason or 'no reason given'}"
    if cycles is not None and cycles < 1:
        return "below_cycle", (
            f"the cache holds {cycles:.2f} token cycles, so an expert is gone before the next token asks for it; "
            "give it at least two"
        )
    if tokens > 0 and decode == 0:
        return "inert", f"{tokens} tokens were decoded and the cache was never asked for an expert"
    if decode == 0 and prefill == 0:
        return "inert", "the cache is on and has not been asked for an expert yet: send a request, then look again"
    if decode == 0:
        return "healthy", "the cache is on; no token has been decoded yet"
    hit_share = (server["hits"]["decode"] or 0) / decode
    seen = f"{hit_share:.0%} hits over {decode} lookups of {tokens} decoded tokens"
    if decode >= JUDGED_LOOKUPS and hit_share < THRASHING_HIT_SHARE:
        return "thrashing", f"{seen}: almost every expert is read again; give the cache more memory or turn it off"
    return "healthy", seen


def _started(host: Host, pid: int) -> float | None:
    """When a process began, in seconds since 1970; None when it is not there or does not say."""
    # The name in brackets may hold anything, brackets too: fields are counted from the last one.
    fields = (host.read_text(f"/proc/{pid}/stat", 4096) or "").rpartition(")")[2].split()
    boot = re.search(r"^btime (\d{1,12})$", host.read_text("/proc/stat") or "", re.MULTILINE)
    if boot is None or len(fields) < 20 or not fields[19].isdigit():
        return None
    return int(boot.group(1)) + int(fields[19]) / host.ticks_per_s()


def is_running(host: Host, pid: int, updated: float | None) -> bool:
    """Whether the process that wrote the file is there: one that began after the file has only the same number."""
    if not host.exists(f"/proc/{pid}"):
        return False
    started = _started(host, pid)
    return started is None or updated is None or started <= updated + CLOCK_SLACK_S


def summarise(servers: list[dict[str, Any]]) -> tuple[str, str]:
    """Verdict of the machine: that of its worst running server; files of dead ones count only when none runs."""
    running = [server for server in servers if server["running"]]
    pool = running or servers
    if not pool:
        return "off", f"no server has written a health file in {HEALTH_DIR}: none runs, or it was started without one"
    worst = min(pool, key=lambda server: SEVERITY.index(server["verdict"]))
    return worst["verdict"], f"process {worst['pid']}: {worst['explanation']}"


def gather(host: Host, now: float | None = None, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """All servers and the machine's verdict; `earlier` is what this function returned before, for the changes since."""
    before = {entry.get("pid"): entry for entry in (earlier or {}).get("servers") or [] if isinstance(entry, dict)}
    now = time.time() if now is None else now
    warnings: list[str] = []
    servers: list[dict[str, Any]] = []
    names = [name for name in host.entries(HEALTH_DIR) if re.fullmatch(r"cache-\d{1,9}\.prom", name)]
    if len(names) > MAX_FILES:
        warnings.append(f"{len(names)} health files in {HEALTH_DIR}: only the first {MAX_FILES} were read")
    for name in names[:MAX_FILES]:
        pid = int(name[len("cache-") : -len(".prom")])
        text = host.read_text(f"{HEALTH_DIR}/{name}")
        if text is None:
            warnings.append(f"{HEALTH_DIR}/{name} cannot be read")
            continue
        bad = _prometheus.parse(text).bad_lines
        if bad:
            warnings.append(f"{HEALTH_DIR}/{name}: {bad} lines are not in the Prometheus text format")
        server = server_from_text(text, pid)
        updated = server["updated"]
        server["running"] = is_running(host, pid, updated)
        server["updated_s_ago"] = None if updated is None else round(max(0.0, now - updated), 1)
        server["verdict"], server["explanation"] = judge(server, server["running"])
        lookups = (server["hits"]["decode"] or 0) + (server["misses"]["decode"] or 0)
        server["hit_share"] = _ratio(server["hits"]["decode"], lookups)
        server["bytes_per_token"] = _ratio(server["read_bytes"], server["decode_tokens"], 0)
        server["since_earlier"] = since(server, before.get(pid, {}))
        if server["errors"]:
            warnings.append(f"process {pid}: {server['errors']} reads failed")
        servers.append(server)
    verdict, explanation = summarise(servers)
    return {"servers": servers, "verdict": verdict, "explanation": explanation, "warnings": warnings}
