# SPDX-License-Identifier: GPL-3.0-or-later
"""What plugins print when they run, recorded for their pages: docs/modules/output, and the pages made anew.

``record boards`` needs this machine alone: its boards are OpenSSH servers on loopback addresses. ``record facts`` asks
a board that runs, after `make demo` or in Molecule's scenario. ``record snapshot`` asks one that no role has touched.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import yaml

from edge_moe_testbed import docs
from edge_moe_testbed.common import PROJECT, TestbedError, run_inventory, run_playbook, say
from edge_moe_testbed.sshfleet import USER, Board, Fleet, running

OUTPUT = docs.PAGES / "output"
AGX = Board(compatible="nvidia,p3737-0000+p3701-0005\nnvidia,tegra234", memory_kb=64302332)
OLD = Board(release="# R36 (release), REVISION: 4.4", package="36.4.4-20250616085344")
NO_JETSON = Board(compatible="raspberrypi,5-model-b", release="", package="")
BOARDS = dict(
    zip([f"127.0.8.{n}" for n in range(1, 8)], [Board(), Board(), Board(), OLD, AGX, NO_JETSON, Board()], strict=True)
)
WRONG_KEY = "127.0.8.7"
BOARDS_ASKED = (
    "`ansible-inventory -i fleet.boards.yml --graph` for `127.0.8.1-8`: seven OpenSSH servers, of which the last has "
    "another host key than the one that is known, and an address where none listens. SSH, the host keys and the probe "
    "that each server ran are real; the files that the probe read are those of pretended boards:"
)
FACTS = {
    "jetson_facts": (
        "edge_moe_jetson",
        "On the virtual board, whose device tree and L4T files stand in for those of an Orin Nano Super:",
    ),
    "devfreq_facts": (
        "edge_moe_devfreq",
        "On the virtual board with the clock-floor service, between two requests:",
    ),
    "expert_cache_facts": (
        "edge_moe_expert_cache",
        "On the virtual board: the second of two calls, with a completion of 32 tokens between them:",
    ),
}
ADDED = "libgomp1"
SNAPSHOT_ASKED = f"On a virtual board before its first change, with {ADDED} about to be installed, in check mode:"


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    record = commands.add_parser("record", help="record what plugins print into docs/modules/output")
    what = record.add_subparsers(dest="what", required=True)
    what.add_parser("boards", help="the inventory plugin on OpenSSH servers of this machine")
    facts = what.add_parser("facts", help="the facts modules on a board that runs and serves a model")
    fresh = what.add_parser("snapshot", help="the module of that name on a board that no role has touched")
    for asked in (facts, fresh):
        asked.add_argument("host", nargs="?", default="virtual-orin-nano", help="its name in the inventory")
        asked.add_argument("-i", "--inventory", type=Path, default=PROJECT / "inventories/demo")


def run(args: argparse.Namespace) -> int:
    try:
        match args.what:
            case "boards":
                made = {"boards": boards()}
            case "facts":
                made = facts(args.host, args.inventory)
            case _:
                made = {"snapshot": snapshot(args.host, args.inventory)}
    except TestbedError as error:
        say(f"error: {error}")
        return 2
    for name, text in made.items():
        (OUTPUT / f"{name}.txt").write_text(text)
    for path, text in docs.pages():
        path.write_text(text)
    say(f"recorded: {', '.join(made)}; look at the difference before it is kept")
    return 0


def boards_source(fleet: Fleet, hosts: list[Any], **options: Any) -> Path:
    """An inventory file for boards of a fleet, in the controller's folder."""
    source = fleet.folder / "fleet.boards.yml"
    settings = {
        "plugin": "edge.moe.boards",
        "hosts": hosts,
        "port": fleet.port,
        "user": USER,
        "private_key_file": str(fleet.folder / "user_key"),
        "known_hosts": [str(fleet.known_hosts)],
    }
    source.write_text(yaml.safe_dump({**settings, **options}))
    return source


def boards() -> str:
    """The page's output of the inventory plugin: the graph, and the warnings below it."""
    with tempfile.TemporaryDirectory() as folder, running(BOARDS, Path(folder)) as fleet:
        fleet.know(wrong=frozenset({WRONG_KEY}))
        done = run_inventory(boards_source(fleet, ["127.0.8.1-8"]), "--graph")
    if done.returncode != 0:
        raise TestbedError(f"ansible-inventory failed:\n{done.stderr}")
    # Ansible breaks its warnings for a narrow terminal.
    warnings = " ".join(done.stderr.split()).replace(" [WARNING]:", "\n[WARNING]:").splitlines()
    folded = [textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False) for text in warnings]
    return "\n".join([BOARDS_ASKED, done.stdout, *folded]) + "\n"


def facts(host: str, inventory: Path) -> dict[str, str]:
    """The page's output of each facts module, as root on the board."""
    wanted = "it has to be up and to serve a model (make demo)"
    found = _answer(host, inventory, _facts_tasks(), "ansible_facts", wanted)
    return {
        module: f"{asked}\n{yaml.safe_dump({key: found[key]}, sort_keys=False, allow_unicode=True)}"
        for module, (key, asked) in FACTS.items()
    }


def snapshot(host: str, inventory: Path) -> str:
    """The page's output of the module, in check mode: the board stays as it is."""
    tasks = [
        {
            "name": "Ask snapshot",
            "edge.moe.snapshot": {"adding": [ADDED]},
            "check_mode": True,
            "diff": True,
            "register": "__record_snapshot",
        }
    ]
    found = _answer(
        host, inventory, tasks, "__record_snapshot", "it has to be up (python -m edge_moe_testbed board up)"
    )
    if not found["changed"]:
        raise TestbedError(
            f"{host} of {inventory} has a snapshot of {found['taken']}: one that no role has touched is needed"
        )
    shown = {key: found[key] for key in ("taken", "late", "diff")}
    return f"{SNAPSHOT_ASKED}\n{yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)}"


def _answer(host: str, inventory: Path, tasks: list[dict[str, Any]], variable: str, wanted: str) -> dict[str, Any]:
    """What a variable holds after tasks that root has played on a host."""
    with tempfile.TemporaryDirectory() as folder:
        written, book = Path(folder) / "answer.json", Path(folder) / "play.yml"
        keep = {
            "name": "Keep what they said",
            "ansible.builtin.copy": {
                "content": f"{{{{ {variable} | to_json }}}}",
                "dest": str(written),
                "mode": "0600",
            },
            "delegate_to": "localhost",
            "become": False,
        }
        play = {"hosts": host, "gather_facts": False, "become": True, "tasks": [*tasks, keep]}
        book.write_text(json.dumps([play]))
        done = run_playbook(book, inventory)
        if done.returncode != 0 or not written.exists():
            raise TestbedError(
                f"{host} of {inventory} gave no answer; {wanted}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        answer: dict[str, Any] = json.loads(written.read_text())
    return answer


def _facts_tasks() -> list[dict[str, Any]]:
    completion = {"prompt": "Why does a river bend?", "n_predict": 32, "cache_prompt": False, "ignore_eos": True}
    return [
        *({"name": f"Ask {module}", f"edge.moe.{module}": {}} for module in FACTS),
        {
            "name": "Decode",
            "ansible.builtin.uri": {
                "url": "http://127.0.0.1:{{ llama_server_port | default(8080) }}/completion",
                "method": "POST",
                "body_format": "json",
                "body": completion,
                "timeout": 600,
            },
        },
        {
            "name": "Ask expert_cache_facts again",
            "edge.moe.expert_cache_facts": {"earlier": "{{ ansible_facts['edge_moe_expert_cache'] }}"},
        },
    ]
