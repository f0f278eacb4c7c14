# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared by the unit tests: trees of literal files, GGUF files made on the spot, and a small HTTP server."""

from __future__ import annotations

import http.server
import json
import re
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils._host import CommandResult, Host, Lines

# value type numbers of GGUF
_U32, _F32, _BOOL, _STRING, _ARRAY, _U64 = 4, 6, 7, 8, 9, 10


class FakeHost(Host):
    """A host below a directory of the test, whose commands answer what the test says."""

    def __init__(self, root: Path, commands: dict[str, CommandResult]) -> None:
        super().__init__(str(root))
        self.commands = commands
        self.programs: dict[str, list[str]] = {}

    def lines(self, argv: list[str]) -> Lines | None:
        program = self.programs.get(argv[0])
        return Lines([*program, *argv[1:]]) if program else None

    def command(self, argv: list[str], timeout_s: float = 5.0) -> CommandResult:
        return self.commands.get(argv[0].rsplit("/", 1)[-1], CommandResult(None, "", "", "not found"))

    def cpu_count(self) -> int:
        return 6


@pytest.fixture
def make_host(tmp_path: Path) -> Callable[..., Host]:
    def make(files: dict[str, str | bytes], commands: dict[str, str] | None = None) -> Host:
        for name, content in files.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        answers = {name: CommandResult(0, text, "", None) for name, text in (commands or {}).items()}
        return FakeHost(tmp_path, answers)

    return make


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return _BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return (_U32, struct.pack("<I", value)) if value < 1 << 32 else (_U64, struct.pack("<Q", value))
    if isinstance(value, float):
        return _F32, struct.pack("<f", value)
    if isinstance(value, str):
        return _STRING, _string(value)
    kinds = [_value(item) for item in value]
    kind = kinds[0][0] if kinds else _U32
    return _ARRAY, struct.pack("<IQ", kind, len(kinds)) + b"".join(data for _kind, data in kinds)


BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 39: (32, 17)}


def build_gguf(
    values: dict[str, Any],
    tensors: list[tuple[str, list[int], int]],
    version: int = 3,
    with_data: bool = True,
) -> bytes:
    """A GGUF file: keys, and tensors as (name, shape, ggml type) filled with zeros."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    for key, value in values.items():
        kind, data = _value(value)
        head += _string(key) + struct.pack("<I", kind) + data
    offset = 0
    for name, shape, kind in tensors:
        elements = 1
        for extent in shape:
            elements *= extent
        block, size = BLOCKS[kind]
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += -(-(elements // block * size) // 32) * 32
    padding = -len(head) % 32
    return head + b"\0" * (padding + offset if with_data else 0)


def moe_values(**more: Any) -> dict[str, Any]:
    return {
        "general.architecture": "qwen3moe",
        "general.name": "Test",
        "general.file_type": 7,
        "qwen3moe.block_count": 2,
        "qwen3moe.context_length": 4096,
        "qwen3moe.embedding_length": 64,
        "qwen3moe.attention.head_count": 4,
        "qwen3moe.attention.head_count_kv": 2,
        "qwen3moe.attention.key_length": 32,
        "qwen3moe.attention.value_length": 32,
        "qwen3moe.expert_count": 8,
        "qwen3moe.expert_used_count": 2,
        **more,
    }


def moe_tensors(layers: int = 2) -> list[tuple[str, list[int], int]]:
    tensors: list[tuple[str, list[int], int]] = [("token_embd.weight", [64, 100], 1)]
    for layer in range(layers):
        tensors += [
            (f"blk.{layer}.attn_norm.weight", [64], 0),
            (f"blk.{layer}.ffn_gate_exps.weight", [64, 32, 8], 8),
            (f"blk.{layer}.ffn_up_exps.weight", [64, 32, 8], 8),
            (f"blk.{layer}.ffn_down_exps.weight", [32, 64, 8], 8),
        ]
    return tensors


class Gguf:
    build = staticmethod(build_gguf)
    values = staticmethod(moe_values)
    tensors = staticmethod(moe_tensors)


@pytest.fixture(scope="session")
def gguf() -> type[Gguf]:
    return Gguf


class Web:
    """What the test's HTTP server holds and how it misbehaves."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.cut_after: list[int] = []  # bytes after which the next answers break off
        self.stall_after: int | None = None
        self.etag = '"1"'
        self.requests: list[tuple[str, str | None]] = []
        self.bodies: list[dict[str, Any]] = []
        # Bytes are a whole answer; several are streamed chunk by chunk, and None among them breaks the answer off.
        self.answers: dict[str, Callable[[dict[str, Any] | None], tuple[int, bytes | Iterable[bytes | None]]]] = {}
        self.release = threading.Event()
        self.url = ""


class _Handler(http.server.BaseHTTPRequestHandler):
    web: Web

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        pass

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.web.bodies.append(body)
        self._answer(self.web.answers[self.path](body))

    def _answer(self, answer: tuple[int, bytes | Iterable[bytes | None]]) -> None:
        status, content = answer
        if isinstance(content, bytes):
            self._send(status, content)
            return
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in content:
            if part is None:
                return
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def do_GET(self) -> None:
        web = self.web
        asked = self.headers.get("Range")
        web.requests.append((self.path, asked))
        if self.path in web.answers:
            self._answer(web.answers[self.path](None))
            return
        content = web.files.get(self.path)
        if content is None:
            self._send(404, b"no such file")
            return
        start, end, status = 0, len(content) - 1, 200
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
        valid = self.headers.get("If-Range") in (None, web.etag)
        if match and web.ranges and valid:
            start, status = int(match.group(1)), 206
            end = min(end, int(match.group(2))) if match.group(2) else end
            if start >= len(content):
                self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
        part = content[start : end + 1]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(content)}")
        self.send_header("ETag", web.etag)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if web.cut_after:
            self.wfile.write(part[: web.cut_after.pop(0)])
            self.close_connection = True
        elif web.stall_after is not None:
            self.wfile.write(part[: web.stall_after])
            self.wfile.flush()
            web.release.wait(20)
            self.close_connection = True
        else:
            self.wfile.write(part)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""


@pytest.fixture
def web() -> Iterator[Web]:
    state = Web()
    handler = type("Handler", (_Handler,), {"web": state})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    state.release.set()
    server.shutdown()
    server.server_close()
    thread.join()
