# SPDX-License-Identifier: GPL-3.0-or-later
"""The exporter after a first run: it serves our counters, on loopback alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

DROP_IN = "/etc/systemd/system/prometheus-node-exporter.service.d/edge-moe.conf"

# of two servers, as each writes it
COUNTERS = """# HELP edge_moe_cache_hits_total Lookups of an expert of a layer for a batch that found it.
# TYPE edge_moe_cache_hits_total counter
edge_moe_cache_hits_total{pid="%d",phase="decode"} %d
"""


def test_drop_in_is_root_s(host: Any) -> None:
    file = host.file(DROP_IN)
    assert (file.user, file.group, file.mode) == ("root", "root", 0o644)


def test_it_runs_now_and_after_a_boot_as_the_package_s_user(host: Any) -> None:
    service = host.service("prometheus-node-exporter")
    assert service.is_running
    assert service.is_enabled
    assert {process.user for process in host.process.filter(comm="prometheus-node")} == {"prometheus"}


def test_it_listens_on_loopback_alone(listens: list[str]) -> None:
    assert listens == ["127.0.0.1:18180"]


def test_it_serves_what_cache_and_clock_floor_write(host: Any, metrics: Callable[[str], list[str]]) -> None:
    for pid, hits in ((7, 41), (8, 42)):
        host.check_output("printf %%s %s > %s", COUNTERS % (pid, hits), f"/run/edge-moe/cache-{pid}.prom")
    served = metrics("127.0.0.1:18180")
    ours = [line for line in served if line.startswith("edge_moe_cache_hits_total")]
    assert ours == [
        f'edge_moe_cache_hits_total{{phase="decode",pid="{pid}"}} {hits}' for pid, hits in ((7, 41), (8, 42))
    ]
    assert "node_textfile_scrape_error 0" in served
    assert any(line.startswith("node_load1 ") for line in served)


def test_package_is_noted_as_added(host: Any) -> None:
    snapshot = json.loads(host.file("/var/lib/edge-moe/snapshot.json").content_string)
    assert "prometheus-node-exporter" in snapshot["added"]
