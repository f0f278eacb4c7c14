# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _expert_cache
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from hypothesis import given
from hypothesis import strategies as st

NOW = 1795957260.0


def prom(
    pid: int = 41,
    mode: str = "cache",
    reason: str = "",
    hits: int = 6000,
    misses: int = 3000,
    tokens: int = 140,
    prefill_hits: int = 10,
    cycles: float = 3.5,
    errors: int = 0,
    updated: float = NOW - 2.5,
    read: int = 12345678901,
    stall: float = 4.25,
) -> str:
    return f"""\
edge_moe_cache_info{{pid="{pid}",mode="{mode}",reason="{reason}",policy="lru",engine="pread",direct="1"}} 1
edge_moe_cache_asked_bytes{{pid="{pid}"}} 268435456
edge_moe_cache_delivered_bytes{{pid="{pid}"}} 264241152
edge_moe_cache_slots{{pid="{pid}"}} 336
edge_moe_cache_cycle_bytes{{pid="{pid}"}} 50331648
edge_moe_cache_cycles{{pid="{pid}"}} {cycles}
edge_moe_cache_hits_total{{pid="{pid}",phase="decode"}} {hits}
edge_moe_cache_hits_total{{pid="{pid}",phase="prefill"}} {prefill_hits}
edge_moe_cache_misses_total{{pid="{pid}",phase="decode"}} {misses}
edge_moe_cache_misses_total{{pid="{pid}",phase="prefill"}} 0
edge_moe_cache_bypass_total{{pid="{pid}",phase="decode"}} 0
edge_moe_cache_bypass_total{{pid="{pid}",phase="prefill"}} 12
edge_moe_cache_decode_tokens_total{{pid="{pid}"}} {tokens}
edge_moe_cache_read_bytes_total{{pid="{pid}"}} {read}
edge_moe_cache_read_seconds_total{{pid="{pid}"}} 9.5
edge_moe_cache_stall_seconds_total{{pid="{pid}"}} {stall}
edge_moe_cache_evictions_total{{pid="{pid}"}} 2000
edge_moe_cache_errors_total{{pid="{pid}"}} {errors}
edge_moe_cache_updated_timestamp_seconds{{pid="{pid}"}} {updated}
"""


@pytest.mark.parametrize(
    ("change", "verdict", "says"),
    [
        ({}, "healthy", "67% hits over 9000 lookups of 140 decoded tokens"),
        ({"tokens": 0, "hits": 0, "misses": 0}, "healthy", "no token has been decoded yet"),
        ({"tokens": 0, "hits": 0, "misses": 0, "prefill_hits": 0}, "inert", "send a request"),
        ({"tokens": 9, "hits": 0, "misses": 0}, "inert", "9 tokens were decoded"),
        ({"mode": "mmap", "reason": "EDGE_MOE_CACHE_MIB is 0"}, "off", "EDGE_MOE_CACHE_MIB is 0"),
        ({"mode": "mmap", "reason": "16 MiB asked is below one token cycle (24 MiB)"}, "below_cycle", "at least two"),
        ({"cycles": 0.75}, "below_cycle", "0.75 token cycles"),
        ({"hits": 100, "misses": 8000}, "thrashing", "1% hits"),
        ({"hits": 1, "misses": 80}, "healthy", "81 lookups"),
    ],
)
def test_each_verdict(make_host: Callable[..., Host], change: dict[str, Any], verdict: str, says: str) -> None:
    host = make_host({"/run/edge-moe/cache-41.prom": prom(**change), "/proc/41/stat": ""})
    facts = _expert_cache.gather(host, NOW)
    assert facts["verdict"] == verdict
    assert says in facts["explanation"]
    assert facts["servers"][0]["updated_s_ago"] == 2.5


def test_the_counters_have_their_names(make_host: Callable[..., Host]) -> None:
    host = make_host({"/run/edge-moe/cache-41.prom": prom(), "/proc/41/stat": ""})
    server = _expert_cache.gather(host, NOW)["servers"][0]
    assert server["running"] is True
    assert server["hits"] == {"decode": 6000, "prefill": 10}
    assert server["bypass"] == {"decode": 0, "prefill": 12}
    assert server["read_bytes"] == 12345678901
    assert server["stall_seconds"] == 4.25
    assert server["direct"] is True
    assert server["asked_bytes"] == 268435456


def test_a_dead_server_is_stale_and_does_not_hide_a_living_one(make_host: Callable[..., Host]) -> None:
    host = make_host({"/run/edge-moe/cache-40.prom": prom(pid=40)})
    assert _expert_cache.gather(host, NOW)["verdict"] == "stale"
    host = make_host({"/run/edge-moe/cache-41.prom": prom(), "/proc/41/stat": ""})
    facts = _expert_cache.gather(host, NOW)
    assert facts["verdict"] == "healthy"
    assert [server["verdict"] for server in facts["servers"]] == ["stale", "healthy"]


