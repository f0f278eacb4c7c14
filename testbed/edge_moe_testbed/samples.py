# SPDX-License-Identifier: GPL-3.0-or-later
"""Result files as boards would leave them, for tests of what reads them and for looking at a report without a board.

The first board has the figures of the published study of an Orin Nano Super: 193 ms a token and 0.64 ms for each MiB
read, 2.73, 3.37, 4.39 and 4.96 tokens a second over four stages, 8.05 and 9.63 W. Noise comes from a fixed seed.
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
from pathlib import Path
from typing import Any

MIB, GIB = 1024**2, 1024**3
TOKENS = 256
PROMPTS = [f"{language}-{number}" for language in ("ko", "en") for number in range(1, 7)]
LOW_HZ, HIGH_HZ = 306_000_000, 1_020_000_000
STAGES: list[dict[str, Any]] = [
    {
        "name": "mmap",
        "title": "stock mmap",
        "args": ["-t", "12"],
        "environment": {},
        "floor": False,
        "figures": {"fixed_ms": 193, "ms_per_mib": 0.64, "mib": 270, "speed": 2.73, "watts": 8.05, "prefill_ms": 6700},
        "at_high": 0.002,
    },
    {
        "name": "mmap-floor",
        "title": "stock mmap, clock floor",
        "args": ["-t", "12"],
        "environment": {},
        "floor": True,
        "figures": {"fixed_ms": 124, "ms_per_mib": 0.64, "mib": 270, "speed": 3.37, "watts": 9.63, "prefill_ms": 6700},
        "at_high": 0.991,
    },
    {
        "name": "cache-published",
        "title": "cache as published",
        "args": ["-t", "6"],
        "environment": {"EDGE_MOE_CACHE_MIB": "2048", "EDGE_MOE_POLICY": "lru", "EDGE_MOE_LOOKAHEAD": "0"},
        "floor": True,
        "figures": {"fixed_ms": 148, "ms_per_mib": 0.40, "mib": 199, "speed": 4.39, "watts": 9.8, "prefill_ms": 3400},
        "at_high": 0.993,
    },
    {
        "name": "served",
        "title": "as the plan serves",
        "args": ["-t", "4"],
        "environment": {"EDGE_MOE_CACHE_MIB": "2268"},
        "floor": True,
        "figures": {"fixed_ms": 124, "ms_per_mib": 0.40, "mib": 192, "speed": 4.96, "watts": 10.1, "prefill_ms": 3500},
        "at_high": 0.994,
    },
]


def text_of(prompt: str) -> str:
    return f"An answer to {prompt}: 강은 굽이쳐 흐른다 & <so> it goes on."


def measurement(
    seed: str,
    *,
    fixed_ms: float,
    ms_per_mib: float,
    mib: float,
    speed: float,
    watts: float = 8.05,
    prefill_ms: float = 3500,
    at_high: float = 0.99,
    rounds: int = 1,
    started: str = "2026-11-29T12:00:00Z",
    cache: bool = False,
) -> dict[str, Any]:
    """What edge.moe.measure returns: points on a line with noise of 1 %, their mean speed exactly `speed`."""
    noise = random.Random(seed)  # noqa: S311 - a sample, no secret
    # a prompt's experts: the twelve spread evenly around the mean
    reads = {prompt: mib * (0.78 + 0.04 * (place * 5 % 12)) for place, prompt in enumerate(PROMPTS)}
    requests: list[dict[str, Any]] = []
    for round_number in range(1, rounds + 1):
        for prompt in PROMPTS:
            read = reads[prompt] * noise.uniform(0.99, 1.01)
            prefill = prefill_ms * noise.uniform(0.95, 1.05)
            text = text_of(prompt)
            requests.append(
                {
                    "id": prompt,
                    "lang": prompt[:2],
                    "round": round_number,
                    "text": text,
                    "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
                    "tokens": [len(prompt), *range(8)],
                    "n_prompt": 27,
                    "n_decoded": TOKENS,
                    "decode_tokens_per_s": 1000 / ((fixed_ms + ms_per_mib * read) * noise.uniform(0.99, 1.01)),
                    "prefill_ms": prefill,
                    "prefill_tokens_per_s": 27 / prefill * 1000,
                    "ttft_ms": prefill + 60,
                    "nvme_bytes": int(read * TOKENS * MIB),
                    "major_faults": 0 if cache else int(read * TOKENS / 16),
                    "at_once": 1,
                }
            )
    exact = speed / statistics.fmean(request["decode_tokens_per_s"] for request in requests)
    seconds = 0.0
    for request in requests:
        request["decode_tokens_per_s"] *= exact
        request["decode_ms"] = TOKENS / request["decode_tokens_per_s"] * 1000
        request["latency_ms"] = request["ttft_ms"] + request["decode_ms"]
        seconds += request["latency_ms"] / 1000
    lookups = len(requests) * TOKENS * 320
    hits = int(lookups * 0.68)
    return {
        "started": started,
        "complete": True,
        "unit": "edge-moe-server.service",
        "n_predict": TOKENS,
        "rounds": rounds,
        "at_once": 1,
        "wall_s": seconds,
        "total_decoded": TOKENS * len(requests),
        "requests": requests,
        "warnings": [],
        "decode_tokens_per_s": statistics.median(request["decode_tokens_per_s"] for request in requests),
        "prefill_ms": statistics.median(request["prefill_ms"] for request in requests),
        "nvme_bytes": sum(request["nvme_bytes"] for request in requests),
        "gpu": {
            "samples": 5761,
            "shares": {str(LOW_HZ): 1 - at_high - 0.004, "612000000": 0.004, str(HIGH_HZ): at_high},
            "load": {"mean": 0.198 if at_high > 0.5 else 0.36, "max": 0.9},
            "share_at_max": at_high,
            "lowest_hz": LOW_HZ,
            "highest_hz": HIGH_HZ,
            "max_hz_seen": HIGH_HZ,
            "min_hz_seen": LOW_HZ,
            "after_hold_hz": LOW_HZ,
        },
        "power": {
            "source": "tegrastats",
            "rail": "VDD_IN",
            "mean_w": watts,
            "max_w": watts + 2,
            "samples": 900,
            "joules": watts * seconds,
        },
        "heat": {"max_celsius": 61.5, "zone": "cpu-thermal", "hot_celsius": 99.0},
        "throttle": {"events": {}, "cooling": {}},
        "memory": {"oom_kills": 0, "swap_bytes": 0, "peak_bytes": 6 * GIB},
        "cpu": {
            "clocks_khz": {"1728000": 1.0},
            "allowed_khz": 1728000,
            "full_khz": 1728000,
            "lowest_allowed_share": 0.0,
        },
        "cache": {"hits": {"decode": hits}, "misses": {"decode": lookups - hits}} if cache else None,
        "cache_info": {"mode": "cache", "delivered_bytes": 2268 * MIB} if cache else {"mode": "mmap"},
        "memory_swap_max": "0",
        "swap_on": False,
    }


def _stage(name: str, seed: str, **more: Any) -> dict[str, Any]:
    stage = next(stage for stage in STAGES if stage["name"] == name)
    cache = "EDGE_MOE_CACHE_MIB" in stage["environment"]
    return measurement(f"{name} {seed}", **{**stage["figures"], "at_high": stage["at_high"], "cache": cache, **more})


def _head(host: str, board: str, release: str, mode: str, gpu_cap_hz: int) -> dict[str, Any]:
    return {
        "host": host,
        "board": board,
        "l4t": "36.4.7",
        "power_mode": {"id": 2, "name": mode, "gpu_cap_hz": gpu_cap_hz},
        "release": release,
        "model": "Qwen3.6-35B-A3B-MXFP4.gguf",
        "model_sha256": "4f88" * 16,
    }


def stages_run(rounds: int = 2, started: str = "2026-11-29T12:00:00Z") -> dict[str, Any]:
    """A run file of the four published stages, interleaved, with load, depth and perplexity."""
    load = [
        {
            "variant": "served",
            "at_once": at_once,
            "measurement": {
                "at_once": at_once,
                "total_decoded": TOKENS * at_once,
                "wall_s": TOKENS * at_once / throughput,
                "requests": [
                    {"latency_ms": TOKENS / throughput * at_once * 1000, "ttft_ms": 3600.0 * at_once}
                    for _request in range(at_once)
                ],
            },
        }
        for at_once, throughput in ((1, 4.9), (2, 6.6), (4, 8.1), (8, 8.2))
    ]
    depth = [
        {
            "variant": "served",
            "depth": tokens,
            "measurement": {"requests": [{"decode_tokens_per_s": speed, "prefill_ms": 3500 + tokens * 22.0}]},
        }
        for tokens, speed in ((0, 4.96), (1024, 4.9), (2048, 4.81), (4096, 4.62))
    ]
    return {
        **_head("kitchen", "orin-nano-8gb", "49a62990f65c5724", "MAXN_SUPER", HIGH_HZ),
        "format": 1,
        "kind": "bench",
        "key": "0" * 64,
        "started": started,
        "complete": True,
        "variants": [
            {key: stage[key] for key in ("name", "title", "args", "environment", "floor")} | {"read_ahead_kb": 64}
            for stage in STAGES
        ],
        "reference": "mmap",
        "legs": [
            {"variant": name, "round": number, "measurement": _stage(name, str(number), started=started)}
            for number in range(1, rounds + 1)
            for name in (stage["name"] for stage in STAGES)
        ],
        "load": load,
        "depth": depth,
        "perplexity": [
            {"variant": "mmap", "value": 6.2344, "error_margin": 0.21},
            {"variant": "served", "value": 6.2344, "error_margin": 0.21},
        ],
    }


def line_run() -> dict[str, Any]:
    """The 24 points of the published line: eight experts a token, and four."""
    line: dict[str, Any] = {"fixed_ms": 193.0, "ms_per_mib": 0.64}
    return {
        "kind": "bench",
        "complete": True,
        "started": "2026-11-29T12:00:00Z",
        "variants": [{"name": "top-k 8"}, {"name": "top-k 4"}],
        "reference": "top-k 8",
        "legs": [
            {"variant": "top-k 8", "round": 1, "measurement": measurement("8", **line, mib=270, speed=2.73)},
            {"variant": "top-k 4", "round": 1, "measurement": measurement("4", **line, mib=100, speed=3.89)},
        ],
    }


def verify_result(
    host: str = "kitchen",
    board: str = "orin-nano-8gb",
    release: str = "49a62990f65c5724",
    started: str = "2026-11-29T12:00:00Z",
    speed: float = 4.96,
    reference_speed: float = 3.37,
    failures: list[dict[str, str]] | None = None,
    **plan: Any,
) -> dict[str, Any]:
    """A result of the verify role."""
    reference = _stage("mmap-floor", host, rounds=2, speed=reference_speed, started="2026-11-20T08:00:00Z")
    served = _stage("served", f"{host} {started}", rounds=2, speed=speed, started=started)
    return {
        **_head(host, board, release, "MAXN_SUPER", HIGH_HZ),
        "plan": {
            "decision": "cache", "cache_mib": 2268, "threads": 4, "context": 4096, "parallel": 1, "io_depth": 16,
            "read_kib": 1024, "read_ahead_kb": 64, "floor": True, "server_args": ["-c", "4096"], **plan,
        },
        "reference": reference,
        "served": served,
        "verdict": {
            "passed": not failures,
            "failures": failures or [],
            "text_equal": True,
            "ratio": round(served["decode_tokens_per_s"] / reference["decode_tokens_per_s"], 3),
            "hit_share": 0.68,
            "gpu_decode_hz": HIGH_HZ,
            "gpu_after_hz": LOW_HZ,
        },
    }  # fmt: skip


def write_fleet(folder: Path) -> None:
    """Results of two boards below `folder`: one that got faster with its releases, one that fails its verdict."""

    def write(path: Path, record: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, ensure_ascii=False))

    releases = [("11", 3.9, 6), ("14", 4.41, 6), ("19", 4.39, 5), ("22", 4.7, 4), ("26", 4.68, 4), ("29", 4.96, 4)]
    for day, speed, threads in releases:
        when = f"2026-11-{day}T12:00:00Z"
        result = verify_result(started=when, release=f"{int(day):02d}a62990f65c5724", speed=speed, threads=threads)
        write(folder / f"history/kitchen/202611{day}T120000Z.json", result)
        write(folder / "kitchen.json", result)
    write(folder / "bench/kitchen/20261129T120000Z.json", stages_run())
    failure = {
        "class": "throttled",
        "evidence": "the board lowered its CPU clock 12 times (oc1_event_cnt) and reached 97 °C",
        "remedy": "check fan and power supply, then measure again",
    }
    hot = verify_result("workshop", "orin-nx-16gb", started="2026-11-29T13:10:00Z", speed=3.3, failures=[failure])
    hot["served"]["throttle"]["events"] = {"oc1_event_cnt": 12}
    hot["served"]["heat"]["max_celsius"] = 97.0
    write(folder / "workshop.json", hot)
