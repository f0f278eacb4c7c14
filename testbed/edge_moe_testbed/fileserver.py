# SPDX-License-Identifier: GPL-3.0-or-later
"""A static HTTP server on loopback that models are fetched from: with byte ranges, so that downloads can resume.

The standard library's own server knows no ranges. A board reaches this one as 10.0.2.2, QEMU's name for the host.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

from edge_moe_testbed.board import check_port, port_number
from edge_moe_testbed.common import TestbedError, home, refusing, say

CHUNK = 1 << 20
START_LIMIT_S = 15.0
IDENTITY_HEADER = "X-Edge-Moe-Serves"
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class Unsatisfiable(Exception):
    """The asked range lies outside the file."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte that a Range header asks for; None means the whole file.

    A header that is malformed, or asks for several ranges, is ignored: HTTP permits that, and the client then gets all.
    """
    match = RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if first == "":
        wanted = int(last)
        if wanted == 0 or size == 0:
            raise Unsatisfiable
        return max(0, size - wanted), size - 1
    start = int(first)
    end = min(int(last), size - 1) if last else size - 1
    if last and int(last) < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return start, end


def locate(root: Path, target: str) -> Path | None:
    """The file that a request target names, or None if it names none below the root.

    Links are followed before the check, so one that leads outside is refused as well.
    """
    path = urllib.parse.unquote(urllib.parse.urlsplit(target).path, errors="surrogateescape")
    if "\0" in path:
        return None
    try:
        found = (root / path.lstrip("/")).resolve()
        return found if found.is_relative_to(root) and found.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def etag(stat: os.stat_result) -> str:
    return f'"{stat.st_size:x}-{stat.st_mtime_ns:x}"'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "edge-moe-testbed"
    sys_version = ""
    timeout = 60
    root: Path  # set by make_server()

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path = locate(self.root, self.path)
        if path is None:
            self._refuse(HTTPStatus.NOT_FOUND, "no such file\n", with_body)
            return
        try:
            file = path.open("rb")
        except OSError:
            self._refuse(HTTPStatus.FORBIDDEN, "this file cannot be read\n", with_body)
            return
        with file:
            stat = os.fstat(file.fileno())
            tag = etag(stat)
            wanted = self.headers.get("Range")
            # A client that resumes says which version it has; of another version it must get everything.
            if self.headers.get("If-Range") not in (None, tag):
                wanted = None
            try:
                part = parse_range(wanted, stat.st_size)
            except Unsatisfiable:
                self._refuse(
                    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
                    "range outside the file\n",
                    with_body,
                    {"Content-Range": f"bytes */{stat.st_size}"},
                )
                return
            start, end = part if part is not None else (0, stat.st_size - 1)
            self.send_response(HTTPStatus.OK if part is None else HTTPStatus.PARTIAL_CONTENT)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(end - start + 1))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", tag)
            self.send_header("Last-Modified", self.date_time_string(int(stat.st_mtime)))
            if part is not None:
                self.send_header("Content-Range", f"bytes {start}-{end}/{stat.st_size}")
            self.end_headers()
            if with_body:
                self._send(file, start, end - start + 1)

    def _send(self, file: BinaryIO, start: int, count: int) -> None:
        file.seek(start)
        try:
            while count > 0:
                data = file.read(min(CHUNK, count))
                if not data:
                    # Shorter than it was: the promised length cannot be kept, so the client must see a break.
                    self.close_connection = True
                    return
                self.wfile.write(data)
                count -= len(data)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True

    def _refuse(self, status: HTTPStatus, text: str, with_body: bool, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text.encode())))
        # Percent-encoded: a header is ASCII, and a folder may be named in any script.
        self.send_header(IDENTITY_HEADER, urllib.parse.quote(str(self.root)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        say(f"{self.address_string()} {format % args}")


class Server(ThreadingHTTPServer):
    daemon_threads = True


def make_server(root: Path, port: int) -> Server:
    """A server of one folder on 127.0.0.1; port 0 takes a free one."""
    folder = root.resolve()
    if not folder.is_dir():
        raise TestbedError(f"{root} is no folder: nothing to serve")
    handler = type("FolderHandler", (Handler,), {"root": folder})
    try:
        return Server(("127.0.0.1", port), handler)
    except OSError as error:
        raise TestbedError(f"cannot serve on port {port} of 127.0.0.1: {error.strerror}") from error


def served_folder(port: int) -> str | None:
    """What one of our servers on this port serves; None if there is none."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
    except urllib.error.HTTPError as answer:
        with answer:
            folder = answer.headers.get(IDENTITY_HEADER)
            return urllib.parse.unquote(folder) if folder else None
    except (OSError, ValueError):
        pass
    return None


def _state(port: int) -> Path:
    return home() / "servers" / f"{port}.json"


def _pid(port: int) -> int | None:
    """The process that `serve --detach` started for this port, if it still is that process."""
    try:
        pid = int(json.loads(_state(port).read_text())["pid"])
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if b"edge_moe_testbed.fileserver" in argv and str(port).encode() in argv else None


def start_detached(root: Path, port: int) -> bool:
    """Starts a server that outlives this command; False if it serves this folder on this port already."""
    if not root.is_dir():
        raise TestbedError(f"{root} is no folder: nothing to serve")
    folder = str(root.resolve())
    if served_folder(port) == folder:
        return False
    check_port(port)
    state = _state(port)
    state.parent.mkdir(parents=True, exist_ok=True)
    log = state.with_suffix(".log")
    argv = [sys.executable, "-m", "edge_moe_testbed.fileserver", "serve", folder, "--port", str(port)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
        )
    state.write_text(json.dumps({"pid": process.pid, "folder": folder}) + "\n")
    deadline = time.monotonic() + START_LIMIT_S
    while served_folder(port) != folder:
        if process.poll() is not None or time.monotonic() > deadline:
            stop_detached(port)
            raise TestbedError(f"the file server did not start on port {port}; its log: {log}")
        time.sleep(0.1)
    return True


def stop_detached(port: int) -> bool:
    pid = _pid(port)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        while _pid(port) is not None and time.monotonic() < deadline:
            time.sleep(0.1)
    _state(port).unlink(missing_ok=True)
    return pid is not None


def add_arguments(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("serve", help="serve a folder to boards over HTTP on loopback, with byte ranges")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--port", type=port_number, required=True, help="boards reach it as http://10.0.2.2:PORT/")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--detach", action="store_true", help="return once it answers; it goes on in the background")
    how.add_argument("--stop", action="store_true", help="end the one that --detach started on this port")


def run(args: argparse.Namespace) -> int:
    return refusing(_run_command, args)


def _run_command(args: argparse.Namespace) -> int:
    if args.stop:
        say(f"file server on port {args.port}: {'stopped' if stop_detached(args.port) else 'unchanged'}")
        return 0
    if args.folder is None:
        raise TestbedError("serve needs the folder to serve")
    if args.detach:
        say(f"file server on port {args.port}: {'started' if start_detached(args.folder, args.port) else 'unchanged'}")
        return 0
    with make_server(args.folder, args.port) as server:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        say(f"serving {args.folder.resolve()} on http://127.0.0.1:{server.server_address[1]}/")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="edge_moe_testbed.fileserver")
    add_arguments(parser.add_subparsers(required=True, metavar="COMMAND"))
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
