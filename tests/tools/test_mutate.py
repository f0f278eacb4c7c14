# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of planted faults fits the roles as they are, and the page of results is of that list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from edge_moe_testbed import mutate
from edge_moe_testbed.common import PROJECT, TestbedError

MUTATIONS = mutate.mutations()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_fault_can_be_planted_and_its_test_exists(mutation: mutate.Mutation) -> None:
    text = (PROJECT / mutation.path).read_text()
    assert mutation.applied(text) != text
    kind, _, scenario = mutation.test.partition(" ")
    there = PROJECT / "molecule" / scenario / "molecule.yml" if kind == "scenario" else PROJECT / mutation.test
    assert there.is_file()


def test_names_and_faults_are_told_apart() -> None:
    assert len(MUTATIONS) >= 20
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    assert len({mutation.fault for mutation in MUTATIONS}) == len(MUTATIONS)


def test_the_page_names_what_was_missed() -> None:
    results = {mutation.name: mutate.Result(mutation.name, True, "", 0) for mutation in MUTATIONS}
    missed = MUTATIONS[3]
    results[missed.name] = replace(results[missed.name], caught=False)
    page = mutate.page(MUTATIONS, results)
    assert f"{len(MUTATIONS) - 1} of {len(MUTATIONS)} were caught" in page
    rows = [line for line in page.splitlines() if "**missed**" in line]
    assert len(rows) == 1
    assert missed.fault in rows[0]


def mutation_of(folder: Path, test: str) -> mutate.Mutation:
    (folder / "collections").mkdir()
    (folder / "collections/sum.py").write_text("def add(a, b):\n    return a + b\n")
    (folder / "test_sum.py").write_text(test)
    return mutate.Mutation("sum", "It subtracts", "collections/sum.py", "a + b", "a - b", "test_sum.py")


NOTICES = """
import sys

sys.path.insert(0, "collections")
from sum import add


def test_it():
    assert add(1, 2) == 3
"""


@pytest.mark.parametrize(
    ("test", "caught"),
    [
        (NOTICES, True),
        ("def test_it():\n    assert 1 + 1 == 2\n", False),
        # a test that cannot even start has noticed nothing
        ("import no_such_module\n", False),
    ],
)
def test_a_fault_is_caught_when_a_test_fails_and_is_taken_back(tmp_path: Path, test: str, caught: bool) -> None:
    mutation = mutation_of(tmp_path, test)
    result = mutate.plant(mutation, tmp_path)
    assert result.caught is caught
    assert result.said
    assert "a + b" in (tmp_path / mutation.file).read_text()


@pytest.mark.parametrize("find", ["a * b", "a"])
def test_a_line_that_is_not_there_once_is_told(tmp_path: Path, find: str) -> None:
    mutation = replace(mutation_of(tmp_path, ""), find=find)
    with pytest.raises(TestbedError, match=r"has .* times, wanted is once; mend mutations\.yml"):
        mutate.plant(mutation, tmp_path)


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(TestbedError, match="no mutation nothing; `mutate --list`"):
        mutate.plant_all(MUTATIONS, ["nothing"], only_list=False)
