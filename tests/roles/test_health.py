# SPDX-License-Identifier: GPL-3.0-or-later
"""The health playbook against pretended boards: trees of literal files on this machine, and one that is off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import PROJECT, Playbook

SYSFS = PROJECT / "collections/ansible_collections/edge/moe/tests/unit/fixtures/sysfs"
WELL = {"edge_moe_health_root": str(SYSFS / "orin-nano-super")}
PINNED = {"edge_moe_health_root": str(SYSFS / "orin-nano-jetson-clocks")}
OFF = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


def health(playbook: Playbook, hosts: dict[str, dict[str, Any]], *arguments: str) -> Any:
    return playbook.run_book("playbooks/health.yml", hosts, ("-e", "edge_moe_health_become=false", *arguments))


def test_boards_that_are_well_end_with_zero(playbook: Playbook) -> None:
    played = health(playbook, {"one": WELL, "two": WELL})
    assert played.rc == 0, played.text
    lines = [line.split() for line in played.text.splitlines()]
    assert [line[1] for line in lines if line[:1] in (["one"], ["two"]) and len(line) > 6 and line[1] == "ok"] == [
        "ok",
        "ok",
    ]


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_one_that_is_pinned_and_one_that_is_off_are_named(
    playbook: Playbook, tmp_path: Path, check: tuple[str]
) -> None:
    written = tmp_path / "health.json"
    hosts: dict[str, dict[str, Any]] = {"well": WELL, "pinned": PINNED, "off": OFF}
    played = health(playbook, hosts, "-e", f"edge_moe_health_json={written}", *check)
    assert played.rc != 0
    assert "is pinned at" in played.text
    assert "jetson_clocks --restore" in played.words
    assert "SILENT" in played.text
    assert "2 of 3 boards need a person: " in played.words
    if not check:
        looks = json.loads(written.read_text())
        assert looks["well"]["healthy"] is True
        assert looks["pinned"]["healthy"] is False
        assert looks["off"] is None
