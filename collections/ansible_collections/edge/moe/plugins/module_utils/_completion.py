# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One completion of a llama-server: asked for over HTTP, read as it is streamed, timed by this side's clock.

Private to this collection: it may change in any release.

Answers are taken from a server that may be dying or may be none at all, so each line and the whole are bounded.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import time
import urllib.parse
from socket import SO_RCVLOWAT, SOL_SOCKET
from typing import Any

ANSWER_LIMIT = 16 * 1024 * 1024
# The final event repeats the prompt, so a line may be long.
LINE_LIMIT = 4 * 1024 * 1024
SHOWN_BYTES = 120
QUIET_BYTES = 32 * 1024


class MeasureError(Exception):
    """What was seen and what to do."""


class ServerGone(MeasureError):
    """The connection broke: the server's end may tell why."""


def _parse_json(data: bytes) -> Any:
    """Bytes that are no UTF-8 are kept as they are. A ValueError for what is no JSON, however deep it is nested."""
    try:
        return json.loads(data.decode("utf-8", errors="surrogateescape"))
    except RecursionError:
        raise ValueError("nested too deep") from None


def _message(answer: Any, body: bytes) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message)[:500] if message else body[:200].decode("utf-8", errors="replace")


def _token_ids(tokens: Any) -> list[int]:
    return [token for token in tokens if isinstance(token, int)] if isinstance(tokens, list) else []


def parse_answer(status: int, body: bytes) -> dict[str, Any]:
    """The fields that count of an answer in one piece; see `answer_fields`. A MeasureError where it is none."""
    try:
        answer = _parse_json(body)
    except ValueError:
        raise MeasureError(f"the server answers {status} with no JSON: {body[:SHOWN_BYTES]!r}") from None
    if status != 200 or not isinstance(answer, dict):
        raise MeasureError(f"the server answers {status}: {_message(answer, body)}")
    return answer_fields(answer)


def answer_fields(answer: dict[str, Any]) -> dict[str, Any]:
    """The fields of a /completion answer that count. Tokens and text are taken as they are, valid UTF-8 or not."""
    timings = answer.get("timings")
    text = answer.get("content")
    if not isinstance(timings, dict) or not isinstance(text, str):
        raise MeasureError("the server's answer has no text or no timings: it is no llama-server of a known version")
    # JSON may also spell half a surrogate pair, which no strict encoder takes.
    raw = text.encode("utf-8", errors="surrogatepass")

    def figure(key: str) -> float | None:
        value = timings.get(key)
        # A rate over no time at all is written as infinity or null.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e12 or math.isnan(value):
            return None
        return float(value)

    decoded = figure("predicted_n")
    return {
        # Ansible carries text only: bytes that are no UTF-8 are replaced there, and counted in the hash.
        "text": raw.decode("utf-8", errors="replace"),
        "text_sha256": hashlib.sha256(raw).hexdigest(),
        "tokens": _token_ids(answer.get("tokens")),
        "n_prompt": int(figure("prompt_n") or 0),
        "n_decoded": int(decoded or 0),
        "decode_tokens_per_s": figure("predicted_per_second") if decoded and decoded > 1 else None,
        "prefill_tokens_per_s": figure("prompt_per_second"),
        "prefill_ms": figure("prompt_ms"),
        "decode_ms": figure("predicted_ms"),
    }


class Stream:
    """What a streamed answer has said so far: server-sent events, each a line `data: JSON`.

    Fed with the body's pieces as they come. `complete` once the final event was read, `begun` once a token was.

    A server holds tokens back until they end on a whole character, and then names only the last of them. So `tokens`
    lacks the others of such a character. One that the answer's end cuts stands as U+FFFD, as in an answer in one
    piece; what a token held beside its beginning, such as a blank, is not streamed.
    """

    def __init__(self) -> None:
        self.begun = False
        self.complete = False
        self.size = 0
        self._line = bytearray()
        self._last_line = b""
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._decoded = 0
        self._final: dict[str, Any] = {}

    def feed(self, part: bytes) -> None:
        """A MeasureError for what is no such stream, for an error that the server reports in it, and for too much."""
        self.size += len(part)
        if self.size > ANSWER_LIMIT:
            raise MeasureError(f"the server streams more than {ANSWER_LIMIT >> 20} MiB ({self.seen()})")
        *lines, rest = part.split(b"\n")
        for line in lines:
            self._line += line
            self._take(bytes(self._line).rstrip(b"\r"))
            self._line.clear()
            if self.complete:
                return
        self._line += rest
        if len(self._line) > LINE_LIMIT:
            raise MeasureError(f"the server streams a line of more than {LINE_LIMIT >> 20} MiB ({self.seen()})")

    def _take(self, line: bytes) -> None:
        field, _colon, value = line.partition(b":")
        if line:
            self._last_line = line[:SHOWN_BYTES]
        # Other fields and comments (a server's sign of life) say nothing about the answer.
        if field not in (b"data", b"error") or value.strip() == b"[DONE]":
            return
        try:
            event = _parse_json(value)
        except ValueError:
            raise MeasureError(f"the server streams what is no JSON ({self.seen()})") from None
        if not isinstance(event, dict) or field == b"error" or "error" in event:
            wrapped = {"error": event} if field == b"error" and "error" not in event else event
            raise MeasureError(f"the server gave a request up: {_message(wrapped, value)} ({self.seen()})")
        text, tokens = event.get("content"), _token_ids(event.get("tokens"))
        if isinstance(text, str):
            self._text.append(text)
        self._tokens += tokens
        self.begun = self.begun or bool(text or tokens)
        decoded = event.get("tokens_predicted")
        if event.get("stop") is True:
            self.complete = True
            self._final = event
            if isinstance(decoded, int) and decoded > self._decoded:
                self._text.append("\ufffd")
        elif isinstance(decoded, int):
            self._decoded = decoded

    def seen(self) -> str:
        """For a message: how far the answer came."""
        last = f"the last line begins {self._last_line!r}" if self._last_line else "no whole line"
        return f"after {len(self._tokens)} tokens and {self.size} bytes, {last}"

    def fields(self) -> dict[str, Any]:
        """As `answer_fields` of the same answer in one piece, but for the tokens that were held back."""
        return answer_fields({**self._final, "content": "".join(self._text), "tokens": self._tokens})