def test_the_worst_running_server_speaks(make_host: Callable[..., Host]) -> None:
    host = make_host(
        {
            "/run/edge-moe/cache-41.prom": prom(),
            "/run/edge-moe/cache-42.prom": prom(pid=42, hits=0, misses=0, tokens=5),
            "/proc/41/stat": "",
            "/proc/42/stat": "",
        }
    )
    facts = _expert_cache.gather(host, NOW)
    assert facts["verdict"] == "inert"
    assert facts["explanation"].startswith("process 42:")


def test_no_server(make_host: Callable[..., Host]) -> None:
    facts = _expert_cache.gather(make_host({"/run/edge-moe/clock-floor.prom": "", "/run/edge-moe/cache-x.prom": ""}))
    assert facts["servers"] == []
    assert facts["verdict"] == "off"
    assert "/run/edge-moe" in facts["explanation"]


def test_failed_reads_warn(make_host: Callable[..., Host]) -> None:
    host = make_host({"/run/edge-moe/cache-41.prom": prom(errors=3), "/proc/41/stat": ""})
    assert _expert_cache.gather(host, NOW)["warnings"] == ["process 41: 3 reads failed"]


def test_a_flood_of_files_is_bounded(make_host: Callable[..., Host]) -> None:
    host = make_host({f"/run/edge-moe/cache-{pid}.prom": "" for pid in range(100, 200)})
    facts = _expert_cache.gather(host, NOW)
    assert len(facts["servers"]) == _expert_cache.MAX_FILES
    assert "100 health files" in facts["warnings"][0]


def test_what_happened_between_two_looks(make_host: Callable[..., Host]) -> None:
    first = _expert_cache.gather(make_host({"/run/edge-moe/cache-41.prom": prom(), "/proc/41/stat": ""}), NOW)
    assert first["servers"][0]["since_earlier"] is None
    assert first["servers"][0]["hit_share"] == 0.667
    assert first["servers"][0]["bytes_per_token"] == 88183421
    later = prom(hits=6900, misses=3100, tokens=150, updated=NOW + 7.5, read=12345678901 + 80_000_000, stall=9.25)
    host = make_host({"/run/edge-moe/cache-41.prom": later})
    change = _expert_cache.gather(host, NOW + 10, first)["servers"][0]["since_earlier"]
    assert change == {
        "seconds": 10.0,
        "decode_tokens": 10,
        "hits": {"decode": 900, "prefill": 0},
        "misses": {"decode": 100, "prefill": 0},
        "read_bytes": 80_000_000,
        "errors": 0,
        "hit_share": 0.9,
        "bytes_per_token": 8_000_000,
        "stall_share": 0.5,
    }


@pytest.mark.parametrize(
    "earlier",
    [
        {"servers": [{"pid": 42, "updated": NOW - 60}]},
        {"servers": [{"pid": 41, "updated": NOW - 60, "decode_tokens": 9999}]},
        {"servers": [{"pid": 41, "updated": None}]},
        {"servers": ["odd"]},
        {"servers": None},
        {},
    ],
)
def test_another_process_has_no_change(make_host: Callable[..., Host], earlier: dict[str, Any]) -> None:
    host = make_host({"/run/edge-moe/cache-41.prom": prom(), "/proc/41/stat": ""})
    assert _expert_cache.gather(host, NOW, earlier)["servers"][0]["since_earlier"] is None


@pytest.mark.parametrize(("start_s", "verdict"), [(-600, "healthy"), (60, "stale")])
def test_a_number_given_to_another_process_is_no_server(
    make_host: Callable[..., Host], start_s: int, verdict: str
) -> None:
    boot = int(NOW) - 1000
    ticks = (1000 + start_s) * 100
    files = {
        "/run/edge-moe/cache-41.prom": prom(),
        "/proc/41/stat": f"41 (a ) b) S {' '.join(['1'] * 18)} {ticks} 0 0\n",
        "/proc/stat": f"cpu 1 2 3\nbtime {boot}\n",
    }
    assert _expert_cache.gather(make_host(files), NOW)["verdict"] == verdict


@given(st.text(max_size=500))
def test_any_text_is_judged(text: str) -> None:
    server = _expert_cache.server_from_text(text, 1)
    verdict, explanation = _expert_cache.judge(server, True)
    assert verdict in _expert_cache.SEVERITY
    assert explanation
