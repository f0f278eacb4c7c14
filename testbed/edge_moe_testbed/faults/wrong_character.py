# SPDX-License-Identifier: GPL-3.0-or-later
"""An HTTP proxy that changes one character of each answer, and the token that it belongs to. Standard library alone.

It stands between whoever measures and a llama-server, takes streamed answers (server-sent events) and plain ones, and
passes everything else on as it is.
"""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from types import TracebackType
from typing import Any

ANSWER_LIMIT = 16 * 1024 * 1024
LINE_LIMIT = 1024 * 1024
TIMEOUT_S = 600


def other(character: str) -> str:
    return "y" if character == "x" else "x"


def spoil(answer: dict[str, Any], place: int) -> bool:
    """Change the character at `place` of an answer's text, or its last, and the token there. False without a text."""
    text, tokens = answer.get("content"), answer.get("tokens")
    if not isinstance(text, str) or not text:
        return False
    place = min(place, len(text) - 1)
    answer["content"] = text[:place] + other(text[place]) + text[place + 1 :]
    if isinstance(tokens, list) and tokens:
        tokens[min(place, len(tokens) - 1)] += 1
    return True


class Spoiler:
    """Spoils the first part with a text from part `place` on: once for each answer."""

    def __init__(self, place: int) -> None:
        self._left = place
        self.done = False

    def event(self, line: bytes) -> bytes:
        """A line of a stream, changed or as it was."""
        if self.done or not line.startswith(b"data: {"):
            return line
        part = json.loads(line[len(b"data: ") :])
        if self._left > 0:
            self._left -= 1
            return line
        self.done = spoil(part, 0)
        return b"data: " + json.dumps(part).encode() + b"\n" if self.done else line


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def _pass_on(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=TIMEOUT_S)
        try:
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            kind = answer.headers.get("Content-Type", "application/json")
            # without a length: the end of the connection is the end of the answer
            self.send_response(answer.status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            if kind.startswith("text/event-stream"):
                spoiler = Spoiler(self.server.place)
                while line := answer.readline(LINE_LIMIT):
                    self.wfile.write(spoiler.event(line))
                    self.wfile.flush()
            else:
                self.wfile.write(self._plain(answer.read(ANSWER_LIMIT)))
        finally:
            connection.close()

    do_GET = do_POST = _pass_on

    def _plain(self, data: bytes) -> bytes:
        if self.command != "POST":
            return data
        try:
            answer = json.loads(data)
        except ValueError:
            return data
        return json.dumps(answer).encode() if isinstance(answer, dict) and spoil(answer, self.server.place) else data

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Nothing: what is asked is no news."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behind: int, place: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.place = behind, place


class Proxy:
    """Used as a context manager. `place` is the part of a streamed answer, or the character of a plain one."""

    def __init__(self, behind: int, place: int) -> None:
        self._server = _Server(behind, place)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
