# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens a second of a plan, before anything is downloaded: a fixed part, and a part for each MiB that a token reads.

Private to this collection: it may change in any release. Pure.

Published for a Jetson Orin Nano Super and a 35B model: 193 ms a token fixed, and 0.64 ms for each MiB read, 24 points
on one line. From the same study follow the two other figures below: with the clock held up the fixed part is 69 ms
shorter, and reads that overlap with compute cost 0.40 ms a MiB. What a board has measured by itself wins over these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MIB = 1024 * 1024

PUBLISHED_BOARD = "orin-nano-8gb"
PUBLISHED_FIXED_MS = 193.0
PUBLISHED_FLOOR_GAIN_MS = 69.0
# Weights that a token of that model touches, dense and experts; the fixed part grows with them.
PUBLISHED_ACTIVE_MIB = 2922.0
MS_PER_MIB = {"mmap": 0.64, "cache": 0.40}
# Fault-driven reads bring parts of experts that nobody asked for, and dense weights that were pushed out.
PAGE_CACHE_WASTE = 1.2
# Share of an expert's lookups that miss, by the share of all experts that is held: from published caches between
# 8 and 69 %, and nothing missed where all is held.
MISSES = (
    (0.0, 1.0),
    (0.083, 0.50),
    (0.113, 0.40),
    (0.167, 0.36),
    (0.333, 0.24),
    (0.4, 0.19),
    (0.555, 0.14),
    (0.694, 0.10),
    (1.0, 0.0),
)
# With few token cycles a cache misses more than its share says, as what one token needs pushes out the last one's.
ONE_CYCLE_MISSES, TWO_CYCLES_MISSES = 0.75, 0.43
# Memory bandwidth in GB/s that makers state, of which decoding a resident model on the GPU reaches about half.
BANDWIDTH_GB_S = {
    "orin-nano-8gb": 102,
    "orin-nx-8gb": 102,
    "orin-nx-16gb": 102,
    "agx-orin-32gb": 204,
    "agx-orin-64gb": 204,
    "thor-t5000": 273,
    "thor-t4000": 273,
}
BANDWIDTH_REACHED = 0.5
# The line's own points scatter by a tenth; other models and boards by more.
RANGE_OWN, RANGE_PUBLISHED, RANGE_ELSEWHERE = 0.10, 0.25, 0.60


class Point(NamedTuple):
    """One measurement of a board: decode speed, MiB read for each token, and how it was served."""

    tokens_per_s: float
    mib_per_token: float
    path: str  # "cache" or "mmap"; a resident model is mmap without reads
    cache_mib: float | None = None  # size of the cache, if it is known


def miss_share(held_share: float, cycles: float) -> float:
    """Share of lookups that have to read; `cycles` is infinite for page cache, which has no cycle to fall below."""
    held = min(1.0, max(0.0, held_share))
    for (left, high), (right, low) in itertools.pairwise(MISSES):
        if held <= right:
            by_share = high + (low - high) * (held - left) / (right - left)
            break
    else:
        by_share = 0.0
    if held < 1 and cycles < 2:
        return min(1.0, max(by_share, ONE_CYCLE_MISSES + (TWO_CYCLES_MISSES - ONE_CYCLE_MISSES) * (cycles - 1)))
    return by_share


def mib_per_token(
    decision: str,
    is_moe: bool,
    cycle_bytes: int,
    experts_bytes: int,
    dense_bytes: int,
    cache_bytes: int,
    free_bytes: int,
) -> float:
    """MiB that one token reads. `free_bytes` is what is left for page cache beside everything but the weights."""
    if decision == "resident":
        return 0.0
    if decision == "cache":
        held = cache_bytes / experts_bytes
        return cycle_bytes * miss_share(held, cache_bytes / cycle_bytes) / MIB
    if is_moe:
        # Dense weights are used by each token, so they are the last to leave the page cache.
        held = max(0, free_bytes - dense_bytes) / experts_bytes
        lost = max(0, dense_bytes - max(0, free_bytes))
        return (cycle_bytes * miss_share(held, math.inf) + lost) * PAGE_CACHE_WASTE / MIB
    # A dense model is read from front to back: page cache that cannot hold all of it holds nothing when it comes round.
    return dense_bytes / MIB


