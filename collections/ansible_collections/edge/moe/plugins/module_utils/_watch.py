# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the board does while requests run: clocks, load, power, heat, throttling and swap, sampled in one thread.

Private to this collection: it may change in any release.

A source that is not there gives None. Samples go into histograms, sums and extremes, so memory does not grow with
time. Files are kept open, and each source has a pace of its own: the GPU's clock moves within milliseconds, while a
power monitor is read over a slow bus and heat changes in seconds.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _sensors
from ansible_collections.edge.moe.plugins.module_utils._devfreq import PLATFORM_LOAD, Node, same_hz
from ansible_collections.edge.moe.plugins.module_utils._host import HeldFile, Host

TICK_S = 0.02
STOP_S = 5.0
# Real tables have a dozen clocks; what is read beside them counts as the nearest that was seen.
MAX_CLOCKS = 256
MAX_ENTRIES = 256
RAIL = "VDD_IN"
TEGRASTATS_MS = 500
CPU = "/sys/devices/system/cpu"
HWMON = "/sys/class/hwmon"
THERMAL = "/sys/class/thermal"
_COOLS_CLOCKS = re.compile(r"cpu|gpu|devfreq|throttle", re.IGNORECASE)


# Pure


def parse_tegrastats_watts(line: str) -> float | None:
    """The board's input power now, from a line of tegrastats: `VDD_IN 4654mW/4600mW`; the unit may be missing."""
    match = re.search(rf"\b{RAIL}\s+(\d{{1,7}})\s*(?:mW)?(?=[/\s]|$)", line)
    return int(match.group(1)) / 1000 if match else None


def add_to_histogram(counts: dict[int, int], value: int) -> None:
    if value not in counts and len(counts) >= MAX_CLOCKS:
        value = min(counts, key=lambda seen: abs(seen - value))
    counts[value] = counts.get(value, 0) + 1


def shares(counts: dict[int, int]) -> dict[str, float]:
    """Part of all samples by value; JSON has text for keys only."""
    total = sum(counts.values())
    return {str(value): round(count / total, 4) for value, count in sorted(counts.items())}


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
        "shares": shares(samples),
    }


class _Mean:
    """Mean and highest of what was added."""

    def __init__(self) -> None:
        self.count = 0
        self.highest = 0.0
        self._sum = 0.0

    def add(self, value: float) -> None:
        self.highest = max(self.highest, value) if self.count else value
        self.count += 1
        self._sum += value

    @property
    def mean(self) -> float:
        return self._sum / self.count


# The sources


