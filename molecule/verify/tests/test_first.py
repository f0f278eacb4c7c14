# SPDX-License-Identifier: GPL-3.0-or-later
"""What is kept on the controller of a board that was measured twice, and what is left on the board."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "results"
NAME = "box-verify"


def kept() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{NAME}.json").read_text())
    return result


def test_served_text_is_that_of_the_stock_path(host: Any) -> None:
    result = kept()
    assert result["verdict"]["text_equal"] is True
    assert [request["id"] for request in result["served"]["requests"]] == ["ko-1", "en-1"]
    assert all(request["n_decoded"] == 8 for request in result["served"]["requests"])
    assert result["reference"]["unit"] == "edge-moe-reference.service"


def test_cache_did_the_work_and_the_reference_had_none(host: Any) -> None:
    result = kept()
    assert result["served"]["cache_info"]["mode"] == "cache"
    assert result["verdict"]["hit_share"] > 0
    assert result["reference"]["cache_info"]["mode"] != "cache"


def test_board_passes_where_the_kernel_can_limit_swap(host: Any) -> None:
    limits = "memory" in host.file("/sys/fs/cgroup/cgroup.controllers").content_string.split()
    verdict = kept()["verdict"]
    assert verdict["passed"] is limits
    assert [failure["class"] for failure in verdict["failures"]] == ([] if limits else ["swap_not_off"])


def test_result_says_of_what_it_is(host: Any) -> None:
    result = kept()
    assert result["host"] == NAME
    assert host.check_output("readlink /opt/edge-moe/llama.cpp/current") == f"releases/{result['release']}"
    assert host.check_output("sha256sum /var/lib/edge-moe/models/tiny-moe.gguf").split()[0] == result["model_sha256"]


def test_reference_was_measured_once_and_what_is_served_each_time(host: Any) -> None:
    assert len(list(RESULTS.glob(f"reference-{NAME}-*.json"))) == 1
    history = sorted((RESULTS / "history" / NAME).iterdir())
    assert len(history) == 2
    assert history[-1].read_text() == (RESULTS / f"{NAME}.json").read_text()


def test_server_serves_and_the_reference_does_not(host: Any) -> None:
    assert host.service("edge-moe-server.service").is_running
    assert not host.service("edge-moe-reference.service").is_running


def test_one_file_is_left_on_the_board(host: Any) -> None:
    measurement = host.file("/run/edge-moe-measurement.json")
    assert (measurement.user, measurement.group) == ("root", "root")
    assert json.loads(measurement.content_string)["unit"] == "edge-moe-server.service"
