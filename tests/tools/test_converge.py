# SPDX-License-Identifier: GPL-3.0-or-later
"""The figure of the play's speed: what it reads of a run, and that its plays are those of site.yml."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from edge_moe_testbed import bench
from edge_moe_testbed.bench import converge
from edge_moe_testbed.bench.figure import BenchError
from edge_moe_testbed.common import PROJECT, run_playbook

JUNIT = """<?xml version="1.0" ?>
<testsuites disabled="0" errors="0" failures="0" tests="3" time="3.5">
<testsuite name="site" tests="3" time="3.5">
<testcase name="[board] Discover: Read which board it is" classname="a.yml:1" time="1.25"/>
<testcase name="[board] Serve: Start the server" classname="b.yml:7" time="2.25"><system-out>ok</system-out></testcase>
<testcase name="[board] Serve: Restart" classname="b.yml:9"><skipped/></testcase>
<testcase name="[board] Verify: edge.moe.verify : Measure the served path url=x" classname="c.yml:3" time="1.5"/>
</testsuite>
</testsuites>
"""
RECAP = """
PLAY RECAP *********************************************************************
a    : ok=44   changed=2    unreachable=0    failed=0    skipped=20   rescued=0    ignored=0
b    : ok=44   changed=1    unreachable=0    failed=0    skipped=20   rescued=0    ignored=0
"""


def test_tasks_and_changes_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "site-1.xml").write_text(JUNIT)
    tasks = converge.tasks_of(tmp_path)
    run = converge.Run(10.0, 4.0, 3.0, tasks, converge.changes(RECAP)).as_dict()
    assert (run["task_count"], run["changed"], run["measuring_s"]) == (4, 3, 1.5)
    assert next(iter(run["slowest_tasks_s"])) == "[board] Serve: Start the server"
    with pytest.raises(BenchError, match="gave no recap"):
        converge.changes("ERROR! no inventory")


def test_measuring_is_known_by_the_names_of_tasks_that_there_are() -> None:
    role = converge.MEASURING.split(":")[1].strip()
    what = converge.MEASURING.split(":")[-1].strip()
    tasks = PROJECT / f"collections/ansible_collections/edge/moe/roles/{role.rpartition('.')[2]}/tasks"
    for name in ("reference", "served"):
        found = (tasks / f"{name}.yml").read_text()
        assert re.search(rf"- name: {what} .*\n      edge\.moe\.attended:\n        module: edge\.moe\.measure\n", found)


def test_the_roles_are_those_of_site() -> None:
    site = (PROJECT / "playbooks/site.yml").read_text()
    named = re.findall(r"(?:role|name): edge\.moe\.(\w+)", site)
    assert list(dict.fromkeys(named)) == list(converge.ROLES)


@pytest.mark.parametrize("role", converge.ROLES)
def test_each_role_s_play_parses(tmp_path: Path, role: str) -> None:
    book, inventory = tmp_path / "play.yml", tmp_path / "hosts.json"
    book.write_text(converge.role_play(role))
    inventory.write_text(json.dumps({"all": {"children": {"jetson": {"hosts": {"board": {}}}}}}))
    done = run_playbook(book, inventory, "--syntax-check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_registered() -> None:
    assert "converge" in bench.BENCHES
