# SPDX-License-Identifier: GPL-3.0-or-later
"""What is written to the clock, on copies of the fixture trees."""

from __future__ import annotations

import shutil

import pytest
from edge_moe_clock_floor._devfreq import Sysfs
from edge_moe_clock_floor.baseline import Entry, Journal
from edge_moe_clock_floor.controller import BACK_OFF_S, FIGHT_COUNT, Controller
from floor_board import NODE, Board

TOP = 1020000000
THOR = (
    "/sys/devices/platform/bus@0/d0b0000000.pcie/gpu-gpc/devfreq/gpu-gpc-0",
    "/sys/devices/platform/bus@0/d0b0000000.pcie/gpu-nvd/devfreq/gpu-nvd-0",
)


class Bench:
    def __init__(self, board: Board, floor_hz: int = 0) -> None:
        self.board = board
        self.log: list[str] = []
        self.journal = Journal(str(board.root / "run"), "boot-1")
        self.controller = Controller(Sysfs(str(board.root)), self.journal, floor_hz, self.log.append)
        self.controller.start()


def test_raise_and_release_say_so_in_the_published_form(board: Board) -> None:
    bench = Bench(board)
    bench.controller.call(4711, 10.0)
    assert board.min_hz == TOP
    assert bench.controller.applied == (TOP, TOP, TOP)
    assert bench.journal.load() == [Entry(NODE, 306000000, TOP, TOP)]
    bench.controller.release(12.5)
    assert board.min_hz == 306000000
    assert bench.journal.load() == []
    assert bench.log == ["floor 1020 MHz (pid 4711 inference)", "floor 306 MHz (idle)"]
    assert bench.controller.raised_seconds(99.0) == 2.5
    assert bench.controller.transitions == 2


def test_nothing_but_min_freq_is_touched(board: Board) -> None:
    def others() -> dict[str, str]:
        return {
            str(path): path.read_text()
            for path in board.root.joinpath("sys").rglob("*")
            if path.is_file() and path.name != "min_freq"
        }

    before = others()
    bench = Bench(board)
    bench.controller.call(1, 10.0)
    bench.controller.release(12.0)
    assert others() == before


@pytest.mark.parametrize(("floor_hz", "expected"), [(600000000, 612000000), (918000000, 918000000), (5000000000, TOP)])
def test_floor_from_the_settings(board: Board, floor_hz: int, expected: int) -> None:
    bench = Bench(board, floor_hz)
    bench.controller.call(1, 10.0)
    assert board.min_hz == expected
    assert bench.controller.applied == (floor_hz, expected, expected)


@pytest.mark.parametrize("board", ["orin-nano-15w"], indirect=True)
def test_never_above_what_the_power_mode_allows(board: Board) -> None:
    Bench(board).controller.call(1, 10.0)
    assert board.min_hz == 612000000


@pytest.mark.parametrize("board", ["thor"], indirect=True)
def test_thor_has_two_nodes(board: Board) -> None:
    bench = Bench(board)
    bench.controller.call(1, 10.0)
    assert [int(board.file("min_freq", node).read_text()) for node in THOR] == [1575000000, 1692000000]
    bench.controller.release(12.0)
    assert [int(board.file("min_freq", node).read_text()) for node in THOR] == [315000000, 315000000]


@pytest.mark.parametrize("board", ["thor"], indirect=True)
def test_a_second_node_that_refuses_gives_the_first_one_back(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Sysfs.write_min

    def refuse(self: Sysfs, path: str, value_hz: int) -> int | None:
        if "nvd" in path and value_hz > 315000000:
            raise OSError(22, "Invalid argument")
        return write(self, path, value_hz)

    monkeypatch.setattr(Sysfs, "write_min", refuse)
    bench = Bench(board)
    bench.controller.call(1, 10.0)
    assert not bench.controller.raised
    assert bench.controller.write_errors == 1
    assert "Invalid argument" in bench.controller.degraded
    assert [int(board.file("min_freq", node).read_text()) for node in THOR] == [315000000, 315000000]
    assert bench.journal.load() == []


@pytest.mark.parametrize("board", ["orin-nano-jetson-clocks"], indirect=True)
def test_jetson_clocks_stand_down_and_never_saved_as_the_baseline(board: Board) -> None:
    bench = Bench(board)
    bench.controller.call(1, 10.0)
    bench.controller.call(1, 11.0)
    assert not bench.controller.raised
    assert bench.journal.load() == []
    assert "jetson_clocks" in bench.controller.degraded
    assert len(bench.log) == 1, "said once"
    bench.controller.release(12.0)
    assert board.min_hz == TOP
    board.min_hz = 306000000  # undone
    bench.controller.look()
    assert bench.controller.degraded == ""
    bench.controller.call(1, 13.0)
    assert bench.controller.raised


def test_jetson_clocks_over_a_lower_floor_is_not_pulled_down(board: Board) -> None:
    bench = Bench(board, 612000000)
    bench.controller.call(1, 10.0)
    board.min_hz = TOP
    bench.controller.call(1, 11.0)
    bench.controller.release(12.0)
    assert board.min_hz == TOP
    assert "standing down" in bench.controller.degraded


def test_jetson_clocks_run_over_the_floor_at_the_top_is_not_undone(board: Board) -> None:
    """It writes the value that is there already; that it pinned the CPUs gives it away."""
    board.set_cpus(115200)
    bench = Bench(board)
    bench.controller.call(1, 10.0)
    board.set_cpus(1728000)
    bench.controller.release(12.0)
    assert board.min_hz == TOP
    assert bench.log[-1].endswith("jetson_clocks was run meanwhile; left pinned")
    assert bench.journal.load() == []
    bench.controller.look()
    assert "standing down" in bench.controller.degraded
    bench.controller.call(1, 13.0)
    assert not bench.controller.raised


def test_jetson_clocks_over_the_floor_survives_a_killed_service_too(board: Board) -> None:
    board.set_cpus(115200)
    Bench(board).controller.call(1, 10.0)
    board.set_cpus(1728000)
    Bench(board)  # restores what a dead one left, as ExecStopPost does
    assert board.min_hz == TOP


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1728000, 1728000), (1728000, 1728000)),  # pinned by somebody's own choice long before: no news
        ((115200, 1728000), (115200, 115200)),  # pushed down by heat
        ((115200, 1728000), (806400, 1728000)),  # a power mode with a higher minimum
    ],
)
def test_other_cpu_clocks_do_not_keep_the_floor_up(
    board: Board, before: tuple[int, int], after: tuple[int, int]
) -> None:
    board.set_cpus(*before)
    bench = Bench(board)
    bench.controller.call(1, 10.0)
    board.set_cpus(*after)
    bench.controller.release(12.0)
    assert board.min_hz == 306000000


