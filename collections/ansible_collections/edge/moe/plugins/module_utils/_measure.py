# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drive a llama-server over HTTP and record what the board does meanwhile.

Private to this collection: it may change in any release.

The server's own figures are taken for speed, and this side's clock for the time to the first token. Everything else is
a difference of the kernel's or the services' counters around the requests, or was sampled meanwhile (see `_watch`).
"""

from __future__ import annotations

import json
import os
import re
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _expert_cache, _prometheus
from ansible_collections.edge.moe.plugins.module_utils._completion import Client, MeasureError, ServerGone
from ansible_collections.edge.moe.plugins.module_utils._devfreq import Sysfs
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from ansible_collections.edge.moe.plugins.module_utils._jetson import parse_swaps
from ansible_collections.edge.moe.plugins.module_utils._server_unit import Unit
from ansible_collections.edge.moe.plugins.module_utils._watch import TICK_S, Watch

SECTOR = 512
FLOOR_FILE = "/run/edge-moe/clock-floor.prom"
# The services write their health files about once a second.
HEALTH_PERIOD_S = 1.2
AFTER_HOLD_READINGS = 5
MOST_AT_ONCE = 64
CACHE_COUNTERS = (
    "hits",
    "misses",
    "bypass",
    "decode_tokens",
    "read_bytes",
    "read_seconds",
    "stall_seconds",
    "evictions",
    "errors",
)
CACHE_INFO = ("mode", "reason", "asked_bytes", "delivered_bytes", "cycle_bytes", "cycles", "slots")


# Pure


def parse_block_stat(text: str) -> int | None:
    """Bytes read, from /sys/block/DEVICE/stat."""
    fields = text.split()
    if len(fields) < 4 or not fields[2].isdecimal():
        return None
    return int(fields[2]) * SECTOR


def counter_delta(before: Any, after: Any) -> Any:
    """after - before, through nested dicts; None where a side is unknown."""
    if isinstance(after, dict):
        old = before if isinstance(before, dict) else {}
        return {key: counter_delta(old.get(key), value) for key, value in after.items()}
    if isinstance(before, (int, float)) and isinstance(after, (int, float)):
        return after - before
    return None


def median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


class Session:
    """One measurement. `save` is called with what is known after each request, so that a cut run loses nothing."""

    def __init__(
        self,
        host: Host,
        client: Client,
        unit: str | None,
        block_device: str | None,
        settle_s: float,
        save: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.host = host
        self.client = client
        self.unit_name = unit
        self.block_device = block_device
        self.settle_s = settle_s
        self.save = save or (lambda _result: None)
        self.warnings: list[str] = []

    def _bytes_read(self) -> int | None:
        if not self.block_device:
            return None
        return parse_block_stat(self.host.read_text(f"/sys/class/block/{self.block_device}/stat", 1024) or "")

    def _cache(self, pid: int | None) -> dict[str, Any] | None:
        text = self.host.read_text(f"{_expert_cache.HEALTH_DIR}/cache-{pid}.prom") if pid else None
        return _expert_cache.server_from_text(text, pid) if text is not None and pid else None

    def _floor(self) -> dict[str, Any] | None:
        text = self.host.read_text(FLOOR_FILE)
        if text is None:
            return None
        samples = _prometheus.parse(text).samples
        prefix = "edge_moe_clock_floor_"
        return {
            "transitions": _prometheus.whole(samples, prefix + "transitions_total"),
            "raised_seconds": _prometheus.value(samples, prefix + "raised_seconds_total"),
            "raised": _prometheus.whole(samples, prefix + "raised"),
            "baseline_hz": _prometheus.whole(samples, prefix + "baseline_hz"),
        }

    def _ready(self, ready_s: float, at_once: int) -> Unit:
        """The server's unit, once the server answers."""
        try:
            self.client.wait_healthy(ready_s)
        except MeasureError as error:
            unit = Unit(self.host, self.unit_name)
            end = unit.end() if unit.pid is None else None
            raise MeasureError(f"{error}; {end}" if end else str(error)) from None
        unit = Unit(self.host, self.unit_name)
        if unit.problem is not None:
            raise MeasureError(f"systemctl tells nothing of the unit {self.unit_name}: {unit.problem}")
        if self.unit_name and unit.pid is None:
            raise MeasureError(f"the unit {self.unit_name} is not running: systemctl status {self.unit_name} tells why")
        if self.block_device and self._bytes_read() is None:
            self.warnings.append(f"no /sys/class/block/{self.block_device}/stat: bytes read are unknown")
        slots = self.client.slots() if at_once > 1 else None
        if slots is not None and slots < at_once:
            self.warnings.append(
                f"the server works on {slots} requests at once (--parallel): of {at_once} the others wait for a slot"
            )
        return unit

    def run(
        self, prompts: list[dict[str, Any]], n_predict: int, rounds: int, ready_s: float, at_once: int = 1
    ) -> dict[str, Any]:
        """The measurement, as RETURN of the measure module describes it; a MeasureError that tells why there is none.

        `at_once` requests are under way at any time. Where that is more than one, what a single request read cannot be
        told, only what all of them did.
        """
        if not prompts:
            raise MeasureError("there are no prompts to measure with")
        if not 1 <= at_once <= MOST_AT_ONCE:
            raise MeasureError(f"at_once is {at_once}; it must be between 1 and {MOST_AT_ONCE}")
        unit = self._ready(ready_s, at_once)
        # Thor has two GPU nodes; the first is the one that computes.
        node = next(iter(Sysfs(self.host.root).gpu_nodes()), None)
        cache_before, floor_before = self._cache(unit.pid), self._floor()
        result: dict[str, Any] = {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "complete": False,
            "unit": self.unit_name,
            "n_predict": n_predict,
            "rounds": rounds,
            "at_once": at_once,
            "requests": [],
            "warnings": self.warnings,
        }
        bytes_before, faults_before = self._bytes_read(), unit.major_faults()
        with Watch(self.host, node, unit.group_dir) as watch:
            work = [(prompt, number) for number in range(1, rounds + 1) for prompt in prompts]
            wall_s = self._send_all(work, n_predict, unit, watch, result)
        bytes_all = counter_delta(bytes_before, self._bytes_read())
        faults_all = counter_delta(faults_before, unit.major_faults())
        seen = watch.summary()
        if watch.problem:
            self.warnings.append(watch.problem)

        time.sleep(max(self.settle_s, HEALTH_PERIOD_S))
        gpu, requests = seen["gpu"], result["requests"]
        if gpu is not None and node is not None:
            gpu["after_hold_hz"] = self._resting_hz(f"{node.path}/cur_freq")
            gpu["after_hold_min_freq_hz"] = self.host.read_int(f"{node.path}/min_freq")
            gpu["node"] = node.name
        cache_after, floor_after = self._cache(unit.pid), self._floor()
        if cache_before is None and cache_after is not None:
            # A file that was not there before the first request started from zero.
            cache_before = _zero(cache_after)
        alone = at_once == 1
        result.update(
            {
                "complete": True,
                "wall_s": wall_s,
                "total_decoded": sum(request["n_decoded"] for request in requests),
                **{
                    key: median([request[key] for request in requests])
                    for key in ("decode_tokens_per_s", "prefill_tokens_per_s", "prefill_ms", "ttft_ms")
                },
                "nvme_bytes": _sum([request["nvme_bytes"] for request in requests]) if alone else bytes_all,
                "major_faults": _sum([request["major_faults"] for request in requests]) if alone else faults_all,
                **{key: seen[key] for key in ("gpu", "cpu", "power", "heat", "throttle")},
                "memory": {
                    "oom_kills": unit.oom_kills_since(),
                    "swap_bytes": seen["swap_bytes"],
                    "peak_bytes": unit.memory_peak(),
                },
                "cache": None
                if cache_after is None or cache_before is None
                else {key: counter_delta(cache_before[key], cache_after[key]) for key in CACHE_COUNTERS},
                "cache_info": None if cache_after is None else {key: cache_after[key] for key in CACHE_INFO},
                "floor": None
                if floor_after is None
                else {
                    "transitions_delta": counter_delta(
                        (floor_before or {}).get("transitions"), floor_after["transitions"]
                    ),
                    "raised_seconds_delta": counter_delta(
                        (floor_before or {}).get("raised_seconds"), floor_after["raised_seconds"]
                    ),
                    "raised_after": floor_after["raised"],
                    "baseline_hz": floor_after["baseline_hz"],
                },
                "memory_swap_max": unit.swap_max(),
                "swap_on": bool(parse_swaps(self.host.read_text("/proc/swaps") or "")),
                "log": unit.log(),
            }
        )
        self.save(result)
        return result

    def _resting_hz(self, path: str) -> int | None:
        """The lowest of a few readings: one blip of the desktop is not a floor that was left up."""
        readings: list[int] = []
        for _reading in range(AFTER_HOLD_READINGS):
            hz = self.host.read_int(path)
            if hz is not None:
                readings.append(hz)
            time.sleep(TICK_S)
        return min(readings, default=None)

    def _send_all(
        self,
        work: list[tuple[dict[str, Any], int]],
        n_predict: int,
        unit: Unit,
        watch: Watch,
        result: dict[str, Any],
    ) -> float:
        """Send prompts, each with its round, and put the requests into the result as they end. Seconds it took."""
        began = time.monotonic()
        at_once = result["at_once"]
        lock = threading.Lock()

        def one(prompt: dict[str, Any], number: int) -> None:
            request: dict[str, Any] = {"id": str(prompt["id"]), "lang": prompt.get("lang"), "round": number}
            request.update({"at_once": at_once, "started_s": round(time.monotonic() - began, 3)})
            bytes_before, faults_before = self._bytes_read(), unit.major_faults()
            try:
                with watch.busy():
                    request.update(self.client.complete(str(prompt["text"]), n_predict))
            except ServerGone as error:
                end = unit.end()
                raise MeasureError(f"{error}; {end}" if end else str(error)) from None
            alone = at_once == 1
            request["nvme_bytes"] = counter_delta(bytes_before, self._bytes_read()) if alone else None
            request["major_faults"] = counter_delta(faults_before, unit.major_faults()) if alone else None
            # Saved before this worker sends its next: writing to the drive is no part of what is measured.
            with lock:
                result["requests"].append(request)
                self.save(result)

        with ThreadPoolExecutor(at_once) as pool:
            try:
                for future in as_completed([pool.submit(one, prompt, number) for prompt, number in work]):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return round(time.monotonic() - began, 3)


def _zero(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _zero(item) for key, item in value.items()}
    return 0 if isinstance(value, (int, float)) else None


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def write_result(path: str, result: dict[str, Any]) -> None:
    """Replace the file at once, so that a reader never meets half of it."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(result, stream, ensure_ascii=False)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def valid_device(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_.!-]{1,64}", name) is not None and name not in (".", "..")
