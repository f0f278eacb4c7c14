# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts are recorded for their pages from a machine that runs and serves; here from this one, which is no board."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from edge_moe_testbed import record
from edge_moe_testbed.common import TestbedError

ASKED: list[dict[str, Any]] = []


class Completions(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        ASKED.append({"path": self.path, **json.loads(self.rfile.read(int(self.headers["Content-Length"])))})
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), Completions) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def inventory(folder: Path, port: int) -> Path:
    here = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "llama_server_port": port,
    }
    path = folder / "inventory.json"
    path.write_text(json.dumps({"all": {"hosts": {"here": here}}}))
    return path


def test_a_page_for_each_facts_module(tmp_path: Path, port: int) -> None:
    ASKED.clear()
    made = record.facts("here", inventory(tmp_path, port))
    assert set(made) == {"jetson_facts", "devfreq_facts", "expert_cache_facts"}
    found: dict[str, Any] = {}
    for text in made.values():
        asked, _, answer = text.partition("\n")
        assert asked.endswith(":")
        found |= yaml.safe_load(answer)
    assert set(found) == {"edge_moe_jetson", "edge_moe_devfreq", "edge_moe_expert_cache"}
    assert found["edge_moe_jetson"]["memory"]["total_bytes"] > 0
    assert [(request["path"], request["n_predict"]) for request in ASKED] == [("/completion", 32)]


@pytest.mark.parametrize(("host", "seen"), [("here", "Connection refused"), ("nobody", "no hosts matched")])
def test_a_machine_that_gives_none_is_told(tmp_path: Path, host: str, seen: str) -> None:
    with pytest.raises(TestbedError) as caught:
        record.facts(host, inventory(tmp_path, 1))
    said = " ".join(str(caught.value).split())
    assert "it has to be up and to serve a model (make demo)" in said
    assert seen in said


def test_a_snapshot_of_a_machine_that_no_role_has_touched(tmp_path: Path) -> None:
    asked, _, answer = record.snapshot("here", inventory(tmp_path, 1)).partition("\n")
    assert asked.endswith("in check mode:")
    shown = yaml.safe_load(answer)
    assert shown["diff"]["after"].splitlines() == [f"taken: {shown['taken']}", f"added: {record.ADDED}"]
    assert not Path(shown["diff"]["after_header"]).exists()


def test_a_machine_that_has_its_snapshot_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_answer", lambda *_: {"changed": False, "taken": "2026-11-30T03:29:59Z"})
    with pytest.raises(
        TestbedError, match="has a snapshot of 2026-11-30T03:29:59Z: one that no role has touched is needed"
    ):
        record.snapshot("here", inventory(tmp_path, 1))
