# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drive a llama-server over HTTP and record what the board does meanwhile.

Private to this collection: it may change in any release.

The server's own figures are taken for speed; everything else (bytes read, page faults, clock, cache, floor) is a
difference of the kernel's or the services' counters around each request.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import statistics
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _expert_cache, _prometheus
from ansible_collections.edge.moe.plugins.module_utils._devfreq import Node, Sysfs, same_hz
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from ansible_collections.edge.moe.plugins.module_utils._jetson import parse_swaps

SECTOR = 512
SAMPLE_S = 0.02
ANSWER_LIMIT = 16 * 1024 * 1024
FLOOR_FILE = "/run/edge-moe/clock-floor.prom"
# The services write their health files about once a second.
HEALTH_PERIOD_S = 1.2
AFTER_HOLD_READINGS = 5


class MeasureError(Exception):
    """What was seen and what to do."""


# Pure parsers


def parse_block_stat(text: str) -> int | None:
    """Bytes read, from /sys/block/DEVICE/stat."""
    fields = text.split()
    if len(fields) < 4 or not fields[2].isdecimal():
        return None
    return int(fields[2]) * SECTOR


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


def parse_answer(status: int, body: bytes) -> dict[str, Any]:
    """The fields of a /completion answer that count. Tokens and text are taken as they are, valid UTF-8 or not."""
    try:
        answer = json.loads(body.decode("utf-8", errors="surrogateescape"))
    except ValueError:
        raise MeasureError(f"the server answers {status} with no JSON: {body[:120]!r}") from None
    if status != 200 or not isinstance(answer, dict):
        error = answer.get("error") if isinstance(answer, dict) else None
        message = error.get("message") if isinstance(error, dict) else body[:200].decode("utf-8", errors="replace")
        raise MeasureError(f"the server answers {status}: {message}")
    timings = answer.get("timings")
    text, tokens = answer.get("content"), answer.get("tokens")
    if not isinstance(timings, dict) or not isinstance(text, str):
        raise MeasureError("the server's answer has no text or no timings: it is no llama-server of a known version")
    # JSON may also spell half a surrogate pair, which no strict encoder takes.
    raw = text.encode("utf-8", errors="surrogatepass")

    def figure(key: str) -> float | None:
        value = timings.get(key)
        # A rate over no time at all is written as infinity or null.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) > 1e12:
            return None
        return float(value)

    decoded = figure("predicted_n")
    return {
        # Ansible carries text only: bytes that are no UTF-8 are replaced there, and counted in the hash.
        "text": raw.decode("utf-8", errors="replace"),
        "text_sha256": hashlib.sha256(raw).hexdigest(),
        "tokens": [token for token in tokens if isinstance(token, int)] if isinstance(tokens, list) else [],
        "n_prompt": int(figure("prompt_n") or 0),
        "n_decoded": int(decoded or 0),
        "decode_tokens_per_s": figure("predicted_per_second") if decoded and decoded > 1 else None,
        "prefill_tokens_per_s": figure("prompt_per_second"),
        "prefill_ms": figure("prompt_ms"),
        "decode_ms": figure("predicted_ms"),
    }


def summarise_clock(samples: dict[int, int], lowest: int | None, highest: int | None) -> dict[str, Any] | None:
    """Highest clock seen and the share of samples at the table's highest, from a histogram of Hz."""
    count = sum(samples.values())
    if not count:
        return None
    at_max = 0
    if highest:
        at_max = sum(count for hz, count in samples.items() if same_hz(hz, highest))
    return {
        "max_hz_seen": max(samples),
        "min_hz_seen": min(samples),
        "share_at_max": round(at_max / count, 4) if highest else None,
        "samples": count,
        "lowest_hz": lowest,
        "highest_hz": highest,
    }


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


# The board