class Client:
    """llama-server's HTTP interface, as far as measuring needs it. No proxy: the server is on this board."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise MeasureError(f"url is {url!r}; it must be http://HOST:PORT of a llama-server")
        self.url = url
        self._host, self._port = parts.hostname, parts.port or 80
        self._timeout_s = timeout_s

    def call(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            return answer.status, self._body(answer)
        finally:
            connection.close()

    def _body(self, answer: http.client.HTTPResponse) -> bytes:
        content = answer.read(ANSWER_LIMIT + 1)
        if len(content) > ANSWER_LIMIT:
            raise MeasureError(f"{self.url} answers with more than {ANSWER_LIMIT >> 20} MiB")
        return content

    def slots(self) -> int | None:
        """How many requests the server works on at once; None where it does not say."""
        try:
            status, body = self.call("GET", "/props", None, 5.0)
            total = _parse_json(body).get("total_slots") if status == 200 else None
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return None
        return total if isinstance(total, int) else None

    def wait_healthy(self, limit_s: float) -> None:
        """Until the model is loaded, or the reason why it is not."""
        deadline = time.monotonic() + limit_s
        seen = "no answer yet"
        while True:
            try:
                status, body = self.call("GET", "/health", None, 5.0)
                if status == 200:
                    return
                seen = f"/health answers {status}: {body[:SHOWN_BYTES].decode('utf-8', errors='replace')}"
            except (OSError, http.client.HTTPException) as error:
                seen = f"{type(error).__name__}: {error}"
            if time.monotonic() >= deadline:
                raise MeasureError(
                    f"{self.url} is not ready after {limit_s:g} s ({seen}): look at the server's journal for the reason"
                )
            time.sleep(0.5)

    def complete(self, prompt: str, n_predict: int) -> dict[str, Any]:
        """`answer_fields` of a greedy completion, and by this side's clock `ttft_ms` and `latency_ms`.

        `ttft_ms` is the time until the first token's text came in: None where the answer came in one piece, as from
        behind something that gathers it.
        """
        request = {
            "prompt": prompt,
            "n_predict": n_predict,
            "temperature": 0,
            "seed": 1,
            "cache_prompt": False,
            "return_tokens": True,
            # Every request decodes the same number of tokens, whatever the model would rather do.
            "ignore_eos": True,
            "stream": True,
        }
        stream = Stream()
        try:
            return self._stream(json.dumps(request).encode(), stream)
        except TimeoutError:
            seen = f" ({stream.seen()})" if stream.size else ""
            raise MeasureError(f"{self.url} did not answer a request within {self._timeout_s:g} s{seen}") from None
        except (OSError, http.client.HTTPException) as error:
            seen = f", {stream.seen()}" if stream.size else ""
            raise ServerGone(
                f"{self.url} broke a request off ({type(error).__name__}: {error}{seen}): "
                "the server may have died, see its journal"
            ) from None

    def _stream(self, body: bytes, stream: Stream) -> dict[str, Any]:
        began = time.monotonic()
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        first: float | None = None
        try:
            connection.request("POST", "/completion", body, {"Content-Type": "application/json", "Connection": "close"})
            socket = connection.sock
            answer = connection.getresponse()
            if answer.status != 200 or not answer.getheader("Content-Type", "").startswith("text/event-stream"):
                fields = parse_answer(answer.status, self._body(answer))
            else:
                while not stream.complete:
                    left = began + self._timeout_s - time.monotonic()
                    if left <= 0:
                        raise TimeoutError
                    # A stream that drips would never meet the limit of a single read.
                    socket.settimeout(left)
                    try:
                        part = answer.read1(65536)
                    except http.client.IncompleteRead:
                        part = b""
                    if not part:
                        raise http.client.HTTPException("its stream ended before the final event")
                    stream.feed(part)
                    if stream.begun and first is None:
                        first = time.monotonic()
                        if answer.will_close:
                            # The rest is read at once at its end: waking for each token would take time from the cores
                            # that decode.
                            socket.setsockopt(SOL_SOCKET, SO_RCVLOWAT, QUIET_BYTES)
                fields = stream.fields()
        finally:
            connection.close()
        return {
            **fields,
            "ttft_ms": None if first is None else round((first - began) * 1000, 3),
            "latency_ms": round((time.monotonic() - began) * 1000, 3),
        }
