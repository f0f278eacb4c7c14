# SPDX-License-Identifier: GPL-3.0-or-later
"""Planted faults without a board: the proxy that changes a character, and what counts as found."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from edge_moe_testbed import faults
from edge_moe_testbed.common import TestbedError
from edge_moe_testbed.faults.wrong_character import Proxy

PARTS = [" the", " river", "", " 강", " bends"]
TEXT, TOKENS = "".join(PARTS), [5, 6, 7, 8, 9]


class LlamaServer(http.server.BaseHTTPRequestHandler):
    """Answers like llama-server, streamed or not as it is asked for."""

    def do_GET(self) -> None:
        self._send("application/json", b'{"status": "ok", "content": "a"}')

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not asked["stream"]:
            self._send("application/json; charset=utf-8", json.dumps({"content": TEXT, "tokens": TOKENS}).encode())
            return
        events: list[dict[str, Any]] = [
            {"content": part, "tokens": [token]} for part, token in zip(PARTS, TOKENS, strict=True)
        ]
        events.append({"content": "", "tokens": [], "stop": True, "timings": {"predicted_n": 5}})
        stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        self._send("text/event-stream", stream.encode() + b"data: [DONE]\n\n")

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), LlamaServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def ask(url: str, stream: bool) -> bytes:
    request = urllib.request.Request(f"{url}/completion", json.dumps({"stream": stream}).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        data: bytes = answer.read()
    return data


def streamed(data: bytes) -> tuple[str, list[int]]:
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    return "".join(event["content"] for event in events), [token for event in events for token in event["tokens"]]


def changed(one: Any, other: Any) -> list[int]:
    return [place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]


@pytest.mark.parametrize(("place", "token"), [(0, 0), (1, 1), (2, 3), (3, 3), (4, 4)])
def test_one_character_and_its_token_of_a_stream(port: int, place: int, token: int) -> None:
    """The third part has no text: what is asked of it befalls the next."""
    with Proxy(port, place) as proxy:
        data = ask(proxy.url, stream=True)
    text, tokens = streamed(data)
    assert changed(text, TEXT) == [len("".join(PARTS[:token]))]
    assert changed(tokens, TOKENS) == [token]
    assert data.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(("place", "character", "token"), [(0, 0, 0), (3, 3, 3), (999, len(TEXT) - 1, 4)])
def test_one_character_and_a_token_of_a_plain_answer(port: int, place: int, character: int, token: int) -> None:
    with Proxy(port, place) as proxy:
        answer = json.loads(ask(proxy.url, stream=False))
        with urllib.request.urlopen(f"{proxy.url}/health", timeout=10) as health:
            assert json.load(health) == {"status": "ok", "content": "a"}
    assert changed(answer["content"], TEXT) == [character]
    assert changed(answer["tokens"], TOKENS) == [token]


@pytest.mark.parametrize(
    ("fault", "classes", "right"),
    [
        ("nothing", (), True),
        ("nothing", ("too_slow",), False),
        ("slow", ("too_slow",), True),
        ("slow", (), False),
        ("throttled", ("throttled", "too_slow"), True),
        ("throttled", ("too_slow",), False),
        ("throttled", ("throttled", "text_differs"), False),
        ("floor_masked", ("floor_never_raised",), True),
        ("swapped", ("swap_not_off", "swap_in_use"), True),
    ],
)
def test_a_fault_is_found_by_its_own_class_first(fault: str, classes: tuple[str, ...], right: bool) -> None:
    assert faults.Seen(fault, classes, {}, 1.0).right is right


def test_the_table_counts_and_names_what_else_was_seen() -> None:
    classes = [("throttled", "too_slow"), ("too_slow",)]
    seen = [faults.Seen("throttled", found, {}, seconds) for found, seconds in zip(classes, (8.0, 10.0), strict=True)]
    header, line, last = faults.table([*seen, faults.Seen("nothing", (), {}, 5.0)]).splitlines()
    assert last.split() == [*faults.FAULTS["nothing"].title.split(), "passed", "1", "of", "1", "5", "s"]
    assert header.split("  ")[0] == "fault"
    assert line.split() == ["the", "CPU", "throttled", "throttled", "1", "of", "2", "9", "s", "too_slow"]


def result(**changes: Any) -> dict[str, Any]:
    def request(prompt: str, n_prompt: int, speed: float) -> dict[str, Any]:
        return {"id": prompt, "n_prompt": n_prompt, "text": "a", "n_decoded": 4, "decode_tokens_per_s": speed}

    requests = [request("en-1", 9, 4.0), request("ko-1", 5, 2.0), request("ko-1", 5, 3.0)]
    reference = {"complete": True, "n_predict": 4, "requests": requests, "decode_tokens_per_s": 3.0}
    return {"plan": {"decision": "mmap"}, "reference": {**reference, **changes}}


def test_the_shortest_prompt_of_the_boards_own_result_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_MOE_HOME", str(tmp_path))
    (tmp_path / "results").mkdir()
    (tmp_path / "results/dev.json").write_text(json.dumps(result()))
    verified = faults.Verified("dev")
    assert (verified.prompt_id, verified.n_predict, verified.reference["decode_tokens_per_s"]) == ("ko-1", 4, 2.5)
    assert verified.settings(["slow"], 3, 1)["prompt"]["text"]
    assert verified.judge({})["failures"][0]["class"] == "incomplete"


@pytest.mark.parametrize("text", [None, "", "[]", '{"plan": {}}', json.dumps(result(requests=[])), json.dumps({})])
def test_a_board_that_was_not_verified_is_refused(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_MOE_HOME", str(tmp_path))
    (tmp_path / "results").mkdir()
    if text is not None:
        (tmp_path / "results/dev.json").write_text(text)
    with pytest.raises(TestbedError, match=r"provision dev with site\.yml first"):
        faults.Verified("dev")