class ClockSampler:
    """Reads the GPU clock every 20 ms in a thread of its own into a histogram: memory does not grow with time."""

    def __init__(self, host: Host, node: Node) -> None:
        self.host = host
        self.node = node
        self.lowest = min(node.available_hz, default=None)
        # A power mode caps the clock below the table's end, and the floor with it.
        self.highest = max((hz for hz in node.available_hz if not node.max_hz or hz <= node.max_hz), default=None)
        self.samples: dict[int, int] = {}
        self._active = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        path = self.host.path(f"{self.node.path}/cur_freq")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            due = time.monotonic()
            while not self._stop.is_set():
                if self._active.is_set():
                    try:
                        text = os.pread(descriptor, 64, 0)
                        hz = int(text)
                        self.samples[hz] = self.samples.get(hz, 0) + 1
                    except (OSError, ValueError):
                        pass
                due = max(due + SAMPLE_S, time.monotonic())
                self._stop.wait(due - time.monotonic())
        finally:
            os.close(descriptor)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2)

    def watch(self, on: bool) -> None:
        if on:
            self._active.set()
        else:
            self._active.clear()

    def now(self) -> int | None:
        return self.host.read_int(f"{self.node.path}/cur_freq")


class Unit:
    """The server's systemd unit: its main process and its control group."""

    def __init__(self, host: Host, name: str | None) -> None:
        self.host = host
        self.name = name
        self.pid: int | None = None
        self.cgroup: str | None = None
        if name:
            answer = host.command(["systemctl", "show", "--property=MainPID,ControlGroup", "--", name])
            properties = parse_unit_properties(answer.stdout)
            pid = properties.get("MainPID", "0")
            self.pid = int(pid) if pid.isdecimal() and int(pid) > 0 else None
            group = properties.get("ControlGroup", "")
            self.cgroup = group if group.startswith("/") and ".." not in group.split("/") else None

    def swap_max(self) -> str | None:
        if self.cgroup is None:
            return None
        mount = parse_unified_mount(self.host.read_text("/proc/self/mounts") or "") or "/sys/fs/cgroup"
        return self.host.read_text(f"{mount}{self.cgroup}/memory.swap.max", 256)

    def major_faults(self) -> int | None:
        text = self.host.read_text(f"/proc/{self.pid}/stat", 4096) if self.pid else None
        return parse_major_faults(text) if text else None


