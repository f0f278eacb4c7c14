# SPDX-License-Identifier: GPL-3.0-or-later
"""How long the play takes: a first and a second run of site.yml, against the same roles played one by one.

The first run provisions a fresh virtual board, the second finds nothing to do. Role by role means a play of its own for
each role, with Ansible's own defaults (facts gathered at each start, no pipelining) and with discovery and plan made
anew each time, as no facts are kept between them. Both measure the board as `verify` does, and both change nothing.

The figure is role by role over second run, the median of interleaved pairs. The detail has for each run the tasks, the
slowest of them, and the processor seconds of the controller and of the board; and what the ratios would be without the
seconds in which requests are answered and timed, which no play can shorten.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from edge_moe_testbed import fileserver, models
from edge_moe_testbed.bench.figure import BenchError, Figure, machine
from edge_moe_testbed.board import Board, Settings
from edge_moe_testbed.common import PROJECT, TestbedError, home, say

NAME = "virtual-orin-nano-converge"
PORT = 2235
MODEL_PORT = 8095
ROLES = ("jetpack", "llama_cpp", "moe_model", "gpu_clock_floor", "llama_server", "verify")
PAIRS = 3
SLOWEST = 8
LIMIT_S = 3600
GOAL = 3.0
MEASURING = ": edge.moe.verify : Measure the "


@dataclass(frozen=True)
class Run:
    """One or more plays in a row: wall seconds, tasks, and processor seconds of both sides."""

    wall_s: float
    controller_cpu_s: float
    board_cpu_s: float
    tasks: list[tuple[str, float]]
    changed: int

    @property
    def measuring_s(self) -> float:
        return sum(seconds for name, seconds in self.tasks if MEASURING in name)

    def as_dict(self) -> dict[str, Any]:
        slowest = sorted(self.tasks, key=lambda task: -task[1])[:SLOWEST]
        return {
            "wall_s": round(self.wall_s, 1),
            "measuring_s": round(self.measuring_s, 1),
            "controller_cpu_s": round(self.controller_cpu_s, 1),
            "board_cpu_s": round(self.board_cpu_s, 1),
            "task_count": len(self.tasks),
            "changed": self.changed,
            "slowest_tasks_s": {name: round(seconds, 1) for name, seconds in slowest},
        }


def changes(output: str) -> int:
    """Of all hosts of a run's recap. Raises BenchError where there is none."""
    fields = [field for line in output.splitlines() if " changed=" in line for field in line.split()]
    found = [int(field.partition("=")[2]) for field in fields if field.startswith("changed=")]
    if not found:
        raise BenchError(f"the play gave no recap: {output[-300:]}")
    return sum(found)


def tasks_of(folder: Path) -> list[tuple[str, float]]:
    """Name and seconds of each task of the junit files in a folder; skipped ones count as well."""
    return [
        (str(case.get("name")), float(case.get("time") or 0))
        for path in sorted(folder.glob("*.xml"))
        for case in ElementTree.parse(path).iter("testcase")  # noqa: S314 - written by our own run just now
    ]


def role_play(role: str) -> str:
    """A play of one role, which discovers and plans by itself."""
    tasks = PROJECT / "playbooks/tasks"
    play = {
        "hosts": "jetson",
        "become": True,
        "pre_tasks": [{"ansible.builtin.import_tasks": str(tasks / f"{name}.yml")} for name in ("discover", "plan")],
        "roles": [f"edge.moe.{role}"],
    }
    return json.dumps([play])


