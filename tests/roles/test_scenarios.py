# SPDX-License-Identifier: GPL-3.0-or-later
"""Each scenario is whole, is one of its kind, and is told on its page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from edge_moe_testbed.common import PROJECT

MOLECULE = PROJECT / "molecule"
RESOURCES = MOLECULE / "resources"
SCENARIOS = sorted(path.parent for path in MOLECULE.glob("*/molecule.yml"))
IN_CONTAINERS = [scenario for scenario in SCENARIOS if scenario.name != "virtual_jetson"]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_page_lists_every_scenario_and_nothing_else() -> None:
    page = (PROJECT / "docs/scenarios.md").read_text().partition("## What each shows")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == [scenario.name for scenario in SCENARIOS]


@pytest.mark.parametrize("scenario", IN_CONTAINERS, ids=lambda path: path.name)
def test_a_scenario_in_a_container_goes_through_every_step(scenario: Path) -> None:
    assert (scenario / "molecule.yml").readlink() == Path("../resources/container.yml")
    assert (scenario / "inventory/group_vars").readlink() == Path("../../resources/inventory/group_vars")
    role = f"edge.moe.{scenario.name}"
    for book in ("converge", "second", "failures"):
        text = (scenario / f"{book}.yml").read_text()
        included = [(scenario / name).read_text() for name in re.findall(r"include_tasks: (\S+)", text)]
        assert any(role in played for played in (text, *included)), book
    for state in ("first", "second"):
        assert "\ndef test_" in (scenario / f"tests/test_{state}.py").read_text()
    # what is remembered is the machine as the role finds it, and what is compared is all of it
    assert load(scenario / "prepare.yml")[-1]["ansible.builtin.import_playbook"] == "../resources/prepare.yml"
    assert load(scenario / "cleanup.yml")[-1]["ansible.builtin.import_playbook"] == "../resources/nothing_left.yml"


def test_no_two_scenarios_use_one_port() -> None:
    numbers = {}
    for scenario in IN_CONTAINERS:
        hosts = load(scenario / "inventory/hosts.yml")["all"]["children"]["jetson"]["children"]["container"]["hosts"]
        assert list(hosts) == [f"box-{scenario.name.replace('_', '-')}"]
        numbers[scenario.name] = hosts[f"box-{scenario.name.replace('_', '-')}"]["container_number"]
    assert sorted(numbers.values()) == list(range(1, len(numbers) + 1))


def test_every_playbook_that_the_sequence_names_is_there() -> None:
    sequence = load(RESOURCES / "container.yml")["scenario"]["test_sequence"]
    for step in sequence:
        for book in step.split()[1:]:
            for scenario in IN_CONTAINERS:
                assert (scenario / book).is_file(), book
