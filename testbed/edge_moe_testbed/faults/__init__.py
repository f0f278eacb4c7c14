# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults planted on a virtual board that serves: is each found, by its class, and does an unharmed board pass?

on_board.py plants, measures and takes back, on the board and in one command for all, since every command costs an
emulated board seconds. Here what it measured is judged with the plan and the reference of the board's
own result file, by the same code as in the verify role.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import shlex
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_moe_testbed.board import Board, at_least
from edge_moe_testbed.common import PROJECT, TestbedError, home, say
from edge_moe_testbed.prompts import prompts

COLLECTIONS = PROJECT / "collections"
MODULE_UTILS = COLLECTIONS / "ansible_collections/edge/moe/plugins/module_utils"
TESTBED = Path(__file__).resolve().parents[2]
ON_BOARD = "/run/edge-moe-planted-faults"
UNIT = "edge-moe-planted-faults"
PROGRAM = ["/usr/bin/python3", "-m", "edge_moe_testbed.faults.on_board"]
# The clock's hold time and a period of the health files.
SETTLE_S = 2.5
ROUND_LIMIT_S = 300
# An emulated board is now twice as fast and now half as fast; a planted slowness is a factor of four.
# A request takes it two seconds, of which it may need one to notice that the clock is wanted.
THRESHOLDS = {"min_decode_ratio": 0.5, "min_floor_share": 0.1}


@dataclass(frozen=True)
class Fault:
    """`first` is the class that has to head the list, None for a board that passes; `more` may follow it."""

    title: str
    first: str | None
    more: frozenset[str] = frozenset()


FAULTS = {
    "nothing": Fault("nothing: the board as it is", None),
    "wrong_character": Fault("one character of an answer changed", "text_differs"),
    "cache_off": Fault("the cache off behind the plan's back", "cache_inert", frozenset({"too_slow"})),
    "floor_masked": Fault("the clock floor's service masked", "floor_never_raised"),
    "throttled": Fault("the CPU throttled", "throttled", frozenset({"too_slow"})),
    "swap_allowed": Fault("no limit of swap on the server", "swap_not_off"),
    "swapped": Fault("parts of the server in swap", "swap_not_off", frozenset({"swap_in_use", "too_slow"})),
    "slow": Fault("a quarter of a CPU for the server", "too_slow"),
}


@dataclass(frozen=True)
class Seen:
    """One round of a fault: the classes of the verdict in their order, all of it, and the seconds on the board."""

    fault: str
    classes: tuple[str, ...]
    verdict: dict[str, Any]
    seconds: float

    @property
    def right(self) -> bool:
        fault = FAULTS[self.fault]
        if fault.first is None:
            return not self.classes
        return self.classes[:1] == (fault.first,) and fault.more.issuperset(self.classes[1:])