class Source:
    """Sampled every `every_s` while requests run, from one thread; closed at the end."""

    every_s = 1.0

    def __init__(self, files: list[HeldFile]) -> None:
        self.files = files

    def sample(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for file in self.files:
            file.close()


def _matching(host: Host, folder: str, pattern: str) -> list[str]:
    """Paths of a folder's entries of that name, a bounded number of them."""
    return [f"{folder}/{name}" for name in host.entries(folder) if re.fullmatch(pattern, name)][:MAX_ENTRIES]


class GpuClock(Source):
    every_s = TICK_S

    def __init__(self, host: Host, node: Node) -> None:
        self.lowest = min(node.available_hz, default=None)
        # A power mode caps the clock below the table's end, and the floor with it.
        self.highest = max((hz for hz in node.available_hz if not node.max_hz or hz <= node.max_hz), default=None)
        self.samples: dict[int, int] = {}
        super().__init__([host.hold(f"{node.path}/cur_freq")])

    def sample(self) -> None:
        hz = self.files[0].number()
        if hz is not None:
            add_to_histogram(self.samples, hz)


class GpuLoad(Source):
    every_s = 0.1

    def __init__(self, host: Host, node: Node) -> None:
        self._load = _Mean()
        super().__init__([host.hold(f"{node.path}/device/load") or host.hold(PLATFORM_LOAD)])

    def sample(self) -> None:
        permille = self.files[0].number()
        if permille is not None and 0 <= permille <= 1000:
            self._load.add(permille / 1000)

    def summary(self) -> dict[str, float] | None:
        load = self._load
        return {"mean": round(load.mean, 4), "max": load.highest} if load.count else None


class CpuClock(Source):
    """Clocks and caps. A policy stands for the CPUs that share a clock."""

    every_s = 0.2

    def __init__(self, host: Host) -> None:
        policies = _matching(host, f"{CPU}/cpufreq", r"policy\d{1,4}") or [
            f"{cpu}/cpufreq" for cpu in _matching(host, CPU, r"cpu\d{1,4}")
        ]
        # cpuinfo_cur_freq would stop a core for half a millisecond to count its cycles: the governor's word will do.
        self._clocks = [host.hold(f"{policy}/scaling_cur_freq") for policy in policies]
        self._caps = [host.hold(f"{policy}/scaling_max_freq") for policy in policies]
        super().__init__(self._clocks + self._caps)
        self._full = [host.read_int(f"{policy}/cpuinfo_max_freq") for policy in policies]
        self._first_caps: list[int | None] = [None] * len(policies)
        self._samples: dict[int, int] = {}
        self._allowed: int | None = None
        self._rounds = self._capped_rounds = 0

    def sample(self) -> None:
        for file in self._clocks:
            khz = file.number()
            if khz is not None:
                add_to_histogram(self._samples, khz)
        capped = known = False
        for index, file in enumerate(self._caps):
            cap = file.number()
            if cap is None:
                continue
            known = True
            self._allowed = cap if self._allowed is None else min(self._allowed, cap)
            first, full = self._first_caps[index], self._full[index]
            if first is None:
                self._first_caps[index] = first = cap
            capped = capped or cap < first or (full is not None and cap < full)
        self._rounds += known
        self._capped_rounds += capped

    def summary(self) -> dict[str, Any] | None:
        if not self._samples and not self._rounds:
            return None
        return {
            "clocks_khz": shares(self._samples),
            "allowed_khz": self._allowed,
            "full_khz": max((khz for khz in self._full if khz is not None), default=None),
            "lowest_allowed_share": round(self._capped_rounds / self._rounds, 4) if self._rounds else None,
        }


class Power(Source):
    """The board's input, from its power monitor in hwmon, or from tegrastats where the kernel does not show that."""

    every_s = 0.25

    def __init__(self, host: Host) -> None:
        super().__init__([])
        self._watts = _Mean()
        for monitor, channel in self._channels(host):
            # Microwatts, or millivolts and milliamperes: a product of either is millionths of a watt.
            names = ("power",) if host.exists(f"{monitor}/power{channel}_input") else ("in", "curr")
            self.files = [host.hold(f"{monitor}/{name}{channel}_input") for name in names]
            if all(self.files):
                break
            super().close()
            self.files = []
        self._lines = None if self.files else host.lines(["tegrastats", "--interval", str(TEGRASTATS_MS)])

    @staticmethod
    def _channels(host: Host) -> Iterator[tuple[str, str]]:
        for monitor in _matching(host, HWMON, r"hwmon\d{1,4}"):
            for label in _matching(host, monitor, r"(?:in|power)\d{1,2}_label"):
                if host.read_text(label, 64) == RAIL:
                    yield monitor, "".join(filter(str.isdigit, label.rpartition("/")[2]))

    def sample(self) -> None:
        if self._lines:
            for line in self._lines.take():
                watts = parse_tegrastats_watts(line)
                if watts is not None:
                    self._watts.add(watts)
        elif self.files:
            product = 1e-6
            for file in self.files:
                value = file.number()
                if value is None or value < 0:
                    return
                product *= value
            self._watts.add(product)

    def summary(self, seconds: float) -> dict[str, Any] | None:
        watts = self._watts
        if not watts.count:
            return None
        return {
            "source": "hwmon" if self.files else "tegrastats",
            "rail": RAIL,
            "mean_w": round(watts.mean, 3),
            "max_w": round(watts.highest, 3),
            "samples": watts.count,
            "joules": round(watts.mean * seconds, 3),
        }

    def close(self) -> None:
        super().close()
        if self._lines:
            self._lines.stop()


class Heat(Source):
    every_s = 1.0

    def __init__(self, host: Host) -> None:
        super().__init__([host.hold(f"{zone}/temp") for zone in _sensors.thermal_zone_dirs(host)])
        self._zones = _sensors.thermal_zones(host)
        self._hottest: dict[str, Any] | None = None

    def sample(self) -> None:
        for zone, file in zip(self._zones, self.files, strict=False):
            millidegrees = file.number()
            celsius = _sensors.parse_millidegrees(None if millidegrees is None else str(millidegrees))
            if celsius is not None and (self._hottest is None or celsius > self._hottest["max_celsius"]):
                self._hottest = {"max_celsius": celsius, "zone": zone["name"], "hot_celsius": zone["hot_celsius"]}

    def summary(self) -> dict[str, Any] | None:
        return self._hottest


class Throttle(Source):
    """Over-current and thermal events that the kernel counts, and cooling devices that act on clocks."""

    every_s = 0.5

    def __init__(self, host: Host) -> None:
        super().__init__([])
        self._host = host
        self._before = self._events()
        self._cooling: dict[str, int] = {}
        self._types: list[str] = []
        for device in _matching(host, THERMAL, r"cooling_device\d{1,4}"):
            kind = host.read_text(f"{device}/type", 64) or ""
            if _COOLS_CLOCKS.search(kind) and "fan" not in kind.lower():
                self._types.append(kind)
                self.files.append(host.hold(f"{device}/cur_state"))

    def _events(self) -> dict[str, int]:
        """Counts by the name of their file; those of several CPUs or monitors are added up."""
        counts: dict[str, int] = {}
        folders = _matching(self._host, HWMON, r"hwmon\d{1,4}")
        files = [file for folder in folders for file in _matching(self._host, folder, r"oc\d{1,3}_event_cnt")]
        for cpu in _matching(self._host, CPU, r"cpu\d{1,4}"):
            files += _matching(self._host, f"{cpu}/thermal_throttle", r"\w{1,64}count")
        for file in files:
            count, name = self._host.read_int(file), file.rpartition("/")[2]
            if count is not None:
                counts[name] = counts.get(name, 0) + count
        return counts

    def sample(self) -> None:
        for kind, file in zip(self._types, self.files, strict=True):
            state = file.number()
            if state is not None and state > 0:
                self._cooling[kind] = max(state, self._cooling.get(kind, 0))

    def summary(self) -> dict[str, Any]:
        grown = {name: count - self._before.get(name, 0) for name, count in self._events().items()}
        return {"events": {name: delta for name, delta in grown.items() if delta > 0}, "cooling": self._cooling}


class SwapUse(Source):
    """Highest memory.swap.current of the server's control group; None where that is not known."""

    every_s = 0.5

    def __init__(self, host: Host, group_dir: str | None) -> None:
        super().__init__([host.hold(f"{group_dir}/memory.swap.current")] if group_dir else [])
        self.highest: int | None = None

    def sample(self) -> None:
        for file in self.files:
            used = file.number()
            if used is not None:
                self.highest = max(used, self.highest or 0)


class Watch:
    """All sources and the thread that samples them while at least one request is under way.

    Used as a context manager: at its end, however that comes, the thread has stopped and everything is closed.
    """

    def __init__(self, host: Host, node: Node | None, group_dir: str | None) -> None:
        self.clock = GpuClock(host, node) if node else None
        self._load = GpuLoad(host, node) if node else None
        self._cpu, self._heat, self._throttle = CpuClock(host), Heat(host), Throttle(host)
        self._swap = SwapUse(host, group_dir)
        self._power = Power(host)
        found = (self.clock, self._load, self._cpu, self._power, self._heat, self._throttle, self._swap)
        self._sources = [source for source in found if source is not None]
        # Seconds during which requests ran; several at once count once.
        self.busy_s = 0.0
        self.problem: str | None = None
        self._running, self._since = 0, 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            # A driver that holds a read: its file must not be closed under it.
            self.problem = f"sampling did not end within {STOP_S:g} s: a sensor's driver hangs"
            return
        for source in self._sources:
            source.close()

    def _run(self) -> None:
        try:
            paces = [(source, max(1, round(source.every_s / TICK_S))) for source in self._sources]
            # Counts only while requests run, so that the shortest request is seen by each source.
            tick, due = 0, time.monotonic()
            while not self._stop.is_set():
                if self._running:
                    for source, every in paces:
                        if tick % every == 0:
                            source.sample()
                    tick += 1
                now = time.monotonic()
                due = max(due + TICK_S, now)
                # Waiting for the event itself would take half as much again of a core.
                time.sleep(due - now)
        except Exception as error:
            # Samples are worth less than the measurement: it goes on, and its result says what is missing.
            self.problem = f"sampling ended early: {type(error).__name__}: {error}"

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Around each request."""
        with self._lock:
            if not self._running:
                self._since = time.monotonic()
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self.busy_s += time.monotonic() - self._since

    def summary(self) -> dict[str, Any]:
        """What was seen: see RETURN of the measure module. `swap_bytes` is the control group's."""
        gpu = summarise_clock(self.clock.samples, self.clock.lowest, self.clock.highest) if self.clock else None
        if gpu is not None and self._load:
            gpu["load"] = self._load.summary()
        return {
            "gpu": gpu,
            "cpu": self._cpu.summary(),
            "power": self._power.summary(self.busy_s),
            "heat": self._heat.summary(),
            "throttle": self._throttle.summary(),
            "swap_bytes": self._swap.highest,
        }
