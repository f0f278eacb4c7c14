# SPDX-License-Identifier: GPL-3.0-or-later
"""The measurement against the real llama-server: its streamed answer is the one in one piece, and times are sound."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _completion, _measure, _server_unit
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from edge_moe_testbed import models
from edge_moe_testbed.bench import harness
from edge_moe_testbed.prompts import prompts

pytestmark = pytest.mark.llama

N_PREDICT = 40
SLOTS = 2
ARGS = tuple(str(SLOTS) if before == "--parallel" else word
             for before, word in zip(("", *harness.STREAMING_ARGS), harness.STREAMING_ARGS, strict=False))  # fmt: skip


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.Server]:
    folder = tmp_path_factory.mktemp("measure")
    models.write_moe(folder / "moe.gguf", models.TINY)
    with harness.server(root, folder / "moe.gguf", folder / "server.log", threads=2, args=ARGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: harness.Server) -> _measure.Client:
    return _measure.Client(f"http://127.0.0.1:{server.port}", 60)


@pytest.mark.parametrize("prompt", ["en-1", "ko-1", "ko-4", "en-3"])
def test_streamed_and_in_one_piece_are_one_answer(server: harness.Server, client: _measure.Client, prompt: str) -> None:
    text = prompts()[prompt]
    whole = server.complete(text, N_PREDICT, ignore_eos=True)
    wanted = _completion.parse_answer(200, json.dumps(whole).encode())
    got = client.complete(text, N_PREDICT)
    for key in ("text", "text_sha256", "tokens", "n_prompt", "n_decoded"):
        assert got[key] == wanted[key], key
    assert len(got["tokens"]) == got["n_decoded"] == N_PREDICT
    assert got["prefill_ms"] <= got["ttft_ms"] <= got["latency_ms"]
    assert got["latency_ms"] >= got["prefill_ms"] + got["decode_ms"]


@pytest.mark.parametrize("n_predict", [2, 4, 7, 8, 9, 12])
def test_characters_of_several_tokens(server: harness.Server, n_predict: int) -> None:
    """Syllables that are no token of the vocabulary: the answer may end within one."""
    request = {
        "prompt": "x",
        "n_predict": n_predict,
        "temperature": 0,
        "return_tokens": True,
        "ignore_eos": True,
        "grammar": 'root ::= "a 뷁 b쀍c쮉d"',
    }
    whole = server.request("/completion", request)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/completion", json.dumps({**request, "stream": True}))
    stream = _completion.Stream()
    stream.feed(connection.getresponse().read())
    connection.close()
    got = stream.fields()
    # A token may hold a blank and the beginning of a character: cut there, the stream has neither.
    assert got["text"].rstrip(" \ufffd") == whole["content"].rstrip(" \ufffd")
    assert got["text"].endswith("\ufffd") is whole["content"].endswith("\ufffd")
    assert got["n_decoded"] == len(whole["tokens"]) == n_predict
    left = iter(whole["tokens"])
    assert all(token in left for token in got["tokens"])  # in the same order, with gaps
    assert len(got["tokens"]) < n_predict


def test_a_prompt_too_long_is_told(client: _measure.Client) -> None:
    with pytest.raises(_measure.MeasureError, match=r"answers 400: .*context"):
        client.complete("word " * 20_000, 1)


def test_requests_at_once_share_the_server(client: _measure.Client) -> None:
    texts = [{"id": name, "text": text} for name, text in list(prompts().items())[: 2 * SLOTS]]
    assert client.slots() == SLOTS
    session = _measure.Session(Host(), client, None, None, 0.0)
    result = session.run(texts, N_PREDICT, 1, 10, at_once=SLOTS)
    assert result["warnings"] == []
    assert result["total_decoded"] == N_PREDICT * len(texts)
    requests = result["requests"]
    # They overlapped: together they waited longer than it took.
    assert sum(request["latency_ms"] for request in requests) / 1000 > 1.2 * result["wall_s"]
    assert all(request["ttft_ms"] < request["latency_ms"] for request in requests)


def test_its_log_is_understood(server: harness.Server) -> None:
    log = _server_unit.parse_log(server.log_text())
    assert log["lines"] > 10
    assert (log["nvmap_errors"], log["cuda_errors"]) == (0, 0)
    # This build has no GPU, and says so in the words that are looked for.
    assert log["no_gpu"] is True
    assert "no usable GPU found" in log["first"]["no_gpu"]
