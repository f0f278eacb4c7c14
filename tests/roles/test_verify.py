# SPDX-License-Identifier: GPL-3.0-or-later
"""The verify role where measuring fails: a server that answers once and is gone, and one that never was there."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Playbook, Played, role

PROMPTS = [{"id": name, "lang": "en", "text": "Why does a river bend?"} for name in ("en-1", "en-2")]
ANSWER = {
    "content": " bends",
    "tokens": [1, 2],
    "timings": {"prompt_n": 6, "predicted_n": 2, "predicted_per_second": 3.0, "prompt_per_second": 9.0},
}


class OnceServer(http.server.BaseHTTPRequestHandler):
    """Well, until it has answered one prompt."""

    def do_GET(self) -> None:
        self._send(b'{"status": "ok"}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if not getattr(self.server, "answered", False):
            self.server.answered = True  # type: ignore[attr-defined]
            self._send(json.dumps(ANSWER).encode())

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OnceServer) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def server_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit that the role measures runs: as this process, and goes on doing so. It has a journal."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, says in {"systemctl": f"MainPID={os.getpid()}", "journalctl": "CUDA error: out of memory"}.items():
        (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def verify(playbook: Playbook, folder: Path, port: int) -> tuple[Played, dict[str, Any]]:
    """Measure what is served on a port, and judge it by a reference that is kept; the run and the result file."""
    text = {"text": ANSWER["content"], "tokens": ANSWER["tokens"], "n_decoded": 2, "round": 1}
    reference = {"complete": True, "requests": [{**text, "id": prompt["id"]} for prompt in PROMPTS]}
    (folder / "reference.json").write_text(json.dumps(reference))
    # what another run left must not be taken for this one's
    (folder / "measurement.json").write_text(json.dumps({"requests": [{"id": "old"}] * 9}))
    measure = {
        "url": f"http://127.0.0.1:{port}",
        "prompts": PROMPTS,
        "n_predict": 2,
        "ready_s": 1,
        "settle_s": 0,
        "dest": str(folder / "measurement.json"),
    }
    variables = {
        "ansible_facts": {"edge_moe_jetson": {"board": "b", "l4t": {"version": "36.4.7"}, "power_mode": None}},
        "edge_moe_plan": {"decision": "mmap", "floor": False},
        "moe_model_name": "m.gguf",
        "moe_model_sha256": "0" * 64,
        "verify_results_dir": str(folder),
        "_verify_prompts": PROMPTS,
        "_verify_reference_file": str(folder / "reference.json"),
        "_verify_measure": measure,
        "_verify_release": "r1",
    }
    extra = ("-e", json.dumps(variables))
    played = playbook.run([role("verify", "served"), role("verify", "judge")], arguments=extra)
    return played, json.loads((folder / "board.json").read_text())


@pytest.mark.usefixtures("server_unit")
def test_a_server_that_dies_leaves_a_result_with_what_it_answered(
    playbook: Playbook, tmp_path: Path, port: int
) -> None:
    played, result = verify(playbook, tmp_path, port)
    assert played.rc == 2
    failures = result["verdict"]["failures"]
    assert [(failure["class"], failure["because"]) for failure in failures] == [
        ("nvmap_error", []),
        ("incomplete", ["nvmap_error"]),
    ]
    assert "first: CUDA error: out of memory" in failures[0]["evidence"]
    assert "ended after 1 requests" in failures[1]["evidence"]
    assert "broke a request off" in result["served"]["error"]
    assert [request["id"] for request in result["served"]["requests"]] == ["en-1"]
    assert result["verdict"]["text_equal"] is True
    assert "incomplete; the served measurement ended after 1 requests" in played.words


def test_a_server_that_is_not_there_leaves_a_result_that_says_so(playbook: Playbook, tmp_path: Path) -> None:
    played, result = verify(playbook, tmp_path, 9)
    assert played.rc == 2
    assert "is not ready after 1 s" in result["verdict"]["failures"][0]["evidence"]
    assert result["served"]["requests"] == []
    assert result["served"]["started"].endswith("Z")
