# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from edge_moe_clock_floor import baseline
from edge_moe_clock_floor._devfreq import Sysfs
from edge_moe_clock_floor.baseline import Entry, Journal
from floor_board import NODE, Board


def journal(board: Board, boot: str = "boot-1") -> Journal:
    return Journal(str(board.root / "run"), boot)


def restore(board: Board, boot: str = "boot-1") -> list[baseline.Restored]:
    return baseline.restore(Sysfs(str(board.root)), journal(board, boot))


OURS = Entry(NODE, 306000000, 1020000000, 1020000000)


def test_what_was_saved_is_loaded(board: Board) -> None:
    entries = [OURS, Entry("/other", 1, 2, None)]
    journal(board).save(entries)
    assert journal(board).load() == entries
    assert [path.name for path in (board.root / "run").iterdir()] == ["baseline.json"]


def test_restored_if_the_value_is_still_ours(board: Board) -> None:
    board.min_hz = 1020000000
    journal(board).save([OURS])
    assert restore(board) == [baseline.Restored(NODE, 306000000, "")]
    assert board.min_hz == 306000000
    assert restore(board) == [], "twice does nothing"


def test_a_value_that_somebody_set_since_is_left_alone(board: Board) -> None:
    board.min_hz = 510000000
    journal(board).save([OURS])
    (result,) = restore(board)
    assert "somebody else" in result.note
    assert board.min_hz == 510000000
    assert journal(board).load() == []


def test_a_cap_that_was_lowered_since_does_not_hide_that_the_value_is_ours(board: Board) -> None:
    board.file("max_freq").write_text("612000000\n")
    board.min_hz = 612000000
    journal(board).save([OURS])
    assert restore(board)[0].note == ""
    assert board.min_hz == 306000000


def test_without_a_record_of_the_write_it_is_restored_whatever_is_there(board: Board) -> None:
    board.min_hz = 918000000
    journal(board).save([OURS._replace(ours_hz=None)])
    assert restore(board)[0].note == ""
    assert board.min_hz == 306000000


def test_a_journal_of_another_boot_owes_nothing(board: Board) -> None:
    board.min_hz = 1020000000
    journal(board).save([OURS])
    assert restore(board, boot="boot-2") == []
    assert board.min_hz == 1020000000
    assert not (board.root / "run" / "baseline.json").exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot_id": "boot-1"}', '{"boot_id": "boot-1", "nodes": [{"path": 1}]}']
)
def test_an_unreadable_journal_owes_nothing(board: Board, text: str) -> None:
    (board.root / "run").mkdir()
    (board.root / "run" / "baseline.json").write_text(text)
    assert restore(board) == []


def test_a_node_that_is_gone_is_said_and_forgotten(board: Board) -> None:
    journal(board).save([OURS])
    shutil.rmtree(board.file(""))
    assert "gone" in restore(board)[0].note
    assert journal(board).load() == []


def test_a_restore_that_fails_keeps_the_journal(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.min_hz = 1020000000
    journal(board).save([OURS])

    def refuse(self: Sysfs, path: str, value_hz: int) -> int | None:
        raise PermissionError(13, "refused")

    monkeypatch.setattr(Sysfs, "write_min", refuse)
    with pytest.raises(PermissionError):
        restore(board)
    assert journal(board).load() == [OURS]


def test_the_old_journal_survives_a_save_that_fails(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    journal(board).save([OURS])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        journal(board).save([])
    assert json.loads(Path(journal(board).path).read_text())["nodes"], "the old one"
