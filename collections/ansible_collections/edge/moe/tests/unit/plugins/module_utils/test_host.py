# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import time
from pathlib import Path

from ansible_collections.edge.moe.plugins.module_utils._host import COMMAND_OUTPUT_LIMIT, Host, run_command


def test_reads_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 1_000_000)
    data = Host(str(tmp_path)).read_bytes("/big", 1000)
    assert data == b"x" * 1000


def test_text_loses_nuls_and_keeps_what_is_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"NVIDIA \xff Orin\0\0\n")
    assert Host(str(tmp_path)).read_text("/model") == "NVIDIA \ufffd Orin"


def test_what_is_missing_is_none(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert host.read_text("/no") is None
    assert host.read_int("/no") is None
    assert host.entries("/no") == []
    assert host.link_target("/no") is None


def test_a_fifo_does_not_hold_the_module(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert Host(str(tmp_path)).read_bytes("/fifo") is None


def test_a_number_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "n").write_text("12 \n")
    (tmp_path / "t").write_text("twelve")
    host = Host(str(tmp_path))
    assert host.read_int("/n") == 12
    assert host.read_int("/t") is None


def test_a_command_gives_its_output_and_code() -> None:
    result = run_command(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert result == (3, "out\n", "err\n", None)


def test_a_command_that_asks_gets_no_answer() -> None:
    result = run_command(["sh", "-c", "read line && echo got $line || echo closed"])
    assert result.stdout == "closed\n"


def test_a_command_that_hangs_is_ended_with_its_children() -> None:
    started = time.monotonic()
    result = run_command(["sh", "-c", "echo begun; sleep 60 & echo $!; wait"], timeout_s=0.5)
    assert time.monotonic() - started < 5
    assert result.problem == "no answer within 0.5 s"
    assert result.rc is None
    child = int(result.stdout.split()[1])
    for _attempt in range(50):
        if not os.path.exists(f"/proc/{child}") or "Z" in Path(f"/proc/{child}/stat").read_text().rsplit(")")[1]:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the child outlived its command")


def test_a_command_that_floods_is_ended() -> None:
    result = run_command(["sh", "-c", "yes"], timeout_s=10)
    assert result.problem is not None
    assert "printed more than" in result.problem
    assert len(result.stdout) < COMMAND_OUTPUT_LIMIT + 200_000


def test_a_command_that_is_not_there() -> None:
    assert run_command(["no-such-command-of-a-board"]).problem == "not found"
