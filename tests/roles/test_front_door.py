# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands that the README tells, as a user types them at the project's root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "LC_ALL": "C.UTF-8", "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")}


def at_the_root(*command: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name(command[0])) if command[0].startswith("ansible") else command[0]
    return subprocess.run(
        [program, *command[1:]], cwd=PROJECT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("book", ["site.yml", *sorted(f"playbooks/{p.name}" for p in PROJECT.glob("playbooks/*.yml"))])
@pytest.mark.parametrize("inventory", ["fleet", "inventories/demo"])
def test_every_playbook_parses_with_every_inventory(book: str, inventory: str) -> None:
    result = at_the_root("ansible-playbook", book, "-i", inventory, "--syntax-check")
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr, result.stderr


def test_the_example_overrides_one_variable_on_one_board_alone() -> None:
    result = at_the_root("ansible-inventory", "-i", "fleet", "--list")
    assert result.returncode == 0, result.stderr
    hosts = json.loads(result.stdout)["_meta"]["hostvars"]
    assert [name for name, values in hosts.items() if "llama_server_overrides" in values] == ["workshop"]
    assert {values["jetpack_power_mode"] for values in hosts.values()} == {"MAXN_SUPER"}


def test_make_alone_lists_every_target() -> None:
    listed = at_the_root("make").stdout
    phony = [line.split()[1] for line in (PROJECT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:")]
    assert [name for name in phony if f"make {name} " not in listed] == []


@pytest.mark.parametrize(
    ("module", "fact"),
    [("jetson_facts", "edge_moe_jetson"), ("devfreq_facts", "edge_moe_devfreq"),
     ("expert_cache_facts", "edge_moe_expert_cache")],
)  # fmt: skip
def test_facts_say_clearly_that_this_machine_is_no_jetson(module: str, fact: str) -> None:
    if Path("/proc/device-tree/compatible").exists():
        pytest.skip("this machine may be a Jetson")
    result = at_the_root(
        "ansible", "localhost", "-m", f"edge.moe.{module}", "-o", "-e", f"ansible_python_interpreter={sys.executable}"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    facts = json.loads(result.stdout.partition("=> ")[2])["ansible_facts"][fact]
    if module == "jetson_facts":
        assert facts["is_jetson"] is False
    if module == "expert_cache_facts":
        assert facts["verdict"] == "off"
    else:
        assert len(facts["warnings"]) == 1, facts["warnings"]