def fit(points: Sequence[Point]) -> tuple[float, dict[str, float], float] | None:
    """Fixed ms, ms a MiB by path, and the greatest relative error of the points; None without a point.

    Two points that read different amounts give a line of their own; one point moves only the fixed part.
    """
    if not points:
        return None
    times = [1000 / point.tokens_per_s for point in points]
    reads = [point.mib_per_token for point in points]
    mean_time, mean_read = sum(times) / len(times), sum(reads) / len(reads)
    spread = sum((read - mean_read) ** 2 for read in reads)
    slopes = dict(MS_PER_MIB)
    if spread > max(1.0, mean_read * 0.05) ** 2:
        slope = sum((read - mean_read) * (time - mean_time) for read, time in zip(reads, times, strict=True)) / spread
        # A line that would make a token without reads take less than no time is drawn through nothing instead.
        if mean_time < slope * mean_read:
            slope = sum(read * time for read, time in zip(reads, times, strict=True)) / sum(read**2 for read in reads)
        # A line that falls was measured while something else changed: it says nothing about reads.
        if slope >= 0:
            slopes = dict.fromkeys(MS_PER_MIB, slope)
    fixed = max(0.0, mean_time - sum(slopes[point.path] * point.mib_per_token for point in points) / len(points))
    worst = max(
        abs(fixed + slopes[point.path] * point.mib_per_token - time) / time
        for point, time in zip(points, times, strict=True)
    )
    return fixed, slopes, worst


def cache_reads(points: Sequence[Point], cache_mib: float, predict: Callable[[float], float]) -> float:
    """MiB that a token reads with a cache of that size; `predict` is the curve's answer for a size in MiB.

    Between two sizes that this board has measured the reads follow a power of the size, as misses do: evenly they would
    fall too slowly at first (by up to 22 % of speed on the bench model, `make bench NAME=plan_error`). Beyond them the
    curve is taken, multiplied with what it was wrong by at the nearest one.
    """
    known = {point.cache_mib: point.mib_per_token for point in points if point.path == "cache" and point.cache_mib}
    sizes = sorted(known)
    for left, right in itertools.pairwise(sizes):
        if left <= cache_mib <= right and known[left] > 0 and known[right] > 0:
            power = math.log(known[right] / known[left]) / math.log(right / left)
            return known[left] * (cache_mib / left) ** power
        if left <= cache_mib <= right:
            return known[left] + (known[right] - known[left]) * (cache_mib - left) / (right - left)
    if not sizes:
        return predict(cache_mib)
    nearest = sizes[0] if cache_mib <= sizes[0] else sizes[-1]
    there = predict(nearest)
    return predict(cache_mib) * known[nearest] / there if there > 0 else known[nearest]


def points_of(measurements: Sequence[Any]) -> list[Point]:
    """Points from what the user or the verify role hands over; an entry that is none is passed over."""
    points = []
    for entry in measurements:
        if not isinstance(entry, dict):
            continue
        speed: Any = entry.get("decode_tokens_per_s")
        read: Any = entry.get("mib_per_token")
        try:
            size: Any = entry.get("cache_mib")
            path = str(entry.get("path") or "cache")
            point = Point(float(speed), float(read), path, None if size is None else float(size))
        except (TypeError, ValueError):
            continue
        # Also false for what is no number. Nothing decodes a million tokens a second, or reads a PiB for one.
        if point.path in MS_PER_MIB and 0 < point.tokens_per_s < 1e6 and 0 <= point.mib_per_token < 1e9:
            if point.cache_mib is not None and not 0 < point.cache_mib < 1e9:
                point = point._replace(cache_mib=None)
            points.append(point)
    return points


