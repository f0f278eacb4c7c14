# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _completion
from ansible_collections.edge.moe.plugins.module_utils._completion import Client, MeasureError, ServerGone, Stream
from hypothesis import given
from hypothesis import strategies as st

TIMINGS = {
    "prompt_n": 9,
    "prompt_ms": 90.0,
    "prompt_per_second": 100.0,
    "predicted_n": 3,
    "predicted_ms": 300.0,
    "predicted_per_second": 10.0,
}
FINAL = {"index": 0, "content": "", "tokens": [], "stop": True, "timings": TIMINGS}


def answer(**more: Any) -> dict[str, Any]:
    return {"content": "물은 흐른다", "tokens": [5, 6, 7], "timings": TIMINGS, **more}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def events(*texts: str) -> list[bytes]:
    """As llama-server streams them: a text and its token each, then one event without text that has the timings."""
    parts = [
        {"index": 0, "content": text, "tokens": [5 + n], "stop": False, "tokens_predicted": n + 1}
        for n, text in enumerate(texts)
    ]
    return [event(part) for part in [*parts, {**FINAL, "tokens_predicted": len(texts)}]]


def read(*parts: bytes) -> Stream:
    stream = Stream()
    for part in parts:
        stream.feed(part)
    return stream


# An answer in one piece


def test_an_answer() -> None:
    parsed = _completion.parse_answer(200, json.dumps(answer()).encode())
    assert parsed["text"] == "물은 흐른다"
    assert parsed["tokens"] == [5, 6, 7]
    assert (parsed["n_decoded"], parsed["n_prompt"]) == (3, 9)
    assert (parsed["decode_tokens_per_s"], parsed["prefill_tokens_per_s"], parsed["prefill_ms"]) == (10.0, 100.0, 90.0)
    assert parsed["text_sha256"] == hashlib.sha256("물은 흐른다".encode()).hexdigest()


def test_texts_that_are_no_utf8_differ_in_their_hash() -> None:
    def body(raw: bytes) -> bytes:
        return json.dumps(answer(content="X")).encode().replace(b'"X"', b'"' + raw + b'"')

    one, two = _completion.parse_answer(200, body(b"\xff")), _completion.parse_answer(200, body(b"\xfe"))
    assert "\ufffd" in one["text"]
    assert one["text_sha256"] != two["text_sha256"]
    half = _completion.parse_answer(200, body(b"\\ud800"))
    half["text"].encode()


def test_one_token_has_no_rate() -> None:
    timings = {**TIMINGS, "predicted_n": 1, "predicted_per_second": 1e6}
    assert _completion.parse_answer(200, json.dumps(answer(timings=timings)).encode())["decode_tokens_per_s"] is None
    timings = {**TIMINGS, "predicted_per_second": float("inf")}
    assert _completion.parse_answer(200, json.dumps(answer(timings=timings)).encode())["decode_tokens_per_s"] is None


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (503, b'{"error":{"code":503,"message":"Loading model"}}', "answers 503: Loading model"),
        (500, b"<html>", "no JSON"),
        (200, b"[]", "answers 200"),
        (200, b'{"content":"x"}', "no timings"),
        (200, b"", "no JSON"),
        (200, b"[" * 200_000, "no JSON"),
    ],
)
def test_answers_that_are_none(status: int, body: bytes, says: str) -> None:
    with pytest.raises(MeasureError, match=says):
        _completion.parse_answer(status, body)


@given(st.binary(max_size=200))
def test_any_answer_is_read_or_refused(body: bytes) -> None:
    with pytest.raises(MeasureError):
        _completion.parse_answer(200, body)


# A streamed answer


def test_a_stream_gives_what_the_answer_in_one_piece_gives() -> None:
    whole = _completion.parse_answer(200, json.dumps(answer()).encode())
    assert read(*events("물은", " 흐", "른다")).fields() == whole


