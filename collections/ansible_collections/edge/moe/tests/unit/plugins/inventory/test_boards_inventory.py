# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory plugin as ansible-inventory runs it, against OpenSSH servers on loopback addresses.

OpenSSH's server comes from Debian's packages and runs as a normal user (edge_moe_testbed.openssh). Where it cannot run,
these tests fail and say why. What no honest server does is done by plain sockets beside it.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
from ansible_collections.edge.moe.plugins.module_utils import _boards
from ansible_collections.edge.moe.plugins.plugin_utils import _ssh_probe, _targets

pytest.importorskip("edge_moe_testbed", reason="needs the project's test bed, which no archive holds")
from edge_moe_testbed import record
from edge_moe_testbed.common import run_inventory
from edge_moe_testbed.sshfleet import USER, Board, Fleet, new_key, running

NANO, AGX, PI, DEAD = "127.0.7.1", "127.0.7.2", "127.0.7.3", "127.0.7.9"
WRONG_KEY, NEW_KEY, ODD = "127.0.7.4", "127.0.7.5", "127.0.7.6"
MUTE, SLOW, FULL = "127.0.7.7", "127.0.7.8", "127.0.7.10"
BOARDS = {
    NANO: Board(),
    AGX: record.AGX,
    PI: record.NO_JETSON,
    WRONG_KEY: Board(),
    NEW_KEY: Board(),
    ODD: Board(instead="head -c 200000 /dev/zero | tr '\\0' x"),
}
OPTIONS: dict[str, Any] = {
    "timeout": 4,
    "connect_timeout": 2,
    "groups": {"old": "edge_moe_probe.l4t is version('36.5.0', '<')"},
    "compose": {"shelf": "'left' if edge_moe_probe.jetson else 'right'"},
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running(BOARDS, tmp_path_factory.mktemp("fleet")) as made:
        made.know(wrong=frozenset({WRONG_KEY}), unknown=frozenset({NEW_KEY}))
        yield made


def drip(listener: socket.socket) -> None:
    """A greeting of SSH that never ends, a byte at a time, to whoever connects until the listener is closed."""
    with contextlib.suppress(OSError):
        while True:
            connection, _peer = listener.accept()
            with contextlib.suppress(OSError), connection:
                while True:
                    connection.sendall(b"S")
                    time.sleep(0.1)


@pytest.fixture
def hostile(fleet: Fleet) -> Iterator[None]:
    """Three that are no SSH server: one says nothing, one says a byte at a time, one takes no connection."""
    with contextlib.ExitStack() as stack:
        made = {address: stack.enter_context(socket.create_server((address, fleet.port))) for address in (MUTE, SLOW)}
        full = stack.enter_context(socket.create_server((FULL, fleet.port), backlog=0))
        # Linux keeps one connection beyond the backlog that nobody accepts, and lets further ones wait.
        stack.enter_context(socket.create_connection(full.getsockname()))
        thread = threading.Thread(target=drip, args=(made[SLOW],), daemon=True)
        thread.start()
        yield
        made[SLOW].shutdown(socket.SHUT_RDWR)
        thread.join()


def listing(source: Path, *arguments: str) -> dict[str, Any]:
    """What ansible-inventory lists; a value that may not be templated is marked there, which is taken off here."""

    def plain(entry: dict[str, Any]) -> Any:
        return entry.get("__ansible_unsafe", entry)

    done = run_inventory(source, "--list", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout, object_hook=plain)
    return found


def members(listed: dict[str, Any]) -> dict[str, list[str]]:
    return {group: sorted(entry["hosts"]) for group, entry in listed.items() if "hosts" in entry}


@pytest.mark.usefixtures("hostile")
def test_groups_and_a_reason_for_each_that_gave_no_answer(fleet: Fleet) -> None:
    (fleet.folder / "host_vars").mkdir()
    (fleet.folder / "host_vars" / "nano.yml").write_text("ansible_user: someone\n")
    hosts = [{"name": "nano", "address": NANO}, "127.0.7.2-10"]
    listed = listing(record.boards_source(fleet, hosts, **OPTIONS))
    assert members(listed) == {
        "jetson": [AGX, "nano"],
        "orin_nano_8gb": ["nano"],
        "agx_orin_64gb": [AGX],
        "l4t_36_4_7": [AGX, "nano"],
        "memory_8gb": ["nano"],
        "memory_64gb": [AGX],
        "other": [PI],
        "old": [AGX, "nano"],
        "unreachable": sorted([WRONG_KEY, NEW_KEY, ODD, MUTE, SLOW, FULL, DEAD]),
    }
    variables = listed["_meta"]["hostvars"]
    assert variables["nano"]["ansible_host"] == NANO
    assert variables["nano"]["ansible_user"] == "someone"
    assert (variables["nano"]["shelf"], variables[PI]["shelf"]) == ("left", "right")
    assert variables[AGX]["ansible_user"] == USER
    said = {name: variables[name]["edge_moe_probe"]["reason"] for name in listed["unreachable"]["hosts"]}
    assert "no SSH server listens there" in said[DEAD]
    assert "known_hosts has ssh-ed25519 SHA256:" in said[WRONG_KEY]
    assert "is not known" in said[NEW_KEY]
    assert "not that of the probe, it says 'xxx" in said[ODD]
    assert "did not finish its answer within 4 s" in said[MUTE]
    assert "did not finish its answer within 4 s" in said[SLOW]
    assert "does not answer within 2 s" in said[FULL]
    # each board once, and nothing but the one command
    assert fleet.connections() == Counter(list(BOARDS))
    # a refused host key ends before anybody logs in
    assert fleet.commands() == {address: ["-c sh -s"] for address in (NANO, AGX, PI, ODD)}


def test_the_probe_finds_in_files_what_other_tests_take_for_its_answer(fleet: Fleet) -> None:
    listed = listing(record.boards_source(fleet, [NANO, PI]))
    for address in (NANO, PI):
        facts = listed["_meta"]["hostvars"][address]["edge_moe_probe"]
        assert facts == {"reachable": True, "reason": None, **_boards.parse_answer(BOARDS[address].answer())}


def test_a_cache_asks_only_those_that_have_not_answered(fleet: Fleet) -> None:
    cache = {
        "cache": True,
        "cache_plugin": "ansible.builtin.jsonfile",
        "cache_connection": str(fleet.folder / "cache"),
        "cache_timeout": 3600,
    }
    source = record.boards_source(fleet, [NANO, AGX, DEAD], **cache)
    first = listing(source)
    before = fleet.connections()
    assert listing(source) == first
    assert fleet.connections() == before
    # a further host in the file is asked, and only it
    listing(record.boards_source(fleet, [NANO, AGX, PI], **cache))
    assert fleet.connections() - before == Counter([PI])
    listing(source, "--flush-cache")
    assert fleet.connections() - before == Counter([NANO, AGX, PI, PI])


def test_64_boards_within_20_seconds(tmp_path: Path) -> None:
    boards = {f"127.0.8.{number}": record.AGX if number % 2 else Board() for number in range(1, 65)}
    with running(boards, tmp_path) as fleet:
        source = record.boards_source(fleet, ["127.0.8.0/24"], exclude=["127.0.8.65-255"])
        started = time.monotonic()
        listed = listing(source)
        elapsed = time.monotonic() - started
        assert fleet.connections() == Counter(list(boards))
    print(f"64 boards, each an OpenSSH server of its own: {elapsed:.1f} s with Ansible's own start")
    assert [len(members(listed)[group]) for group in ("jetson", "orin_nano_8gb", "agx_orin_64gb")] == [64, 32, 32]
    assert "unreachable" not in listed
    assert elapsed < 20


def test_no_more_are_asked_at_once_than_is_said() -> None:
    in_flight: list[int] = []
    open_now: set[str] = set()

    def ask(target: _targets.Target, _access: _ssh_probe.Access) -> dict[str, Any]:
        open_now.add(target.name)
        in_flight.append(len(open_now))
        time.sleep(0.02)
        open_now.discard(target.name)
        return {"name": target.name}

    targets = _targets.expand(["192.0.2.1-64"])
    answers = _ssh_probe.probe_all(targets, _ssh_probe.Access((), (), False, 1, 1), at_once=8, ask=ask)
    assert list(answers) == [target.name for target in targets]
    assert 2 <= max(in_flight) <= 8


def test_a_stranger_is_not_let_in(fleet: Fleet, tmp_path: Path) -> None:
    new_key(tmp_path / "stranger")
    source = record.boards_source(fleet, [NANO], private_key_file=str(tmp_path / "stranger"))
    answer = listing(source)["_meta"]["hostvars"][NANO]["edge_moe_probe"]
    assert answer["reachable"] is False
    assert f"does not let {USER} in" in answer["reason"]


def test_a_slip_in_the_file_is_told(fleet: Fleet) -> None:
    before = fleet.connections()
    done = run_inventory(record.boards_source(fleet, ["10.0.0.0/8"]), "--list")
    assert done.returncode != 0
    assert "16777216 addresses and at most 1024" in " ".join(done.stderr.split())
    assert fleet.connections() == before


def test_the_page_shows_what_is_printed() -> None:
    def lasting(text: str) -> str:
        """Without the ports and keys of one run, and without the breaks that their lengths move."""
        return " ".join(re.sub(r"port \d+|SHA256:\S{43}", "...", text).split())

    recorded = (record.OUTPUT / "boards.txt").read_text()
    assert lasting(recorded) == lasting(record.boards()), "run: python -m edge_moe_testbed record boards"


def test_what_ends_before_it_has_read_the_probe_is_heard_all_the_same(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an account that is locked does. Its end is waited for before anything is sent."""
    send = paramiko.Channel.sendall

    def late(channel: paramiko.Channel, data: bytes) -> None:
        ends = time.monotonic() + 10
        while not channel.closed and time.monotonic() < ends:
            time.sleep(0.01)
        assert channel.closed
        send(channel, data)

    monkeypatch.setattr(paramiko.Channel, "sendall", late)
    target = _targets.Target("odd", ODD, fleet.port, USER)
    access = _ssh_probe.Access((str(fleet.known_hosts),), (str(fleet.folder / "user_key"),), False, 10, 20)
    assert "not that of the probe, it says 'xxx" in _ssh_probe.probe(target, access)["reason"]
