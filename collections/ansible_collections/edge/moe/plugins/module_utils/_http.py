# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP reads by range, with limits: shared by the GGUF reader and the model download.

Private to this collection: it may change in any release.
Ansible's own fetch_url reads a body whole and knows no ranges; models are tens of GiB.
"""

from __future__ import annotations

import http.client
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

STALL_TIMEOUT_S = 30.0
USER_AGENT = "edge.moe/1.0"


class HttpError(Exception):
    """A message for the user: what was seen and what to do."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RangeAnswer:
    """An open answer: where its first byte lies in the file, the file's size if known, and the body."""

    def __init__(self, start: int, size: int | None, ranged: bool, validator: str | None, body: Any) -> None:
        self.start = start
        self.size = size
        self.ranged = ranged
        self.validator = validator
        self.body = body

    def read(self, length: int) -> bytes:
        try:
            # read1 hands out what has arrived; read would lose it if the rest never comes.
            data = self.body.read1(length)
        except TimeoutError as error:
            raise HttpError("no byte arrived within the time limit: the connection has stalled") from error
        except (OSError, http.client.HTTPException) as error:
            raise HttpError(f"the connection broke: {type(error).__name__}: {error}") from error
        return bytes(data)

    def close(self) -> None:
        self.body.close()

    def __enter__(self) -> RangeAnswer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class _HttpOnlyRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect may not leave HTTP: urllib would follow one to ftp."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: Any,
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            raise HttpError(f"refused a redirect to {newurl[:200]}", code)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_url(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise HttpError(f"not a URL that can be fetched: {url[:200]!r}; it must start with http:// or https://")


def quoted(url: str) -> str:
    """A URL with the characters that a person leaves unquoted (spaces, Korean names) made safe for the wire."""
    parts = urllib.parse.urlsplit(url)
    path = urllib.parse.quote(parts.path, safe="/%:@!$&'()*+,;=~-._")
    query = urllib.parse.quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, query, ""))


def _content_range(value: str | None) -> tuple[int, int | None] | None:
    match = re.fullmatch(r"\s*bytes\s+(\d+)-(\d+)/(\d+|\*)\s*", value or "")
    if match is None:
        return None
    return int(match.group(1)), None if match.group(3) == "*" else int(match.group(3))


def open_range(
    url: str,
    start: int = 0,
    end: int | None = None,
    timeout_s: float = STALL_TIMEOUT_S,
    validator: str | None = None,
) -> RangeAnswer:
    """Ask for bytes from `start` (to `end`, inclusive). A server without ranges answers with the whole file.

    With `validator` (an ETag or date from an earlier answer) the server sends the whole file if it has changed since.
    """
    check_url(url)
    request = urllib.request.Request(  # noqa: S310 - check_url has let nothing but http and https through
        quoted(url), headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
    )
    if start > 0 or end is not None:
        request.add_header("Range", f"bytes={start}-{'' if end is None else end}")
        if validator:
            request.add_header("If-Range", validator)
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        _HttpOnlyRedirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    try:
        answer = opener.open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        status, reason = error.code, error.reason
        size = _content_range_total(error.headers.get("Content-Range"))
        error.close()
        if status == 416:
            known = f"; the file there has {size} bytes" if size is not None else ""
            raise HttpError(f"{url} has no byte {start}{known}", 416) from None
        raise HttpError(f"{url} answers {status} {reason}", status) from None
    except urllib.error.URLError as error:
        cause = error.reason
        if isinstance(cause, (TimeoutError, socket.timeout)):
            raise HttpError(f"{url} does not answer within {timeout_s:g} s") from None
        raise HttpError(f"{url} cannot be reached: {cause}") from None
    except TimeoutError:
        raise HttpError(f"{url} does not answer within {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HttpError(f"{url} cannot be read: {type(error).__name__}: {error}") from None

    seen = answer.headers.get("ETag")
    # A weak ETag promises the same meaning, not the same bytes: it cannot vouch for a range.
    if seen is None or seen.startswith("W/"):
        seen = answer.headers.get("Last-Modified")
    if answer.status == 206:
        placed = _content_range(answer.headers.get("Content-Range"))
        if placed is None or placed[0] != start:
            header = answer.headers.get("Content-Range")
            answer.close()
            raise HttpError(f"{url} was asked for bytes from {start} and answers with Content-Range: {header}")
        return RangeAnswer(start, placed[1], True, seen, answer)
    if answer.status != 200:
        status = answer.status
        answer.close()
        raise HttpError(f"{url} answers {status}", status)
    length = answer.headers.get("Content-Length")
    size = int(length) if length is not None and length.isdigit() else None
    return RangeAnswer(0, size, False, seen, answer)


def _content_range_total(value: str | None) -> int | None:
    match = re.fullmatch(r"\s*bytes\s+\*/(\d+)\s*", value or "")
    return int(match.group(1)) if match else None
