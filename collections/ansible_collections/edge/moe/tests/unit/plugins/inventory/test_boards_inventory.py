# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory plugin as ansible-inventory runs it, against SSH servers on loopback addresses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.edge.moe.plugins.plugin_utils import _ssh_probe, _targets
from edge_moe_testbed.sshfleet import Fleet, board_answer, new_key, running

COLLECTIONS = Path(__file__).parents[7]
NANO, AGX, PI, DEAD = "127.0.7.1", "127.0.7.2", "127.0.7.3", "127.0.7.9"
WRONG_KEY, NEW_KEY, MUTE, ODD = "127.0.7.4", "127.0.7.5", "127.0.7.6", "127.0.7.7"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    answers = dict.fromkeys((NANO, WRONG_KEY, NEW_KEY, MUTE), board_answer())
    answers[AGX] = board_answer("nvidia,p3737-0000+p3701-0005\nnvidia,tegra234", memory_kb=64302332)
    answers[PI] = board_answer("raspberrypi,5-model-b", release="", package="")
    answers[ODD] = b"x" * 200_000
    with running(Fleet(tmp_path, answers, mute=frozenset({MUTE}))) as made:
        made.write_known_hosts(wrong=frozenset({WRONG_KEY}), unknown=frozenset({NEW_KEY}))
        yield made


def run(*arguments: str) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-inventory"), *arguments],
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
            "ANSIBLE_INVENTORY_ENABLED": "edge.moe.boards",
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def listing(source: Path, *arguments: str) -> dict[str, Any]:
    """What ansible-inventory lists; a value that may not be templated is marked there, which is taken off here."""

    def plain(entry: dict[str, Any]) -> Any:
        return entry.get("__ansible_unsafe", entry)

    found: dict[str, Any] = json.loads(run("-i", str(source), "--list", *arguments), object_hook=plain)
    return found


def write(fleet: Fleet, **options: Any) -> Path:
    source = fleet.folder / "fleet.boards.yml"
    settings = {
        "plugin": "edge.moe.boards",
        "hosts": [{"name": "nano", "address": NANO}, "127.0.7.2-7", DEAD],
        "port": fleet.port,
        "user": "jetson",
        "private_key_file": str(fleet.folder / "user_key"),
        "known_hosts": [str(fleet.known_hosts)],
        "timeout": 4,
        "groups": {"old": "edge_moe_probe.l4t is version('36.5.0', '<')"},
        "compose": {"shelf": "'left' if edge_moe_probe.jetson else 'right'"},
    }
    source.write_text(yaml.safe_dump({**settings, **options}))
    return source


def test_groups_and_a_reason_for_each_that_gave_no_answer(fleet: Fleet) -> None:
    (fleet.folder / "host_vars").mkdir()
    (fleet.folder / "host_vars" / "nano.yml").write_text("ansible_user: someone\n")
    listed = listing(write(fleet))
    members = {group: sorted(entry["hosts"]) for group, entry in listed.items() if "hosts" in entry}
    assert members == {
        "jetson": [AGX, "nano"],
        "orin_nano_8gb": ["nano"],
        "agx_orin_64gb": [AGX],
        "l4t_36_4_7": [AGX, "nano"],
        "memory_8gb": ["nano"],
        "memory_64gb": [AGX],
        "other": [PI],
        "old": [AGX, "nano"],
        "unreachable": [WRONG_KEY, NEW_KEY, MUTE, ODD, DEAD],
    }
    variables = listed["_meta"]["hostvars"]
    assert variables["nano"]["ansible_host"] == NANO
    assert variables["nano"]["ansible_user"] == "someone"
    assert (variables["nano"]["shelf"], variables[PI]["shelf"]) == ("left", "right")
    assert variables[AGX]["ansible_user"] == "jetson"
    assert variables["nano"]["edge_moe_probe"]["jetpack"] == "6.2.1"
    said = {name: variables[name]["edge_moe_probe"]["reason"] for name in members["unreachable"]}
    assert "no SSH server listens there" in said[DEAD]
    assert "known_hosts has ssh-ed25519 SHA256:" in said[WRONG_KEY]
    assert "is not known" in said[NEW_KEY]
    assert "did not finish its answer within 4 s" in said[MUTE]
    assert "not that of the probe" in said[ODD]
    # nothing but the named addresses, and nothing but the one command
    assert set(fleet.contacted) == set(fleet.answers)
    assert {command for _address, command in fleet.commands} == {"sh -s"}
    # a refused host key ends before anybody logs in
    assert not {WRONG_KEY, NEW_KEY} & {address for address, _command in fleet.commands}


def test_a_cache_asks_only_those_that_have_not_answered(fleet: Fleet) -> None:
    cache = {
        "cache": True,
        "cache_plugin": "ansible.builtin.jsonfile",
        "cache_connection": str(fleet.folder / "cache"),
        "cache_timeout": 3600,
    }
    source = write(fleet, hosts=[NANO, AGX, DEAD], **cache)
    first = listing(source)
    fleet.contacted.clear()
    assert listing(source) == first
    assert fleet.contacted == []
    # a further host in the file is asked, and only it
    listing(write(fleet, hosts=[NANO, AGX, PI], **cache))
    assert fleet.contacted == [PI]
    listing(source, "--flush-cache")
    assert {NANO, AGX} <= set(fleet.contacted)


def test_64_boards_within_20_seconds_and_eight_at_once(tmp_path: Path) -> None:
    addresses = [f"127.0.8.{number}" for number in range(1, 65)]
    with running(Fleet(tmp_path, dict.fromkeys(addresses, board_answer()), delay_s=0.3)) as fleet:
        fleet.write_known_hosts()
        access = _ssh_probe.Access((str(fleet.known_hosts),), (str(tmp_path / "user_key"),), False, 5, 20)
        targets = _targets.expand(["127.0.8.0/24"], exclude=["127.0.8.65-255"], port=fleet.port, user="jetson")
        in_flight: list[int] = []
        open_now: set[str] = set()

        def counted(target: _targets.Target, access: _ssh_probe.Access) -> dict[str, Any]:
            open_now.add(target.name)
            in_flight.append(len(open_now))
            try:
                return _ssh_probe.probe(target, access)
            finally:
                open_now.discard(target.name)

        started, cpu = time.monotonic(), time.process_time()
        answers = _ssh_probe.probe_all(targets, access, at_once=8, ask=counted)
        elapsed, spent = time.monotonic() - started, time.process_time() - cpu
    assert [answer["reason"] for answer in answers.values()] == [None] * 64
    assert list(answers) == addresses
    assert 2 <= max(in_flight) <= 8
    # On a machine that others keep busy the wall clock says nothing; the servers' half is counted here too.
    assert min(elapsed, spent) < 20


def test_a_stranger_is_not_let_in(fleet: Fleet, tmp_path: Path) -> None:
    new_key(tmp_path / "stranger")
    access = _ssh_probe.Access((str(fleet.known_hosts),), (str(tmp_path / "stranger"),), False, 5, 10)
    answer = _ssh_probe.probe(_targets.Target("nano", NANO, fleet.port, "jetson"), access)
    assert answer["reachable"] is False
    assert "does not let jetson in" in answer["reason"]


def test_a_slip_in_the_file_is_told(fleet: Fleet) -> None:
    with pytest.raises(AssertionError, match="16777216 addresses and at most 1024"):
        run("-i", str(write(fleet, hosts=["10.0.0.0/8"])), "--list")
    assert fleet.contacted == []