@given(st.integers(1, 60), st.sampled_from([b"\n", b"\r\n"]))
def test_it_may_come_in_pieces_of_any_size(size: int, end: bytes) -> None:
    data = b"".join(events("물은", " 흐", "른다")).replace(b"\n", end)
    stream = read(*[data[place : place + size] for place in range(0, len(data), size)])
    assert stream.complete
    assert stream.fields()["text"] == "물은 흐른다"
    assert stream.fields()["tokens"] == [5, 6, 7]


@pytest.mark.parametrize("raw", [b"\xff", b"\\ud800", b"\\ufffd", b"\xf0\x9f"])
def test_bytes_that_are_no_utf8_are_kept_as_in_one_piece(raw: bytes) -> None:
    part = event({"content": "X", "tokens": [5, 6, 7]}).replace(b'"X"', b'"a' + raw + b'"')
    body = json.dumps(answer(content="X")).encode().replace(b'"X"', b'"a' + raw + b'"')
    assert read(part, event(FINAL)).fields() == _completion.parse_answer(200, body)


@pytest.mark.parametrize("held", [1, 2, 3])
def test_a_character_that_the_end_cuts_stands_as_in_one_piece(held: int) -> None:
    stream = read(*events("a", "b")[:2], event({**FINAL, "tokens_predicted": 2 + held}))
    assert stream.fields()["text"] == "ab\ufffd"
    assert stream.fields()["tokens"] == [5, 6]


@pytest.mark.parametrize("odd", [None, "9", -1, True])
def test_odd_counts_cut_no_character(odd: Any) -> None:
    assert read(*events("a", "b")[:2], event({**FINAL, "tokens_predicted": odd})).fields()["text"] == "ab"


def test_signs_of_life_other_fields_and_progress_are_no_token() -> None:
    stream = read(b": ping\n\n", b"event: x\nid: 7\nretry: 5\n\n", event({"prompt_progress": {"total": 9}}))
    assert not stream.begun
    stream.feed(event({"content": "a", "tokens": [1]}))
    assert stream.begun
    stream.feed(b"data: [DONE]\n\n")
    assert not stream.complete


def test_what_follows_the_final_event_is_nobodys_business() -> None:
    stream = read(*events("a"), b"data: {broken")
    assert stream.fields()["text"] == "a"
    joined = read(b"".join([*events("a"), b"data: {broken\n"]))
    assert joined.fields()["text"] == "a"


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (b'data: {"error":{"code":500,"message":"compute error"}}\n\n', r"gave a request up: compute error \(after 1 "),
        (b'error: {"code":500,"message":"compute error"}\n\n', "gave a request up: compute error"),
        (b"data: <html>\n\n", "no JSON .*after 1 tokens and .*'data: <html>'"),
        (b"data: " + b"[" * 200_000 + b"\n\n", "no JSON"),
        (b"data: [1, 2]\n\n", "gave a request up"),
        (b"data: " + b"x" * (_completion.LINE_LIMIT + 1), "line of more than 4 MiB"),
        (event({**FINAL, "timings": None}), "no timings"),
    ],
)
def test_streams_that_are_none(part: bytes, says: str) -> None:
    with pytest.raises(MeasureError, match=says):
        read(event({"content": "a", "tokens": [1]}), part).fields()


def test_a_stream_without_end_is_cut_off() -> None:
    part = event({"content": "a" * 65536, "tokens": [1]})
    with pytest.raises(MeasureError, match=r"more than 16 MiB \(after 255 tokens"):
        read(*[part] * 1000)


@given(st.lists(st.binary(max_size=80), max_size=8))
def test_any_bytes_are_read_or_refused(parts: list[bytes]) -> None:
    with pytest.raises(MeasureError):
        read(*parts).fields()


# Over HTTP


def client(web: Any, timeout_s: float = 5.0) -> Client:
    return Client(web.url, timeout_s)