def estimate(
    decision: str,
    read_mib: float,
    active_mib: float,
    floor: bool,
    gpu_board: str | None,
    points: Sequence[Point],
) -> dict[str, Any]:
    """Tokens a second with `low` and `high`, the two parts of the line in ms, its `basis`, and a sentence.

    `gpu_board`: name of the board if its GPU is used, else None.
    """
    path = "cache" if decision == "cache" else "mmap"
    own = fit(points)
    if own is not None:
        fixed, slopes, worst = own
        spread = max(RANGE_OWN, worst * 1.5)
        basis = "measured"
        source = f"a line through {len(points)} measurement{'s' if len(points) > 1 else ''} of this board"
    elif decision == "resident" and gpu_board in BANDWIDTH_GB_S:
        reached = BANDWIDTH_GB_S[gpu_board] * BANDWIDTH_REACHED
        fixed, slopes, spread, basis = active_mib * MIB / (reached * 1e6), MS_PER_MIB, RANGE_ELSEWHERE, "bandwidth"
        source = f"a guess from half of the {BANDWIDTH_GB_S[gpu_board]} GB/s of its memory, until it has been measured"
    else:
        gain = PUBLISHED_FLOOR_GAIN_MS if floor else 0.0
        fixed = (PUBLISHED_FIXED_MS - gain) * active_mib / PUBLISHED_ACTIVE_MIB
        slopes, basis = MS_PER_MIB, "published"
        spread = RANGE_PUBLISHED if gpu_board == PUBLISHED_BOARD else RANGE_ELSEWHERE
        source = "the line published for an Orin Nano Super, scaled to the weights that a token touches"
        if gpu_board != PUBLISHED_BOARD:
            source += "; this is another board, so it is a guess until it has been measured"
    total = fixed + slopes[path] * read_mib
    speed = 1000 / total if total > 0 else 0.0
    return {
        "tokens_per_s": round(speed, 2),
        "low": round(speed / (1 + spread), 2),
        "high": round(speed * (1 + spread), 2),
        "fixed_ms": round(fixed, 1),
        "ms_per_mib": round(slopes[path], 3),
        "mib_per_token": round(read_mib, 1),
        "basis": basis,
        "sentence": (
            f"{fixed:.0f} ms a token fixed"
            + (f" and {slopes[path]:.2f} ms for each of {read_mib:.0f} MiB read make " if read_mib else " make ")
            + f"{speed:.1f} tokens a second, {speed / (1 + spread):.1f} to {speed * (1 + spread):.1f}: {source}."
        ),
    }


def _decode_reads(counters: dict[str, Any], drive_bytes: int) -> float:
    """Bytes that decoding read, without those of the prompts, as far as the cache's own counters tell them apart."""
    misses, read = counters.get("misses") or {}, counters.get("read_bytes")
    decode, prefill = misses.get("decode"), misses.get("prefill")
    if read is None or decode is None or prefill is None or decode + prefill == 0:
        return float(drive_bytes)
    return float(read) * decode / (decode + prefill)


def points_of_result(result: Any, model: str) -> list[dict[str, Any]]:
    """Measurements for a plan, from a result file of the verify role; none if it is of another model or incomplete."""
    found: list[dict[str, Any]] = []
    if not isinstance(result, dict) or result.get("model") != model:
        return found
    for side in ("reference", "served"):
        measured = result.get(side) or {}
        requests = [request for request in measured.get("requests") or [] if isinstance(request, dict)]
        tokens = sum(request.get("n_decoded") or 0 for request in requests)
        speed, read = measured.get("decode_tokens_per_s"), measured.get("nvme_bytes")
        if measured.get("complete") and tokens and speed and read is not None:
            path = "cache" if (measured.get("cache_info") or {}).get("mode") == "cache" else "mmap"
            if path == "cache":
                read = _decode_reads(measured.get("cache") or {}, read)
            entry = {"decode_tokens_per_s": speed, "mib_per_token": read / MIB / tokens, "path": path}
            delivered = (measured.get("cache_info") or {}).get("delivered_bytes")
            found.append(entry | ({"cache_mib": delivered / MIB} if path == "cache" and delivered else {}))
    return found