class Verified:
    """What verifying a board left: its plan, the reference's answers to the shortest prompt, and that prompt."""

    def __init__(self, name: str) -> None:
        path = home() / "results" / f"{name}.json"
        try:
            result = json.loads(path.read_text())
            self.plan: dict[str, Any] = result["plan"]
            reference = result["reference"]
            self.n_predict = int(reference["n_predict"])
            self.prompt_id = min(reference["requests"], key=lambda request: int(request["n_prompt"]))["id"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise TestbedError(
                f"{path} is no result of a verified board ({type(error).__name__}: {error}); "
                f"provision {name} with site.yml first"
            ) from error
        asked = [request for request in reference["requests"] if request["id"] == self.prompt_id]
        speed = statistics.median(request["decode_tokens_per_s"] for request in asked)
        self.reference = {**reference, "requests": asked, "decode_tokens_per_s": speed}

    def settings(self, faults: list[str], rounds: int, seed: int) -> dict[str, Any]:
        return {
            "faults": faults,
            "prompt": {"id": self.prompt_id, "text": prompts()[self.prompt_id]},
            "n_predict": self.n_predict,
            "block_device": "nvme0n1",
            "settle_s": SETTLE_S,
            "rounds": rounds,
            "seed": seed,
        }

    def judge(self, measurement: dict[str, Any]) -> dict[str, Any]:
        if str(COLLECTIONS) not in sys.path:
            sys.path.append(str(COLLECTIONS))
        verdict = importlib.import_module("ansible_collections.edge.moe.plugins.module_utils._verdict")
        judged: dict[str, Any] = verdict.judge(self.reference, measurement, self.plan, THRESHOLDS)
        return judged


def ship(board: Board) -> None:
    """Put the code that plants and measures onto the board, into memory."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in sorted(MODULE_UTILS.glob("*.py")):
            tar.add(path, path.relative_to(COLLECTIONS))
        for name in ("on_board.py", "wrong_character.py"):
            path = Path(__file__).with_name(name)
            tar.add(path, path.relative_to(TESTBED))
    folder = shlex.quote(ON_BOARD)
    script = f"rm -rf {folder} && mkdir -m 0700 {folder} && tar --no-same-owner -x -C {folder}"
    command = board.ssh_command(shlex.join(["sudo", "sh", "-c", script]))
    done = subprocess.run(command, input=archive.getvalue(), capture_output=True, timeout=120, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise TestbedError(f"board {board.name} does not take the faults: {said or f'exit code {done.returncode}'}")


def plant(board: Board, faults: list[str], verified: Verified, rounds: int, seed: int) -> Iterator[Seen]:
    """Plant each fault so many times, once `ship` was called; what was seen, round by round.

    The program runs as a unit of its own, so that systemd takes back what is planted however it ends.
    """
    path = f"PYTHONPATH={ON_BOARD}"
    unit = ["sudo", "systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--unit={UNIT}", f"--setenv={path}"]
    unit += [
        "--expand-environment=no",
        f"--property=RuntimeMaxSec={ROUND_LIMIT_S * (rounds * len(faults) + 1)}",
        "--setenv=PYTHONDONTWRITEBYTECODE=1",
    ]
    unit += [f"--property=ExecStopPost={shlex.join([*PROGRAM, 'restore'])}"]
    command = [*unit, *PROGRAM, "run", json.dumps(verified.settings(faults, rounds, seed))]
    with subprocess.Popen(
        board.ssh_command(shlex.join(command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - as asked for
        for line in process.stdout:
            answer = json.loads(line)
            verdict = verified.judge(answer["measurement"])
            classes = tuple(failure["class"] for failure in verdict["failures"])
            yield Seen(answer["fault"], classes, verdict, float(answer["seconds"]))
        said = process.stderr.read().strip()
    if process.returncode != 0:
        last = said.splitlines()[-1] if said else f"exit code {process.returncode}"
        raise TestbedError(f"board {board.name}, planting faults: {last}")


def table(seen: list[Seen]) -> str:
    lines = [("fault", "has to be", "seen", "took", "also seen")]
    for name in dict.fromkeys(each.fault for each in seen):
        fault, rounds = FAULTS[name], [each for each in seen if each.fault == name]
        right = f"{sum(each.right for each in rounds)} of {len(rounds)}"
        others = sorted({kind for each in rounds for kind in each.classes} - {fault.first})
        took = f"{statistics.median(each.seconds for each in rounds):.0f} s"
        lines.append((fault.title, fault.first or "passed", right, took, ", ".join(others)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines)


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    faults = commands.add_parser("faults", help="plant faults on a board that serves: is each found by its class?")
    faults.add_argument("--board", required=True, metavar="NAME", help="a virtual board that site.yml has verified")
    faults.add_argument("--rounds", type=at_least(1), default=10, help="times for each fault (default %(default)s)")
    faults.add_argument("--only", choices=sorted(FAULTS), action="append", help="this fault alone; may be repeated")
    faults.add_argument("--seed", type=int, default=1, help="of the characters that are changed (default %(default)s)")


def run(args: argparse.Namespace) -> int:
    seen: list[Seen] = []
    faults = [name for name in FAULTS if not args.only or name in args.only]
    try:
        board, verified = Board(args.board), Verified(args.board)
        ship(board)
        for each in plant(board, faults, verified, args.rounds, args.seed):
            seen.append(each)
            found = ", ".join(each.classes) or "passed"
            wrong = "" if each.right else "  WRONG: " + json.dumps(each.verdict["failures"])
            say(f"{len(seen)} of {len(faults) * args.rounds}: {each.fault}: {found} ({each.seconds:.0f} s){wrong}")
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        if seen:
            say(table(seen))
    return 0 if all(each.right for each in seen) else 1