def test_the_clock_of_this_side(web: Any) -> None:
    def slow(_request: Any) -> tuple[int, Iterator[bytes]]:
        first, second, third, final = events("물은", " 흐", "른다")

        def parts() -> Iterator[bytes]:
            time.sleep(0.15)
            yield first
            time.sleep(0.25)
            yield second + third
            yield final

        return 200, parts()

    web.answers["/completion"] = slow
    result = client(web).complete("x", 3)
    assert result["text"] == "물은 흐른다"
    assert 150 <= result["ttft_ms"] < 400 <= result["latency_ms"] < 2000
    assert web.bodies[0]["stream"] is True


def test_an_answer_in_one_piece_has_no_first_token(web: Any) -> None:
    web.answers["/completion"] = lambda _request: (200, json.dumps(answer()).encode())
    result = client(web).complete("x", 3)
    assert result["ttft_ms"] is None
    assert result["latency_ms"] > 0
    assert result["tokens"] == [5, 6, 7]


@pytest.mark.parametrize("chunks", [[], [events("a", "b")[0]], [b"data: {"]])
@pytest.mark.parametrize("broken", [False, True])
def test_a_stream_that_ends_early_is_told(web: Any, chunks: list[bytes], broken: bool) -> None:
    web.answers["/completion"] = lambda _request: (200, [*chunks, None] if broken else chunks)
    with pytest.raises(ServerGone, match=r"broke a request off .*before the final event.* may have died"):
        client(web).complete("x", 3)


def test_how_far_a_cut_stream_came_is_told(web: Any) -> None:
    web.answers["/completion"] = lambda _request: (200, [*events("a", "b", "c")[:2], None])
    with pytest.raises(ServerGone, match=r"after 2 tokens and .* bytes, the last line begins"):
        client(web).complete("x", 3)


def test_a_stream_that_drips_meets_the_limit_of_the_request(web: Any) -> None:
    def drip() -> Iterator[bytes]:
        for _turn in range(100):
            time.sleep(0.05)
            yield b": still here\n\n"

    web.answers["/completion"] = lambda _request: (200, drip())
    began = time.monotonic()
    with pytest.raises(MeasureError, match=r"did not answer a request within 0\.4 s \(after 0 tokens"):
        client(web, 0.4).complete("x", 3)
    assert time.monotonic() - began < 2


def test_a_token_that_comes_does_not_wake_the_reader(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[float] = []
    feed = Stream.feed
    monkeypatch.setattr(Stream, "feed", lambda self, part: (fed.append(time.monotonic()), feed(self, part))[1])

    def parts() -> Iterator[bytes]:
        for part in events(*"0123456789" * 5):
            yield part
            time.sleep(0.005)

    web.answers["/completion"] = lambda _request: (200, parts())
    result = client(web).complete("x", 50)
    assert result["text"] == "0123456789" * 5
    assert result["ttft_ms"] < 150 <= result["latency_ms"] < 1500
    assert len(fed) > 2
    assert fed[1] - fed[0] > 0.1  # where tokens are 5 ms apart


def test_a_stream_that_stalls_after_its_first_token(web: Any) -> None:
    def stall() -> Iterator[bytes]:
        yield events("a", "b")[0]
        web.release.wait(5)

    web.answers["/completion"] = lambda _request: (200, stall())
    with pytest.raises(MeasureError, match=r"did not answer a request within 0\.3 s \(after 1 tokens"):
        client(web, 0.3).complete("x", 3)


def test_an_error_before_the_stream_is_told(web: Any) -> None:
    web.answers["/completion"] = lambda _request: (400, b'{"error":{"message":"the prompt is too long"}}')
    with pytest.raises(MeasureError, match="answers 400: the prompt is too long"):
        client(web).complete("x", 3)


def test_slots(web: Any) -> None:
    assert client(web).slots() is None
    web.answers["/props"] = lambda _request: (200, b'{"total_slots": 4}')
    assert client(web).slots() == 4
    for odd in (b"[]", b"x", b'{"total_slots": "many"}'):
        web.answers["/props"] = lambda _request, odd=odd: (200, odd)
        assert client(web).slots() is None


def test_an_address_that_is_none() -> None:
    with pytest.raises(MeasureError, match="http://HOST:PORT"):
        Client("ftp://x", 1.0)
