# SPDX-License-Identifier: GPL-3.0-or-later
"""The exporter elsewhere, with an option of the board's own, after all that was refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DROP_IN = "/etc/systemd/system/prometheus-node-exporter.service.d/edge-moe.conf"


def test_it_listens_there_alone(listens: list[str]) -> None:
    assert listens == ["127.0.0.2:18181"]


def test_options_of_the_board_s_own_hold(metrics: Callable[[str], list[str]]) -> None:
    served = metrics("127.0.0.2:18181")
    assert "node_textfile_scrape_error 0" in served
    assert not any(line.startswith("node_load1 ") for line in served)


def test_one_exporter_that_was_taken_over_has_the_drop_in_again(host: Any) -> None:
    assert "--collector.textfile.directory=/run/edge-moe " in host.file(DROP_IN).content_string