class Client:
    """llama-server's HTTP interface, as far as measuring needs it. No proxy: the server is on this board."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise MeasureError(f"url is {url!r}; it must be http://HOST:PORT of a llama-server")
        self.url = url
        self._host, self._port = parts.hostname, parts.port or 80
        self._timeout_s = timeout_s

    def call(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            content = answer.read(ANSWER_LIMIT + 1)
            if len(content) > ANSWER_LIMIT:
                raise MeasureError(f"{self.url}{path} answers with more than {ANSWER_LIMIT >> 20} MiB")
            return answer.status, content
        finally:
            connection.close()

    def wait_healthy(self, limit_s: float) -> None:
        """Until the model is loaded, or the reason why it is not."""
        deadline = time.monotonic() + limit_s
        seen = "no answer yet"
        while True:
            try:
                status, body = self.call("GET", "/health", None, 5.0)
                if status == 200:
                    return
                seen = f"/health answers {status}: {body[:120].decode('utf-8', errors='replace')}"
            except (OSError, http.client.HTTPException) as error:
                seen = f"{type(error).__name__}: {error}"
            if time.monotonic() >= deadline:
                raise MeasureError(
                    f"{self.url} is not ready after {limit_s:g} s ({seen}): look at the server's journal for the reason"
                )
            time.sleep(0.5)

    def complete(self, prompt: str, n_predict: int) -> dict[str, Any]:
        request = {
            "prompt": prompt,
            "n_predict": n_predict,
            "temperature": 0,
            "seed": 1,
            "cache_prompt": False,
            "return_tokens": True,
            # Every request decodes the same number of tokens, whatever the model would rather do.
            "ignore_eos": True,
            "stream": False,
        }
        try:
            status, body = self.call("POST", "/completion", request, self._timeout_s)
        except TimeoutError:
            raise MeasureError(f"{self.url} did not answer a request within {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise MeasureError(
                f"{self.url} broke a request off ({type(error).__name__}: {error}): "
                "the server may have died, see its journal"
            ) from None
        return parse_answer(status, body)


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

    def run(self, prompts: list[dict[str, Any]], n_predict: int, rounds: int, ready_s: float) -> dict[str, Any]:
        if not prompts:
            raise MeasureError("there are no prompts to measure with")
        self.client.wait_healthy(ready_s)
        unit = Unit(self.host, self.unit_name)
        if self.unit_name and unit.pid is None:
            raise MeasureError(f"the unit {self.unit_name} is not running: systemctl status {self.unit_name} tells why")
        if self.block_device and self._bytes_read() is None:
            self.warnings.append(f"no /sys/class/block/{self.block_device}/stat: bytes read are unknown")
        # Thor has two GPU nodes; the first is the one that computes.
        node = next(iter(Sysfs(self.host.root).gpu_nodes()), None)
        sampler = ClockSampler(self.host, node) if node else None
        cache_before, floor_before = self._cache(unit.pid), self._floor()
        result: dict[str, Any] = {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "complete": False,
            "unit": self.unit_name,
            "n_predict": n_predict,
            "rounds": rounds,
            "requests": [],
            "warnings": self.warnings,
        }
        if sampler:
            sampler.start()
        try:
            for round_number in range(1, rounds + 1):
                for prompt in prompts:
                    result["requests"].append(self._request(prompt, round_number, n_predict, unit, sampler))
                    self.save(result)
        finally:
            if sampler:
                sampler.stop()

        time.sleep(max(self.settle_s, HEALTH_PERIOD_S))
        # The lowest of a few readings: one blip of the desktop is not a floor that was left up.
        after_hold: list[int] = []
        for _reading in range(AFTER_HOLD_READINGS if sampler else 0):
            hz = sampler.now() if sampler else None
            if hz is not None:
                after_hold.append(hz)
            time.sleep(SAMPLE_S)
        requests = result["requests"]
        cache_after, floor_after = self._cache(unit.pid), self._floor()
        if cache_before is None and cache_after is not None:
            # A file that was not there before the first request started from zero.
            cache_before = _zero(cache_after)
        gpu = summarise_clock(sampler.samples, sampler.lowest, sampler.highest) if sampler else None
        if gpu is not None and sampler is not None and node is not None:
            gpu["after_hold_hz"] = min(after_hold, default=None)
            gpu["after_hold_min_freq_hz"] = self.host.read_int(f"{node.path}/min_freq")
            gpu["node"] = node.name
        counters = (
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
        result.update(
            {
                "complete": True,
                "decode_tokens_per_s": median([request["decode_tokens_per_s"] for request in requests]),
                "prefill_tokens_per_s": median([request["prefill_tokens_per_s"] for request in requests]),
                "prefill_ms": median([request["prefill_ms"] for request in requests]),
                "nvme_bytes": _sum([request["nvme_bytes"] for request in requests]),
                "major_faults": _sum([request["major_faults"] for request in requests]),
                "gpu": gpu,
                "cache": None
                if cache_after is None or cache_before is None
                else {key: counter_delta(cache_before[key], cache_after[key]) for key in counters},
                "cache_info": None
                if cache_after is None
                else {
                    key: cache_after[key]
                    for key in ("mode", "reason", "asked_bytes", "delivered_bytes", "cycle_bytes", "cycles", "slots")
                },
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
            }
        )
        self.save(result)
        return result

    def _request(
        self, prompt: dict[str, Any], round_number: int, n_predict: int, unit: Unit, sampler: ClockSampler | None
    ) -> dict[str, Any]:
        bytes_before, faults_before = self._bytes_read(), unit.major_faults()
        if sampler:
            sampler.watch(True)
        try:
            answer = self.client.complete(str(prompt["text"]), n_predict)
        finally:
            if sampler:
                sampler.watch(False)
        request: dict[str, Any] = {"id": str(prompt["id"]), "lang": prompt.get("lang"), "round": round_number}
        request.update(answer)
        request["nvme_bytes"] = counter_delta(bytes_before, self._bytes_read())
        request["major_faults"] = counter_delta(faults_before, unit.major_faults())
        return request


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
