# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands that the README tells, as a user types them at the project's root: each is played here or in CI."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from edge_moe_testbed.__main__ import COMMANDS

PROJECT = Path(__file__).resolve().parents[2]
ON_BOARDS = ["site.yml -i inventories/mine --check --diff", "site.yml -i inventories/mine"]
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


def test_every_command_of_the_readme_is_played() -> None:
    blocks = re.findall(r"^```console\n(.*?)^```$", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    told = {line.partition("#")[0].strip() for block in blocks for line in block.splitlines()}
    copied = {"cp -r inventories/fleet inventories/mine", *(f"ansible-playbook {words}" for words in ON_BOARDS)}
    assert told == {"make demo", "make test", *copied}
    assert (PROJECT / ".ci/run").read_text().splitlines()[-1] == "exec make test"


@pytest.mark.skipif(Path("/proc/device-tree/compatible").exists(), reason="this machine may be a board")
@pytest.mark.parametrize("words", ON_BOARDS)
def test_with_a_copy_of_the_example_the_way_goes_as_far_as_it_can_without_a_board(
    words: str, tmp_path: Path, model: Path
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(PROJECT / "inventories/fleet", mine)
    here = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "moe_model_path": str(model),
        "moe_model_url": "",
    }
    command = ["ansible-playbook", *words.replace("inventories/mine", str(mine)).split(), "-e", json.dumps(here)]
    played = at_the_root(*command)
    assert played.returncode != 0
    for board in ("kitchen", "workshop"):
        assert f"{board} is not a Jetson:" in " ".join(played.stdout.split())
        assert re.search(rf"^{board} .* changed=0 .* failed=1 ", played.stdout, re.MULTILINE)


def test_the_demo_asks_for_what_there_is(tmp_path: Path) -> None:
    """`make demo` takes half an hour; Molecule plays the same parts. Here its own steps are only listened to."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    note = 'printf "%s\\n" "$(basename "$0") $*" >> asked\n'
    # the file server is started in the background, and ended once the playbook has run
    serving = "until grep -q ' serve ' asked; do sleep 0.1; done\n"
    for program, waits in (("python", ""), ("ansible-playbook", serving)):
        path = tmp_path / ".venv/bin" / program
        path.write_text(f"#!/bin/sh\n{waits}{note}")
        path.chmod(0o755)
    done = subprocess.run(
        [str(PROJECT / "testbed/demo"), "virtual-orin-nano"],
        cwd=tmp_path,
        env={**os.environ, "EDGE_MOE_HOME": "/home/of/it", "EDGE_MOE_BOARD_PORT": "2222"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    asked = [shlex.split(line) for line in (tmp_path / "asked").read_text().splitlines()]
    assert ["ansible-playbook", "site.yml", "-i", "inventories/demo"] in asked
    steps = [words[3:] for words in asked if words[0] == "python"]
    assert {step[0] for step in steps} == {"source", "model", "board", "serve"}
    for step in steps:
        parser = argparse.ArgumentParser()
        importlib.import_module(COMMANDS[step[0]]).add_arguments(parser.add_subparsers(required=True))
        parser.parse_args(step)  # exits where a word is unknown