class Fleet:
    """One fresh virtual board and what is needed to play on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.board = Board(NAME)
        (folder / "group_vars").symlink_to(PROJECT / "inventories/demo/group_vars")
        hosts = {NAME: {"ansible_port": PORT}}
        inventory = {"all": {"children": {"jetson": {"children": {"virtual_board": {"hosts": hosts}}}}}}
        self.inventory = folder / "hosts.json"
        self.inventory.write_text(json.dumps(inventory))
        # Ansible's own defaults but for where the collection lies; facts by their full name, as the roles want them
        self.plain = folder / "plain.cfg"
        self.plain.write_text(f"[defaults]\ncollections_path = {PROJECT / 'collections'}\n")

    def board_cpu_s(self) -> float:
        """Processor seconds that the board has spent since its boot, idle and waiting left out."""
        done = self.board.ssh("head", "-n1", "/proc/stat")
        fields = [int(field) for field in done.stdout.split()[1:9]]
        if done.returncode != 0 or len(fields) < 8:
            raise BenchError(f"{NAME} does not tell its processor time: {done.stdout}{done.stderr}")
        return (sum(fields) - fields[3] - fields[4]) / 100

    def play(self, books: list[Path], config: Path) -> Run:
        tasks: list[tuple[str, float]] = []
        changed = 0
        board, used, began = self.board_cpu_s(), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        for book in books:
            with tempfile.TemporaryDirectory() as junit:
                done = subprocess.run(
                    [str(Path(sys.executable).parent / "ansible-playbook"), str(book), "-i", str(self.inventory)],
                    cwd=PROJECT,
                    env={
                        **os.environ,
                        "ANSIBLE_CONFIG": str(config),
                        "ANSIBLE_CALLBACKS_ENABLED": "ansible.builtin.junit",
                        "JUNIT_OUTPUT_DIR": junit,
                        "EDGE_MOE_MODEL_PORT": str(MODEL_PORT),
                        "LC_ALL": "C.UTF-8",
                    },
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    check=False,
                    timeout=LIMIT_S,
                )
                if done.returncode != 0:
                    raise BenchError(f"{book.name} ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}")
                tasks += tasks_of(Path(junit))
                changed += changes(done.stdout)
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        controller = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        return Run(wall, controller, self.board_cpu_s() - board, tasks, changed)

    def site(self) -> Run:
        return self.play([PROJECT / "site.yml"], PROJECT / "ansible.cfg")

    def role_by_role(self) -> Run:
        books = []
        for role in ROLES:
            book = self.folder / f"{role}.yml"
            book.write_text(role_play(role))
            books.append(book)
        return self.play(books, self.plain)


@contextmanager
def fleet() -> Iterator[Fleet]:
    models.ensure_moe("demo-moe", models.SHAPES["demo"])
    with tempfile.TemporaryDirectory() as folder:
        made = Fleet(Path(folder))
        started = fileserver.start_detached(home() / "models", MODEL_PORT)
        try:
            made.board.destroy()
            made.board.up(Settings(PORT))
            yield made
        finally:
            made.board.destroy()
            if started:
                fileserver.stop_detached(MODEL_PORT)


def measure() -> Figure:
    try:
        with fleet() as board:
            first = board.site()
            say(f"first run {first.wall_s:.0f} s")
            pairs = []
            for number in range(PAIRS):
                # the other way round each time
                runs = [("second", board.site), ("role_by_role", board.role_by_role)]
                pair = {name: play() for name, play in (runs if number % 2 == 0 else reversed(runs))}
                say(f"second run {pair['second'].wall_s:.0f} s, role by role {pair['role_by_role'].wall_s:.0f} s")
                pairs.append(pair)
    except TestbedError as error:
        raise BenchError(str(error)) from error
    moved = [f"{name} {run.changed}" for pair in pairs for name, run in pair.items() if run.changed]
    if moved:
        raise BenchError(f"runs that should have changed nothing changed tasks: {', '.join(moved)}")
    ratios = [pair["role_by_role"].wall_s / pair["second"].wall_s for pair in pairs]
    playing = [{name: run.wall_s - run.measuring_s for name, run in pair.items()} for pair in pairs]
    return Figure(
        name="converge",
        value=round(statistics.median(ratios), 3),
        unit="ratio",
        goal=GOAL,
        better="higher",
        detail={
            "machine": machine(),
            "first": first.as_dict(),
            "pairs": [{name: run.as_dict() for name, run in pair.items()} for pair in pairs],
            "ratios": [round(ratio, 3) for ratio in ratios],
            "ratios_without_measuring": [round(pair["role_by_role"] / pair["second"], 3) for pair in playing],
        },
    )
