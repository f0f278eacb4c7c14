# SPDX-License-Identifier: GPL-3.0-or-later
"""Boards without a machine: names, ports, state files, and what `up` refuses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from edge_moe_testbed import board as boards
from edge_moe_testbed import login
from edge_moe_testbed.board import Board, Settings
from edge_moe_testbed.common import TestbedError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_MOE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def pretend(name: str, port: int) -> tuple[Board, subprocess.Popen[bytes]]:
    """A board whose machine is a sleeping process with QEMU's arguments."""
    board = Board(name)
    board.folder.mkdir(parents=True)
    (board.folder / "board.json").write_text(json.dumps({"port": port}))
    disk = f"if=none,id=root,format=qcow2,file={board.folder}/root.qcow2"
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", disk], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    (board.folder / "qemu.pid").write_text(f"{process.pid}\n")
    return board, process


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", "a/b", "..", "a b", "a" * 43, "a\n", "보드"])
def test_names_that_are_no_folder_or_host_name_are_refused(name: str) -> None:
    with pytest.raises(TestbedError, match="no name for a board"):
        Board(name)


@pytest.mark.parametrize("name", ["a", "dev", "virtual-orin-nano-molecule", "a" * 42])
def test_ordinary_names_are_taken(name: str) -> None:
    assert Board(name).folder.name == name


@pytest.mark.parametrize("text", ["0", "65536", "-1", "ssh", "22.5", ""])
def test_what_is_no_port_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        boards.main(["up", "dev", f"--port={text}"])
    assert "is not a port" in capsys.readouterr().err


def test_a_taken_port_is_one_clear_line(taken_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert boards.main(["up", "dev", "--port", str(taken_port)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"port {taken_port} of 127.0.0.1 is taken by another program" in err
    assert Board("dev").settings() is None


def test_a_port_that_another_board_holds_names_it(taken_port: int) -> None:
    _, process = pretend("first", taken_port)
    try:
        with pytest.raises(TestbedError, match="taken by board first"):
            boards.check_port(taken_port, "second")
    finally:
        process.kill()
        process.wait()


def test_a_recycled_process_id_is_not_taken_for_the_board() -> None:
    board = Board("dev")
    board.folder.mkdir(parents=True)
    (board.folder / "qemu.pid").write_text(f"{os.getpid()}\n")
    assert board.pid() is None


@pytest.mark.parametrize("content", ["", "no number", "999999999", "-1"])
def test_a_useless_pidfile_means_not_running(content: str) -> None:
    board = Board("dev")
    board.folder.mkdir(parents=True)
    (board.folder / "qemu.pid").write_text(content)
    assert board.pid() is None
    assert board.down() is False


def test_a_running_board_is_kept_unless_asked_for_something_else(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Board, "wait", lambda self: None)
    board, process = pretend("dev", 2201)
    try:
        assert board.up(Settings(port=2201)) is False
        with pytest.raises(TestbedError, match=r"runs with port 2201, and 2202 was asked for.*board down dev"):
            board.up(Settings(port=2202))
        with pytest.raises(TestbedError, match="runs with memory_mib 768, and 1024 was asked for"):
            board.up(Settings(port=2201, memory_mib=1024))
    finally:
        process.kill()
        process.wait()


def test_destroy_ends_the_machine_and_removes_the_folder() -> None:
    board, process = pretend("dev", 2201)
    assert board.destroy() is True
    assert process.wait(timeout=10) != 0
    assert not board.folder.exists()
    assert board.destroy() is False


def test_down_ends_a_machine_whose_system_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "POWEROFF_LIMIT_S", 0.5)
    monkeypatch.setattr(Board, "ssh", lambda *args, **kwargs: subprocess.CompletedProcess([], 255, "", "refused"))
    board, process = pretend("dev", 2201)
    assert board.down() is True
    assert process.wait(timeout=10) != 0
    assert board.folder.exists()
    assert board.down() is False


def test_prepared_boards_differ_in_keys_and_pin_their_own(home: Path) -> None:
    shared = home / "image"
    shared.mkdir()
    (shared / "root.img").write_bytes(b"\0" * 2**20)
    first, second = Board("first"), Board("second")
    for board, port in ((first, 2201), (second, 2202)):
        board.folder.mkdir(parents=True)
        board._prepare(Settings(port=port, nvme_gib=1), shared)
    assert (first.folder / "known_hosts").read_text().startswith("[127.0.0.1]:2201 ssh-ed25519 ")
    for key in ("id_ed25519.pub", "ssh_host_ed25519_key.pub"):
        assert (first.folder / key).read_text() != (second.folder / key).read_text()
    kept = (first.folder / "id_ed25519.pub").read_text()
    first._prepare(Settings(port=2203, nvme_gib=1), shared)
    assert (first.folder / "id_ed25519.pub").read_text() == kept
    assert (first.folder / "known_hosts").read_text().startswith("[127.0.0.1]:2203 ")
    with pytest.raises(TestbedError, match="has 1 GiB, and 2 GiB was asked for"):
        first._prepare(Settings(port=2203, nvme_gib=2), shared)


def test_a_damaged_state_file_says_how_to_go_on() -> None:
    board = Board("dev")
    board.folder.mkdir(parents=True)
    (board.folder / "board.json").write_text('{"prot": 1}')
    with pytest.raises(TestbedError, match="board destroy dev"):
        board.settings()


def test_commands_on_no_board_are_clear(capsys: pytest.CaptureFixture[str]) -> None:
    assert boards.main(["ssh", "ghost", "true"]) == 2
    assert "there is no board ghost" in capsys.readouterr().err
    assert boards.main(["wait", "ghost"]) == 2
    assert "board ghost is not running" in capsys.readouterr().err
    assert boards.main(["down", "ghost"]) == 0
    assert boards.main(["destroy", "ghost"]) == 0
    assert boards.main(["list"]) == 0


def test_the_host_key_is_checked() -> None:
    board, process = pretend("dev", 2201)
    process.kill()
    process.wait()
    argv = board.ssh_command("true")
    assert "StrictHostKeyChecking=yes" in argv
    assert f'UserKnownHostsFile="{board.folder}/known_hosts"' in argv
    assert argv[-2:] == [f"{login.USER}@127.0.0.1", "true"]
