# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole service with real uprobes, on a small library of our own and a fixture tree for the clock.

Needs root, a compiler and a kernel with uprobe events; says so where one is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from floor_board import PACKAGE_DIR, Board

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0
    or not Path("/sys/bus/event_source/devices/uprobe/type").exists()
    or shutil.which(os.environ.get("CC", "cc")) is None,
    reason="needs root, uprobe events and a C compiler",
)

TOP, LOW = 1020000000, 306000000
LIBRARY = """
#include <unistd.h>
int llama_decode(int us) { return usleep(us); }
void llama_synchronize(int us) { usleep(us); }
"""
CALLER = """
#include <stdlib.h>
#include <string.h>
int llama_decode(int us);
void llama_synchronize(int us);
/* caller CALLS MICROSECONDS [flags]: each call in turn */
int main(int argc, char ** argv) {
    (void) argc;
    for (int i = atoi(argv[1]); i > 0; i--) { llama_decode(atoi(argv[2])); llama_synchronize(1); }
    return 0;
}
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("library")
    compiler = os.environ.get("CC", "cc")
    (where / "library.c").write_text(LIBRARY)
    (where / "caller.c").write_text(CALLER)
    library = [compiler, "-shared", "-fPIC", "-Wl,-soname,libllama.so.0", "-o", "libllama.so.0", "library.c"]
    subprocess.run(library, cwd=where, check=True)
    caller = [compiler, "-o", "caller", "caller.c", "./libllama.so.0"]
    subprocess.run(caller, cwd=where, check=True)
    return where


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


class Service:
    """A running service. Its log is printed when a test fails, as pytest shows what was printed."""

    def __init__(self, board: Board, built: Path) -> None:
        self.board = board
        self.root = board.root
        self.lib = board.root / "releases" / "one"
        shutil.copytree(built, self.lib)
        (self.root / "current").symlink_to("releases/one")
        self.settings = self.root / "settings"
        # What else runs on this machine is not watched.
        self.settings.write_text(
            f"LIBRARIES={self.root}/current/libllama.so*\nHOLD_S=0.4\nRESCAN_S=0.3\nWATCH_RUNNING=no\n"
        )
        self.log_file = self.root / "log"
        self.callers: list[subprocess.Popen[bytes]] = []
        self.process = self.start()

    def command(self, *words: str) -> list[str]:
        run = self.root / "run"
        run.mkdir(exist_ok=True)
        return [
            sys.executable, "-m", "edge_moe_clock_floor", *words,
            "--root", str(self.root), "--config", str(self.settings),
            "--run-dir", str(run), "--metrics", str(run / "floor.prom"),
        ]  # fmt: skip

    def start(self) -> subprocess.Popen[bytes]:
        self.log_file.write_text("")
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(self.command("run"), stderr=log, env={"PYTHONPATH": str(PACKAGE_DIR)})
        assert wait_for(lambda: (self.root / "run" / "floor.prom").exists() and "watching" in self.log), self.log
        return process

    def restart(self) -> None:
        self.process = self.start()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {"PYTHONPATH": str(PACKAGE_DIR)}
        return subprocess.run(self.command(*words), env=environment, capture_output=True, text=True, check=False)

    def call(self, *words: str, release: str = "current", **environment: str) -> subprocess.Popen[bytes]:
        folder = self.root / release
        variables = {"LD_LIBRARY_PATH": str(folder), **environment}
        caller = subprocess.Popen([str(folder / "caller"), *words], env=variables)
        self.callers.append(caller)
        return caller

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def up(self) -> bool:
        return self.board.file("min_freq").read_text().strip() == str(TOP)

    @property
    def down(self) -> bool:
        return self.board.file("min_freq").read_text().strip() == str(LOW)

    def metric(self, name: str) -> float:
        text = (self.root / "run" / "floor.prom").read_text()
        match = re.search(rf"^edge_moe_clock_floor_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        assert match is not None, text
        return float(match.group(1))

    def stop(self) -> None:
        for process in [*self.callers, self.process]:
            if process.poll() is None:
                process.kill()
            process.wait()
        print(self.log)


@pytest.fixture
def service(board: Board, built: Path) -> Iterator[Service]:
    running = Service(board, built)
    yield running
    running.stop()


def test_raise_hold_restore_and_the_journal_lines(service: Service) -> None:
    assert service.metric("probes_attached") == 4
    caller = service.call("20", "100000", "--cpu-moe")
    assert wait_for(lambda: service.up)
    caller.wait()
    ended = time.monotonic()
    time.sleep(0.1)
    assert service.up, "held"
    assert wait_for(lambda: service.down)
    assert 0.3 < time.monotonic() - ended < 5
    lines = f"floor 1020 MHz (pid {caller.pid} inference)\nfloor 306 MHz (idle)\n"
    assert wait_for(lambda: lines in service.log)
    assert wait_for(lambda: service.metric("transitions_total") == 2)
    assert service.metric("raised") == 0
    assert 1.0 < service.metric("raised_seconds_total") < 8
    assert service.metric("write_errors_total") == service.metric("lost_events_total") == 0


def test_a_dense_model_never_moves_the_clock(service: Service) -> None:
    service.call("1000", "1000", "-m", "dense.gguf").wait()
    time.sleep(0.3)
    assert service.down
    assert service.metric("transitions_total") == 0


def test_a_model_that_counts_is_seen_while_a_dense_one_computes(service: Service) -> None:
    """Calls that do not count silence the bells for a moment: whoever begins then must be found all the same."""
    service.call("100000", "2000", "-m", "dense.gguf")
    time.sleep(0.3)
    for _turn in range(3):
        caller = service.call("20", "50000", "--cpu-moe")
        assert wait_for(lambda: service.up)
        caller.wait()
        assert wait_for(lambda: service.down)


def test_calls_right_after_the_floor_came_down_raise_it_again(service: Service) -> None:
    """The bells are switched off with the floor up, so each release has to switch them on before it sleeps."""
    for number in range(1, 6):
        service.call("1", "50000", "--cpu-moe").wait()
        assert wait_for(lambda count=2 * number: service.metric("transitions_total") == count)


def test_experts_placed_by_the_environment(service: Service) -> None:
    service.call("50", "100000", LLAMA_ARG_N_CPU_MOE="4")
    assert wait_for(lambda: service.up)


def test_a_call_longer_than_the_hold_keeps_the_floor(service: Service) -> None:
    service.call("1", "6000000", "-cmoe")
    assert wait_for(lambda: service.up)
    time.sleep(1.1)
    assert service.up


def test_a_process_killed_inside_a_call(service: Service) -> None:
    caller = service.call("1", "600000000", "--n-cpu-moe", "3")
    assert wait_for(lambda: service.up)
    caller.kill()
    assert wait_for(lambda: service.down)
    assert wait_for(lambda: service.metric("in_flight") == 0)


def test_a_floor_that_is_wiped_in_mid_call_comes_back(service: Service) -> None:
    service.call("1", "600000000", "--cpu-moe")
    assert wait_for(lambda: service.up)
    service.board.min_hz = LOW
    assert wait_for(lambda: service.up)
    assert wait_for(lambda: "it had been set to 306 MHz" in service.log), "the line follows the write"


def test_sigterm_restores(service: Service) -> None:
    service.call("1", "600000000", "--cpu-moe")
    assert wait_for(lambda: service.up)
    service.process.terminate()
    assert service.process.wait(5) == 0
    assert service.down
    assert service.run("restore").returncode == 0


def test_sigkill_then_restore_as_execstoppost_does(service: Service) -> None:
    service.call("1", "600000000", "--cpu-moe")
    assert wait_for(lambda: service.up)
    assert service.run("restore").returncode == 3, "not while it runs"
    assert service.up
    service.process.kill()
    service.process.wait()
    assert service.up, "nobody has restored it yet"
    done = service.run("restore")
    assert (done.returncode, done.stderr) == (0, "floor 306 MHz (restored)\n")
    assert service.down


def test_sigkill_then_start_restores_too(service: Service) -> None:
    caller = service.call("1", "600000000", "--cpu-moe")
    assert wait_for(lambda: service.up)
    service.process.kill()
    service.process.wait()
    caller.kill()
    service.restart()
    assert service.down
    assert "left by an earlier run" in service.log


def test_a_library_that_is_replaced_is_watched_again(service: Service, built: Path) -> None:
    shutil.copy(built / "libllama.so.0", service.lib / "new")
    (service.lib / "new").rename(service.lib / "libllama.so.0")
    assert wait_for(lambda: service.log.count("watching") >= 2)
    service.call("30", "100000", "--cpu-moe")
    assert wait_for(lambda: service.up)


def test_current_moves_while_the_old_release_still_runs(service: Service, built: Path) -> None:
    service.call("1", "600000000", "dense", release="releases/one")
    shutil.copytree(built, service.root / "releases" / "two")
    (service.root / "next").symlink_to("releases/two")
    (service.root / "next").rename(service.root / "current")
    assert wait_for(lambda: service.log.count("watching") >= 2)
    assert "no longer watching" not in service.log
    service.call("30", "100000", "--cpu-moe", release="releases/one")
    assert wait_for(lambda: service.up), "the old file, which something still runs"
    assert wait_for(lambda: service.down, 15)
    service.call("30", "100000", "--cpu-moe", release="releases/two")
    assert wait_for(lambda: service.up)


def test_a_deleted_library_that_a_server_still_runs_is_found_by_a_new_service(board: Board, built: Path) -> None:
    """Nothing leads there any more but the process itself."""
    service = Service(board, built)
    try:
        service.process.terminate()
        service.process.wait()
        server = service.call("600", "100000", "--cpu-moe", release="releases/one")
        shutil.copy(built / "libllama.so.0", service.lib / "new")
        assert wait_for(lambda: "libllama" in Path(f"/proc/{server.pid}/maps").read_text())
        (service.lib / "new").rename(service.lib / "libllama.so.0")
        service.settings.write_text(f"LIBRARIES={service.root}/current/libllama.so.0\nHOLD_S=0.4\nRESCAN_S=0.3\n")
        service.restart()
        assert wait_for(lambda: f"(pid {server.pid} inference)" in service.log)
        # servers of other tests may have loaded a library of this name
        assert service.log.count(f"watching {service.root}/") == 2, "the new file and the old one"
    finally:
        service.stop()


def test_a_library_that_appears_later(board: Board, built: Path) -> None:
    service = Service(board, built)
    try:
        service.process.terminate()
        service.process.wait()
        hidden = service.root / "hidden"
        service.lib.rename(hidden)
        service.log_file.write_text("")
        with service.log_file.open("ab") as log:
            service.process = subprocess.Popen(service.command("run"), stderr=log, env={"PYTHONPATH": str(PACKAGE_DIR)})
        assert wait_for(lambda: (service.root / "run" / "floor.prom").exists() and service.metric("degraded") == 1)
        hidden.rename(service.lib)
        assert wait_for(lambda: "watching" in service.log)
        service.call("30", "100000", "--cpu-moe")
        assert wait_for(lambda: service.up)
    finally:
        service.stop()


def test_check_and_status_without_the_service(service: Service) -> None:
    checked = service.run("--check")
    assert checked.returncode == 0, checked.stdout
    assert "llama_decode, llama_synchronize (not there: llama_process)" in checked.stdout
    assert "would be 1020 MHz" in checked.stdout
    assert "edge_moe_clock_floor_raised 0" in service.run("--status").stdout
    (service.lib / "libllama.so.0").unlink()
    assert service.run("check").returncode == 1


def test_a_bad_setting_stops_the_start_and_leaves_the_clock_alone(service: Service) -> None:
    service.process.send_signal(signal.SIGTERM)
    service.process.wait()
    service.board.min_hz = 510000000
    service.settings.write_text("HOLD_S=forever\n")
    done = service.run("run")
    assert done.returncode == 2
    assert "HOLD_S=forever" in done.stderr
    assert "seconds from 0 to 60" in done.stderr
    assert service.board.min_hz == 510000000


def test_a_second_service_is_refused(service: Service) -> None:
    assert service.run("run").returncode == 3


def test_once_raises_by_hand_and_restores(service: Service) -> None:
    service.process.terminate()
    service.process.wait()
    done = service.run("once", "600MHz", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "requested 600 MHz, applied 612 MHz, effective 612 MHz\n"
    assert service.down
