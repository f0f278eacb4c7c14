# SPDX-License-Identifier: GPL-3.0-or-later
"""Every parser against good inputs that were damaged at random: the same damage at each run, in a few seconds.

A parser may refuse with its own error or take what it understands. It may not raise anything else, take long, or take
more memory than its input's size warrants. The GGUF reader's own fuzzers are beside its other tests.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import (
    _board_probe,
    _boards,
    _estimate,
    _expert_cache,
    _floor_facts,
    _jetson,
    _power,
    _prometheus,
    _sensors,
    _snapshot,
    _systemd,
)

SEED = 20261129
ROUNDS = 400
MIB = 1024 * 1024
PROM = b"""\
# HELP edge_moe_cache_info What serves the experts.
edge_moe_cache_info{pid="41",mode="cache",reason="a \"b\"",policy="lru",engine="pread",direct="1"} 1
edge_moe_cache_hits_total{pid="41",phase="decode"} 6000
edge_moe_cache_cycles{pid="41"} 3.5
edge_moe_cache_updated_timestamp_seconds{pid="41"} 1795957260.0
"""
PROBE_ANSWER = b"""\

@@ compatible
nvidia,p3768-0000+p3767-0005-super
nvidia,tegra234
@@ model
NVIDIA Jetson
@@ release
# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64
@@ package
36.4.7-20250918154033
@@ memory
MemTotal: 7802332 kB
@@ kernel
5.15.148-tegra
@@ end
"""
NVPMODEL = b"""\
< POWER_MODEL ID=0 NAME=15W >
GPU MAX_FREQ 612000000
< POWER_MODEL ID=2 NAME=MAXN_SUPER >
GPU MAX_FREQ -1
"""
TRANS_STAT = (
    b"     From  :   To\n  306000000:         0         1   912345\n*1020000000: 1 0 5678\nTotal transition : 42\n"
)
SHOW = b"Id=a.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"
TCP = b"  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 4711 1 0\n"


def text(parser: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: parser(data.decode("utf-8", errors="replace"))


def probe_answer(data: bytes) -> Any:
    try:
        return _boards.groups_of(_boards.parse_answer(data))
    except _boards.AnswerError:
        return None


PARSERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "compatible": (
        lambda data: _jetson.identify(_jetson.parse_compatible(data)),
        b"nvidia,p3768-0000+p3767-0005-super\0nvidia,tegra234\0",
    ),
    "nv_tegra_release": (text(_jetson.parse_nv_tegra_release), b"# R36 (release), REVISION: 4.7, GCID: 42132812"),
    "l4t_package": (text(_jetson.parse_l4t_package), b"36.4.3-20250107174145"),
    "packages": (text(_jetson.parse_packages), b"ii \tnvidia-l4t-core\t36.4.7-2025\nhi \tbash\t5.1\n"),
    "meminfo": (text(_jetson.parse_meminfo), b"MemTotal:  7802332 kB\nMemAvailable: 1 kB\nHugePages_Total: 0\n"),
    "swaps": (text(_jetson.parse_swaps), b"Filename Type Size Used Priority\n/dev/zram0 partition 182544 12 5\n"),
    "swap_priorities": (text(_snapshot.parse_priorities), b"Filename Type Size Used Priority\n/dev/zram0 x 1 2 5\n"),
    "all_packages": (text(_snapshot.parse_packages), b"Package: cmake\nStatus: hold ok installed\nVersion: 1\n\n"),
    "unit_files": (text(_snapshot.parse_units), b"nvzramconfig.service enabled enabled\n"),
    "accounts": (text(_snapshot.parse_accounts), b"edge-moe:x:999:999::/nonexistent:/usr/sbin/nologin\n"),
    "apt_simulation": (text(_snapshot.parse_simulation), b"Remv cmake [3.2]\nPurg libgomp1:armhf [12]\n"),
    "cpu_list": (text(_jetson.parse_cpu_list), b"0-3,6,8-9"),
    "scheduler": (text(_jetson.parse_scheduler), b"none [mq-deadline] kyber"),
    "cuda_version": (text(_jetson.parse_cuda_version_json), b'{"cuda" : {"name" : "CUDA SDK", "version" : "12.6.11"}}'),
    "nvcc_version": (text(_jetson.parse_nvcc_version), b"Cuda compilation tools, release 12.6, V12.6.68"),
    "mounts": (text(_jetson.parse_cgroup_version), b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"),
    "nvpmodel_query": (text(_power.parse_query), b"NVPM WARN: x\nNV Power Mode: MAXN_SUPER\n2\n"),
    "nvpmodel_status": (text(_power.parse_status), b"pmode:0002 fmode:fan_mode_quiet"),
    "nvpmodel_conf": (text(_power.parse_conf), NVPMODEL),
    "buddyinfo": (text(_sensors.parse_largest_free_block), b"Node 0, zone   Normal    100    50    20    10     5\n"),
    "nvmap": (text(_sensors.parse_nvmap_clients), b"user llama-server 812 424960K\ntotal 424960K\n"),
    "temperature": (text(_sensors.parse_millidegrees), b"50218\n"),
    "smart_log": (
        text(_sensors.parse_smart_log),
        b'{"critical_warning":{"value":0},"percent_used":3,"media_errors":"7"}',
    ),
    "trans_stat": (text(_floor_facts.parse_trans_stat), TRANS_STAT),
    "floor": (text(lambda prom: _floor_facts.floor_facts(prom, "active", 0.0)), PROM.replace(b"cache", b"clock_floor")),
    "systemctl": (text(_systemd.parse_show), SHOW),
    "prometheus": (text(_prometheus.parse), PROM),
    "expert_cache": (text(lambda prom: _expert_cache.judge(_expert_cache.server_from_text(prom, 41), True)), PROM),
    "dpkg_status": (
        text(_board_probe.parse_dpkg_status),
        b"Package: bash\nStatus: install ok installed\n\nPackage: x\n",
    ),
    "cgroup": (text(_board_probe.unit_of_cgroup), b"0::/edge.slice/edge-moe-server.service\n"),
    "mem_available": (text(_board_probe.parse_mem_available), b"MemAvailable:  123 kB\n"),
    "probe_answer": (probe_answer, PROBE_ANSWER),
}


def damaged(data: bytes, generator: random.Random) -> bytes:
    """One to four of: a bit turned, a stretch cut, repeated or replaced, odd bytes put in, the end lost."""
    made = bytearray(data)
    for _turn in range(generator.randint(1, 4)):
        place = generator.randrange(len(made) + 1)
        end = min(len(made), place + generator.choice((1, 1, 2, 4, 8, 64)))
        kind = generator.randrange(7)
        if kind == 0 and place < len(made):
            made[place] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del made[place:end]
        elif kind == 2:
            made[place:place] = made[place:end] * generator.choice((1, 3, 200))
        elif kind == 3:
            made[place:end] = generator.choice((b"\xff" * 8, b"\0" * 8, b"9" * 40, b"-1", b"1e999", b"\xf0\x9f\xa6"))
        elif kind == 4:
            made[place:place] = generator.choice((b"\n", b"\r\n", b"\x1b[2J", b"}", b'"', b"[[", b"=", b"\t", b" "))
        elif kind == 5:
            del made[place:]
        else:
            made[place:end] = generator.randbytes(end - place)
    return bytes(made)


@pytest.mark.parametrize("name", PARSERS)
def test_damage_is_taken_calmly(name: str) -> None:
    parser, good = PARSERS[name]
    generator = random.Random(f"{SEED}-{name}")
    assert parser(good) not in (None, {}, [], (None, None, None)), "the good input must be understood"
    for number in range(ROUNDS):
        data = damaged(good, generator)
        began = time.process_time()
        try:
            parser(data)
        except Exception as error:
            raise AssertionError(f"round {number} of {name}: {data!r}") from error
        assert time.process_time() - began < 0.5, data


@pytest.mark.parametrize("name", PARSERS)
def test_much_of_it_takes_neither_long_nor_much_memory(name: str) -> None:
    parser, good = PARSERS[name]
    data = (good + b"\n") * (64 * 1024 // len(good))
    tracemalloc.start()
    began = time.process_time()
    parser(data)
    spent, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert spent < 2
    assert peak < 16 * MIB


def test_odd_measurements_never_stop_a_plan() -> None:
    generator = random.Random(SEED)
    odd = [None, -1, 0, 1e308, float("nan"), float("inf"), "7", "x", [], {}, True, 3.5]
    for _turn in range(500):
        keys = ("decode_tokens_per_s", "mib_per_token", "path")
        entries = [{key: generator.choice(odd) for key in keys} for _turn in range(generator.randrange(5))]
        points = _estimate.points_of(entries)
        estimate = _estimate.estimate("cache", 100.0, 2000.0, True, None, points)
        assert estimate["sentence"]
