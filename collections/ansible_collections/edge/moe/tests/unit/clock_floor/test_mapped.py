# SPDX-License-Identifier: GPL-3.0-or-later
"""Which loaded libraries are found in what /proc/PID/maps says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from edge_moe_clock_floor.mapped import Mapped, Running, mapped_libraries, trusted

PATTERNS = ("/opt/edge-moe/llama.cpp/current/lib/libllama.so*",)
MAPS = """\
55d0c0000000-55d0c0010000 r-xp 00000000 fe:00 4242                       /usr/bin/llama-server
7f00a0000000-7f00a0100000 r--p 00000000 fe:00 1001                       /opt/old release/lib/libllama.so.0.5.0
7f00a0100000-7f00a0200000 r-xp 00100000 fe:00 1001                       /opt/old release/lib/libllama.so.0.5.0
7f00b0100000-7f00b0200000 r-xp 00100000 00:2f 1002                       /usr/lib/libllama.so.0 (deleted)
7f00c0000000-7f00c0100000 rw-p 00000000 00:00 0                          [heap]
7f00d0000000-7f00d0100000 r-xp 00000000 fe:00 1003                       /usr/lib/libllama-common.so.0
7f00e0000000-7f00e0100000 rw-s 00000000 00:01 1004                       /memfd:libllama.so (deleted)
"""


def process(proc: Path, pid: int, maps: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "maps").write_text(maps)


def test_each_file_once_and_a_door_to_it(tmp_path: Path) -> None:
    process(tmp_path, 7, MAPS)
    assert mapped_libraries(7, PATTERNS, str(tmp_path)) == [
        Mapped(
            "/opt/old release/lib/libllama.so.0.5.0", 1001, f"{tmp_path}/7/root/opt/old release/lib/libllama.so.0.5.0"
        ),
        Mapped("/usr/lib/libllama.so.0", 1002, f"{tmp_path}/7/map_files/7f00b0100000-7f00b0200000"),
    ]


def test_a_process_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    assert mapped_libraries(8, PATTERNS, str(tmp_path)) == []


def test_new_processes_at_once_and_old_ones_in_turn(tmp_path: Path) -> None:
    running = Running(str(tmp_path))
    process(tmp_path, 7, "")
    assert running.look(PATTERNS) == []
    process(tmp_path, 8, MAPS)
    assert all(library.door.startswith(f"{tmp_path}/8/") for library in running.look(PATTERNS))
    (tmp_path / "8" / "maps").write_text("")
    (tmp_path / "7" / "maps").write_text(MAPS)  # exec: the same number, another program
    assert sum(len(running.look(PATTERNS)) for _turn in range(Running.SHARES)) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to own the file")
@pytest.mark.parametrize(("mode", "uid", "expected"), [(0o755, 0, True), (0o775, 0, False), (0o644, 1000, False)])
def test_only_what_root_alone_can_write_is_trusted(tmp_path: Path, mode: int, uid: int, expected: bool) -> None:
    file = tmp_path / "libllama.so"
    file.touch()
    file.chmod(mode)
    os.chown(file, uid, 0)
    assert trusted(file.stat()) is expected
