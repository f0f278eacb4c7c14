# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers of the tests that run on the converged virtual board."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

# Runs on the board: one completion in a thread, and beside it samples of the GPU's clock, 20 a second.
PROBE = r"""
import json, sys, threading, time, urllib.request
port, n_predict, after_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
GPU = "/sys/class/devfreq/17000000.gpu/"
def read(name):
    with open(GPU + name) as file:
        return int(file.read())
answer = {}
def ask():
    body = {"prompt": "Why does a river bend?", "n_predict": n_predict, "temperature": 0,
            "cache_prompt": False, "ignore_eos": True}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        answer.update(json.load(reply))
before = read("cur_freq")
thread = threading.Thread(target=ask)
thread.start()
during = []
while thread.is_alive():
    during.append(read("cur_freq"))
    time.sleep(0.05)
time.sleep(after_s)
print(json.dumps({"before": before, "during": during, "after": read("cur_freq"), "after_min": read("min_freq"),
                  "text": answer.get("content"), "decoded": answer.get("tokens_predicted")}))
"""


@pytest.fixture
def decode(host: Any) -> Callable[..., dict[str, Any]]:
    """Decode on a port of the board and return the clock before, during and after."""

    def run(port: int = 8080, n_predict: int = 32, after_s: float = 3.0) -> dict[str, Any]:
        out = host.check_output("python3 -c %s %s %s %s", PROBE, str(port), str(n_predict), str(after_s))
        result: dict[str, Any] = json.loads(out)
        return result

    return run
