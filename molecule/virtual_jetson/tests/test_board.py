# SPDX-License-Identifier: GPL-3.0-or-later
"""What only a real kernel shows: clocks, probes, swap and streaming on the converged virtual board."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

SERVER = "edge-moe-server.service"
FLOOR = "edge-moe-clock-floor.service"
LOWEST, HIGHEST = 306_000_000, 1_020_000_000
MIN_FREQ = "/sys/class/devfreq/17000000.gpu/min_freq"
DENSE_PORT = 8091
DENSE_UNIT = "edge-moe-dense-control.service"

Decode = Callable[..., dict[str, Any]]


def show(host: Any, unit: str, name: str) -> str:
    return str(host.check_output("systemctl show --value -p %s %s", name, unit)).strip()


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.2)
    return False


@pytest.mark.parametrize("unit", [SERVER, FLOOR])
def test_unit_is_active_and_comes_back_after_a_boot(host: Any, unit: str) -> None:
    assert host.service(unit).is_running
    assert host.service(unit).is_enabled


def test_reference_is_installed_but_neither_runs_nor_boots(host: Any) -> None:
    reference = host.service("edge-moe-reference.service")
    assert reference.exists
    assert not reference.is_running
    assert show(host, "edge-moe-reference.service", "UnitFileState") == "static"


def test_server_cannot_swap_while_the_board_does(host: Any) -> None:
    assert "zram" in host.file("/proc/swaps").content_string
    group = show(host, SERVER, "ControlGroup")
    assert group.startswith("/edge.slice/edge-moe.slice/")
    assert host.file(f"/sys/fs/cgroup{group}/memory.swap.max").content_string.strip() == "0"


def test_edge_moe_run_puts_a_command_where_it_cannot_swap(host: Any) -> None:
    script = 'group=$(cut -d: -f3 /proc/self/cgroup); echo "$group"; cat "/sys/fs/cgroup$group/memory.swap.max"'
    group, swap_max = host.check_output("/usr/local/bin/edge-moe-run sh -c %s", script).split()
    assert group.startswith("/edge.slice/edge-moe.slice/")
    assert swap_max == "0"


def test_model_is_larger_than_the_memory(host: Any) -> None:
    memory = int(host.check_output("awk '/^MemTotal/ {print $2}' /proc/meminfo")) * 1024
    assert host.file("/mnt/nvme/models/demo-moe.gguf").size > memory


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("User", "edge-moe"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("MemorySwapMax", "0"),
        ("Slice", "edge-moe.slice"),
        ("CapabilityBoundingSet", ""),
    ],
)
def test_server_is_fenced_in(host: Any, name: str, value: str) -> None:
    assert show(host, SERVER, name) == value


def test_server_listens_on_loopback_alone(host: Any) -> None:
    listening = [line for line in host.socket.get_listening_sockets() if line.endswith(":8080")]
    assert listening == ["tcp://127.0.0.1:8080"]


def test_clock_is_up_while_decoding_and_down_within_three_seconds(decode: Decode) -> None:
    clock = decode(n_predict=32, after_s=3.0)
    assert clock["decoded"] == 32
    assert clock["before"] == LOWEST
    assert max(clock["during"]) == HIGHEST
    assert clock["during"].count(HIGHEST) > len(clock["during"]) / 2
    assert clock["after"] == LOWEST


def test_clock_is_restored_after_the_service_is_killed(host: Any, decode: Decode) -> None:
    request = (
        "import json,urllib.request as u;u.urlopen(u.Request('http://127.0.0.1:8080/completion',"
        "json.dumps({'prompt':'Once','n_predict':200,'ignore_eos':True}).encode(),"
        "{'Content-Type':'application/json'}),timeout=600).read()"
    )
    host.check_output("systemd-run --quiet --unit=edge-moe-test-load --collect python3 -c %s", request)
    try:
        # the test would prove nothing if the floor were not up when the service dies
        assert wait_for(lambda: host.file(MIN_FREQ).content_string.strip() == str(HIGHEST), 30)
        host.check_output("kill -9 %s", show(host, FLOOR, "MainPID"))
        host.check_output("systemctl stop edge-moe-test-load")
        assert wait_for(lambda: host.file(MIN_FREQ).content_string.strip() != str(HIGHEST), 15)
        assert wait_for(lambda: show(host, FLOOR, "ActiveState") == "active", 30)
        assert int(show(host, FLOOR, "NRestarts")) >= 1
    finally:
        host.run("systemctl stop edge-moe-test-load")
    # the one that came back works, and still knows the value to go back to
    clock = decode(n_predict=16, after_s=3.0)
    assert max(clock["during"]) == HIGHEST
    assert clock["after"] == LOWEST


@pytest.fixture
def dense_server(host: Any) -> Iterator[str]:
    """A llama-server with the dense control model and the plan's arguments for it, with a cache asked for in vain."""
    arguments = json.loads(os.environ["EDGE_MOE_DENSE_ARGS"])
    command = ["/opt/edge-moe/llama.cpp/current/bin/llama-server", "--model", os.environ["EDGE_MOE_DENSE_MODEL"]]
    command += ["--host", "127.0.0.1", "--port", str(DENSE_PORT), *arguments]
    # memory is meant to be short here: two servers at once would only show that
    host.check_output("systemctl stop %s", SERVER)
    start = "systemd-run --quiet --collect --unit=%s --slice=edge-moe.slice --setenv=EDGE_MOE_CACHE_MIB=64 "
    try:
        host.check_output(start + " ".join(["%s"] * len(command)), DENSE_UNIT, *command)
        health = f"python3 -c \"import urllib.request as u;u.urlopen('http://127.0.0.1:{DENSE_PORT}/health')\""
        assert wait_for(lambda: host.run(health).rc == 0, 120), host.run("journalctl -n 30 -u %s", DENSE_UNIT).stdout
        yield DENSE_UNIT
    finally:
        host.run("systemctl stop %s", DENSE_UNIT)
        host.check_output("systemctl start %s", SERVER)


def test_dense_control_starts_neither_cache_nor_floor(host: Any, decode: Decode, dense_server: str) -> None:
    clock = decode(port=DENSE_PORT, n_predict=8, after_s=0.5)
    assert clock["decoded"] == 8
    assert set(clock["during"]) == {LOWEST}
    assert clock["after"] == LOWEST
    log = host.check_output("journalctl --output=cat -u %s", dense_server)
    said = [line for line in log.splitlines() if "edge-moe: cache" in line]
    assert len(said) == 1
    assert said[0].endswith("edge-moe: cache off: the model has no experts")
