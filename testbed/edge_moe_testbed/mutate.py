# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults planted in the roles, one at a time: does the test that should notice fail?

Each runs in a copy of the project's tracked files, so the working tree is never touched. The test is run on the copy
without a fault first: one that fails there would prove nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from edge_moe_testbed.common import PROJECT, TestbedError, refusing, say

LIST = Path(__file__).with_name("mutations.yml")
PAGE = PROJECT / "docs/mutations.md"
ROLES = "collections/ansible_collections/edge/moe/roles/"
LIMIT_S = 1200
# What pytest returns when tests ran and one failed; a run that ends otherwise has noticed nothing.
TESTS_FAILED = 1


@dataclass(frozen=True)
class Mutation:
    """`find` stands once in `file` and is replaced; `test` is a pytest node or ``scenario NAME``."""

    name: str
    fault: str
    file: str
    find: str
    replace: str
    test: str

    @property
    def path(self) -> str:
        return self.file if self.file.startswith("collections/") else ROLES + self.file

    def applied(self, text: str) -> str:
        """Raises TestbedError where the line is not there, or more than once."""
        count = text.count(self.find)
        if count != 1:
            raise TestbedError(
                f"mutation {self.name}: {self.path} has {self.find!r} {count} times, wanted is once; mend {LIST.name}"
            )
        return text.replace(self.find, self.replace)


@dataclass(frozen=True)
class Result:
    """What became of a planted fault: the first line that a failed test gave, and how long it took."""

    name: str
    caught: bool
    said: str
    seconds: float


def mutations() -> list[Mutation]:
    return [Mutation(**entry) for entry in yaml.safe_load(LIST.read_text(encoding="utf-8"))]


def copy_project(into: Path) -> None:
    """All files that git knows or would add, and the environment beside them."""
    shutil.rmtree(into, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, copy = PROJECT / name, into / name
        if not source.is_symlink() and not source.exists():
            continue  # deleted, and not yet committed
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy, follow_symlinks=False)
    (into / ".venv").symlink_to(PROJECT / ".venv")


def command_of(test: str) -> list[str]:
    kind, _, name = test.partition(" ")
    if kind == "scenario":
        return ["molecule", "test", "--scenario-name", name]
    return [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", test]


def run_test(test: str, folder: Path) -> tuple[bool | None, str]:
    """Whether the test passed (None: it did not get so far as to fail), and the line that says why not."""
    environment = {
        **os.environ,
        "PATH": f"{folder / '.venv/bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "testbed"),
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "NO_COLOR": "1",
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
    try:
        done = subprocess.run(
            command_of(test),
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"not done after {LIMIT_S} s"
    lines = [line.strip() for line in done.stdout.splitlines()]
    wanted = ("E  ", "fatal:", "FAILED", "ERROR", "[ERROR]")
    said = next((line for line in lines if line.startswith(wanted)), lines[-1] if lines else "")
    if done.returncode == 0:
        return True, ""
    failed = test.startswith("scenario ") or done.returncode == TESTS_FAILED
    return (False if failed else None), said.removeprefix("E").strip()[:200]


def plant(mutation: Mutation, folder: Path) -> Result:
    path = folder / mutation.path
    whole = path.read_text(encoding="utf-8")
    path.write_text(mutation.applied(whole), encoding="utf-8")
    started = time.monotonic()
    try:
        passed, said = run_test(mutation.test, folder)
    finally:
        path.write_text(whole, encoding="utf-8")
    return Result(mutation.name, passed is False, said or "nothing", time.monotonic() - started)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def page(planted: list[Mutation], results: dict[str, Result]) -> str:
    caught = sum(results[mutation.name].caught for mutation in planted)
    rows = [
        f"| {cell(mutation.fault)} | `{mutation.file}` | `{cell(mutation.test)}` | "
        f"{'caught' if results[mutation.name].caught else '**missed**'} |"
        for mutation in planted
    ]
    return "\n".join(
        [
            "# Planted faults",
            "",
            "Each of these faults was planted in the roles by itself, and the test beside it was run; "
            "`python -m edge_moe_testbed mutate` does that",
            "and writes this page. They stand in `testbed/edge_moe_testbed/mutations.yml`.",
            "",
            f"{caught} of {len(planted)} were caught when they were last planted.",
            "",
            "| Fault | Where | Test that has to fail | Result |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("mutate", help="plant faults in the roles and see whether the tests notice")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these alone, and the page is left as it is")
    parser.add_argument("--list", action="store_true", help="list them and plant nothing")


def run(arguments: argparse.Namespace) -> int:
    return refusing(lambda given: plant_all(mutations(), given.names, given.list), arguments)


def plant_all(known: list[Mutation], names: list[str], only_list: bool) -> int:
    unknown = set(names) - {mutation.name for mutation in known}
    if unknown:
        raise TestbedError(f"no mutation {', '.join(sorted(unknown))}; `mutate --list` lists them")
    chosen = [mutation for mutation in known if not names or mutation.name in names]
    if only_list:
        for mutation in chosen:
            print(f"{mutation.name:32} {mutation.fault}")
        return 0
    folder = PROJECT / "build/mutant"
    copy_project(folder)
    for mutation in chosen:
        mutation.applied((folder / mutation.path).read_text(encoding="utf-8"))
    for test in dict.fromkeys(mutation.test for mutation in chosen):
        say(f"without a fault: {test}")
        passed, said = run_test(test, folder)
        if not passed:
            raise TestbedError(f"{test} does not pass without any fault ({said}); see to that first")
    results = {}
    for index, mutation in enumerate(chosen, 1):
        say(f"{index} of {len(chosen)}: {mutation.fault}")
        result = results[mutation.name] = plant(mutation, folder)
        say(f"  {'caught' if result.caught else 'MISSED'} in {result.seconds:.0f} s: {result.said}")
    shutil.rmtree(folder)
    report = PROJECT / "build/mutations.json"
    report.write_text(json.dumps([asdict(result) for result in results.values()], indent=2) + "\n", encoding="utf-8")
    if not names:
        PAGE.write_text(page(known, results), encoding="utf-8")
    missed = [result.name for result in results.values() if not result.caught]
    say(f"{len(chosen) - len(missed)} of {len(chosen)} caught" + (f"; missed: {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0