def test_a_higher_floor_of_somebody_else_is_left_alone(board: Board) -> None:
    board.min_hz = 714000000
    bench = Bench(board, 612000000)
    bench.controller.call(1, 10.0)
    assert board.min_hz == 714000000
    assert "nothing to raise" in bench.controller.degraded


def test_a_mode_switch_is_answered_and_what_it_set_is_restored(board: Board) -> None:
    bench = Bench(board)
    bench.controller.call(1, 10.0)
    board.min_hz = 408000000
    bench.controller.call(1, 10.1)
    assert board.min_hz == 408000000, "not looked at more often than needed"
    bench.controller.call(1, 10.3)
    assert board.min_hz == TOP
    assert bench.log[-1] == "floor 1020 MHz again (pid 1): it had been set to 408 MHz"
    bench.controller.release(12.0)
    assert board.min_hz == 408000000


def test_a_writer_that_does_not_give_in_is_left_alone_for_a_while(board: Board) -> None:
    bench = Bench(board)
    now = 10.0
    bench.controller.call(1, now)
    for _turn in range(FIGHT_COUNT):
        board.min_hz = 306000000
        now += 0.5
        bench.controller.call(1, now)
    assert board.min_hz == 306000000
    assert "keeps writing" in bench.controller.degraded
    bench.controller.call(1, now + BACK_OFF_S - 1)
    assert board.min_hz == 306000000
    bench.controller.call(1, now + BACK_OFF_S + 1)
    assert board.min_hz == TOP
    assert sum("keeps writing" in line for line in bench.log) == 1


def test_a_floor_left_by_a_dead_service_is_restored_at_start(board: Board) -> None:
    board.min_hz = TOP
    Journal(str(board.root / "run"), "boot-1").save([Entry(NODE, 408000000, TOP, TOP)])
    bench = Bench(board)
    assert board.min_hz == 408000000
    assert bench.log == ["floor 408 MHz (left by an earlier run)"]


def test_a_restore_that_failed_is_tried_again_and_the_original_is_not_learned_anew(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(board)
    bench.controller.call(1, 10.0)
    write = Sysfs.write_min

    def refuse(self: Sysfs, path: str, value_hz: int) -> int | None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Sysfs, "write_min", refuse)
    bench.controller.release(12.0)
    assert board.min_hz == TOP
    assert "cannot restore" in bench.controller.degraded
    monkeypatch.setattr(Sysfs, "write_min", write)
    bench.controller.call(1, 13.0)
    assert bench.controller.raised
    bench.controller.release(14.0)
    assert board.min_hz == 306000000


def test_a_node_that_goes_and_comes_back(board: Board) -> None:
    bench = Bench(board)
    bench.controller.call(1, 10.0)
    kept = board.root / "kept"
    shutil.move(board.file(""), kept)
    link = board.root / "sys/class/devfreq/17000000.gpu"
    target = link.readlink()
    link.unlink()
    bench.controller.call(1, 11.0)
    assert not bench.controller.raised
    assert "no GPU devfreq node" in bench.controller.degraded
    bench.controller.release(12.0)
    shutil.move(kept, board.file(""))
    link.symlink_to(target)
    board.min_hz = 306000000  # the driver starts anew
    bench.controller.look()
    assert bench.controller.degraded == ""
    bench.controller.call(1, 13.0)
    assert board.min_hz == TOP


@pytest.mark.parametrize("board", ["no-gpu", "no-devfreq"], indirect=True)
def test_no_node_is_degraded_not_a_crash(board: Board) -> None:
    bench = Bench(board)
    bench.controller.call(1, 10.0)
    bench.controller.release(11.0)
    assert bench.controller.degraded.startswith("no GPU devfreq node (/sys/class/devfreq ")
    assert len(bench.log) == 1
