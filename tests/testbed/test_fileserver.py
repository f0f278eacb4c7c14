# SPDX-License-Identifier: GPL-3.0-or-later
"""The file server: ranges as HTTP defines them, and nothing from outside the served folder."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from edge_moe_testbed import fileserver
from edge_moe_testbed.common import TestbedError

DATA = bytes(range(256)) * 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "served"
    (root / "sub").mkdir(parents=True)
    (root / "model.gguf").write_bytes(DATA)
    (root / "empty").touch()
    (root / "sub" / "모델 1.gguf").write_bytes(b"korean")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "served-too").mkdir()
    (tmp_path / "served-too" / "secret").write_bytes(b"secret")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "inside").symlink_to("model.gguf")
    (root / "loop").symlink_to("loop")
    return root


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    with fileserver.make_server(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def ask(port: int, target: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest(method, target)
    for key, value in headers.items():
        connection.putheader(key.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_a_whole_file(port: int) -> None:
    response, body = ask(port, "/model.gguf")
    assert (response.status, body) == (200, DATA)
    assert response.headers["Accept-Ranges"] == "bytes"
    assert response.headers["Content-Length"] == str(len(DATA))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 0)),
        ("bytes=10-19", (10, 19)),
        ("bytes=4090-", (4090, 4095)),
        ("bytes=-6", (4090, 4095)),
        ("bytes=-99999", (0, 4095)),
        ("bytes=4000-99999", (4000, 4095)),
    ],
)
def test_ranges(port: int, header: str, expected: tuple[int, int]) -> None:
    response, body = ask(port, "/model.gguf", Range=header)
    start, end = expected
    assert response.status == 206
    assert response.headers["Content-Range"] == f"bytes {start}-{end}/4096"
    assert body == DATA[start : end + 1]


@pytest.mark.parametrize(
    "header", ["bytes=5-2", "bytes=-", "bytes=a-b", "items=0-1", "bytes=0-1,4-5", "bytes=--5", "x"]
)
def test_ranges_that_are_none_are_ignored(port: int, header: str) -> None:
    response, body = ask(port, "/model.gguf", Range=header)
    assert (response.status, body) == (200, DATA)


@pytest.mark.parametrize("header", ["bytes=4096-", "bytes=9999999999999999999-", "bytes=-0"])
def test_ranges_outside_the_file_are_refused(port: int, header: str) -> None:
    response, _ = ask(port, "/model.gguf", Range=header)
    assert response.status == 416
    assert response.headers["Content-Range"] == "bytes */4096"


def test_an_empty_file(port: int) -> None:
    assert ask(port, "/empty")[1] == b""
    assert ask(port, "/empty")[0].status == 200
    assert ask(port, "/empty", Range="bytes=0-")[0].status == 416


def test_resuming_another_version_gets_all_of_it(port: int, folder: Path) -> None:
    tag = ask(port, "/model.gguf", "HEAD")[0].headers["ETag"]
    assert ask(port, "/model.gguf", Range="bytes=10-", If_Range=tag)[0].status == 206
    (folder / "model.gguf").write_bytes(DATA[::-1])
    os.utime(folder / "model.gguf", ns=(0, 12345))
    response, body = ask(port, "/model.gguf", Range="bytes=10-", If_Range=tag)
    assert (response.status, body) == (200, DATA[::-1])
    assert response.headers["ETag"] != tag


def test_head_has_the_headers_and_no_body(port: int) -> None:
    response, body = ask(port, "/model.gguf", "HEAD", Range="bytes=0-9")
    assert (response.status, body, response.headers["Content-Length"]) == (206, b"", "10")
    assert ask(port, "/none", "HEAD")[1] == b""


def test_one_connection_serves_many_requests(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for target, status in (("/none", 404), ("/model.gguf", 200), ("/empty", 200)):
        connection.request("GET", target)
        response = connection.getresponse()
        assert (response.status, len(response.read())) == (status, int(response.headers["Content-Length"]))
    connection.close()


def test_names_in_any_script_and_links_within(port: int) -> None:
    assert ask(port, "/sub/%EB%AA%A8%EB%8D%B8%201.gguf?x=1#y")[1] == b"korean"
    assert ask(port, "/inside")[1] == DATA


@pytest.mark.parametrize(
    "target",
    [
        "/../secret",
        "/%2e%2e/secret",
        "/sub/../../secret",
        "/sub/%2e%2e%2f%2e%2e%2fsecret",
        "/..%2fserved-too/secret",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "http://127.0.0.1/../secret",
        "/out",
        "/loop",
        "/sub",
        "/sub/",
        "/",
        "/model.gguf/x",
        "/model.gguf%00",
        "/%00",
        "/%ff%fe",
        "/" + "a" * 5000,
        "/none",
    ],
)
def test_whatever_is_no_file_of_the_folder_is_not_found(port: int, target: str) -> None:
    response, body = ask(port, target)
    assert (response.status, body) == (404, b"no such file\n")


def test_other_methods_are_refused(port: int) -> None:
    assert ask(port, "/model.gguf", "DELETE")[0].status == 501
    assert ask(port, "/model.gguf", "POST")[0].status == 501


def test_the_server_listens_on_loopback_only(port: int) -> None:
    with open("/proc/net/tcp") as table:
        listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
    assert [address for address in listening if address.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_detached_server_starts_once_and_stops(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_MOE_HOME", str(tmp_path / "home"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    try:
        assert fileserver.start_detached(folder, free) is True
        assert fileserver.start_detached(folder, free) is False
        assert ask(free, "/model.gguf", Range="bytes=-1")[1] == DATA[-1:]
        with pytest.raises(TestbedError, match=f"port {free} of 127.0.0.1 is taken"):
            fileserver.start_detached(folder / "sub", free)
    finally:
        assert fileserver.stop_detached(free) is True
    assert fileserver.served_folder(free) is None
    assert fileserver.stop_detached(free) is False


def test_a_folder_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fileserver.main(["serve", str(tmp_path / "none"), "--port", "8123"]) == 2
    assert "is no folder" in capsys.readouterr().err
