# SPDX-License-Identifier: GPL-3.0-or-later
"""The server's environment, its arguments and a real answer, after other settings and everything that was refused."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

SERVER = "edge-moe-server.service"
PORT = 18161
ASK = """
import json, sys, urllib.request
url, body = sys.argv[1], sys.argv[2].encode() or None
request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
print(json.dumps(json.load(urllib.request.urlopen(request, timeout=60))))
"""


def show(host: Any, unit: str, name: str) -> str:
    return str(host.check_output("systemctl show --value -p %s %s", name, unit)).strip()


def ask(host: Any, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    url = f"http://127.0.0.1:{PORT}{path}"
    given = json.dumps(body) if body else ""
    answer: dict[str, Any] = json.loads(host.check_output("python3 -c %s %s %s", ASK, url, given))
    return answer


def wait_until_healthy(host: Any) -> None:
    deadline = time.monotonic() + 30
    while host.run("python3 -c %s %s ''", ASK, f"http://127.0.0.1:{PORT}/health").rc != 0:
        assert time.monotonic() < deadline, host.run("journalctl -n 30 -u %s", SERVER).stdout
        time.sleep(0.2)


def test_environment_names_release_model_and_settings(host: Any) -> None:
    stamp = host.check_output("readlink /opt/edge-moe/llama.cpp/current").removeprefix("releases/")
    digest = host.check_output("sha256sum /var/lib/edge-moe/models/tiny-moe.gguf").split()[0]
    lines = host.file("/etc/edge-moe/server.env").content_string.splitlines()
    assert f"# release {stamp}" in lines
    assert f"# model {digest}" in lines
    assert "EDGE_MOE_CACHE_MIB=2" in lines
    assert "EDGE_MOE_LOOKAHEAD=0" in lines
    assert "EDGE_MOE_STATS_DIR=/run/edge-moe" in lines


def test_server_is_of_the_current_release_and_has_every_argument(host: Any) -> None:
    words = host.file(f"/proc/{show(host, SERVER, 'MainPID')}/cmdline").content_string.split("\0")
    assert words[0] == "/opt/edge-moe/llama.cpp/current/bin/llama-server"
    after = dict(itertools.pairwise(words))
    assert after["--model"] == "/var/lib/edge-moe/models/tiny-moe.gguf"
    assert after["--port"] == str(PORT)
    assert after["--alias"] == "a name of 100 %"
    assert (after["-t"], after["-c"]) == ("2", "2048")
    assert "--cpu-moe" in words


def test_server_listens_on_loopback_alone_and_no_more_on_the_first_port(host: Any) -> None:
    listening = host.check_output("awk %s /proc/net/tcp /proc/net/tcp6", '$4 == "0A" {print $2}').split()
    ours = [address for address in listening if int(address.partition(":")[2], 16) in (PORT, PORT - 1)]
    assert ours == [f"0100007F:{PORT:04X}"]


def test_server_goes_by_its_new_name(host: Any) -> None:
    assert [model["id"] for model in ask(host, "/v1/models")["data"]] == ["a name of 100 %"]


def test_answers_come_out_of_the_cache(host: Any) -> None:
    asked = {"prompt": "Why does a river bend?", "n_predict": 8, "temperature": 0, "ignore_eos": True}
    answer = ask(host, "/completion", asked)
    assert answer["tokens_predicted"] == 8
    time.sleep(1.5)  # the health file is written once a second
    health = host.file(f"/run/edge-moe/cache-{show(host, SERVER, 'MainPID')}.prom")
    assert (health.user, health.group) == ("edge-moe", "edge-moe")
    hits = [line for line in health.content_string.splitlines() if line.startswith("edge_moe_cache_hits_total")]
    assert sum(float(line.split()[-1]) for line in hits) > 0


def test_a_killed_server_comes_back(host: Any) -> None:
    before = show(host, SERVER, "MainPID")
    host.check_output("systemctl kill --signal=KILL %s", SERVER)
    time.sleep(2.2)  # RestartSec
    wait_until_healthy(host)
    assert show(host, SERVER, "MainPID") not in (before, "0")
