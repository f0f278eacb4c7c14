# SPDX-License-Identifier: GPL-3.0-or-later
"""Run playbooks against this machine, with every path that the roles write under a folder of the test."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import pytest
from edge_moe_testbed.common import PROJECT, run_playbook

NATIVE = PROJECT / "native"


@dataclass(frozen=True)
class Played:
    """What a playbook run gave."""

    rc: int
    text: str

    @property
    def words(self) -> str:
        """The output with its line breaks and indents folded, as Ansible wraps messages where it likes."""
        return " ".join(self.text.split()).replace("''", "'")

    def recap(self, host: str, field: str) -> int:
        line = next(line for line in self.text.splitlines() if line.startswith(host) and "changed=" in line)
        return int(next(part for part in line.split() if part.startswith(f"{field}=")).partition("=")[2])


@dataclass(frozen=True)
class Playbook:
    """Plays tasks on hosts that are all this machine."""

    folder: Path

    def run(
        self,
        tasks: list[dict[str, Any]],
        variables: dict[str, Any] | None = None,
        hosts: dict[str, dict[str, Any]] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> Played:
        play = [{"hosts": "jetson", "gather_facts": False, "vars": variables or {}, "tasks": tasks}]
        book = self.folder / "play.yml"
        book.write_text(json.dumps(play))
        return self.run_book(str(book), hosts, arguments)

    def run_book(
        self, book: str, hosts: dict[str, dict[str, Any]] | None = None, arguments: tuple[str, ...] = ()
    ) -> Played:
        local = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_become": False,  # a test must not need a sudo password
            "common_snapshot": str(self.folder / "state" / "snapshot.json"),
        }
        members = {name: {**local, **extra} for name, extra in (hosts or {"board": {}}).items()}
        inventory = self.folder / "inventory.json"
        inventory.write_text(json.dumps({"all": {"children": {"jetson": {"hosts": members}}}}))
        result = run_playbook(
            book,
            inventory,
            *arguments,
            environment={"ANSIBLE_NOCOLOR": "1", "EDGE_MOE_HOME": str(self.folder / "home")},
            timeout_s=300,
        )
        return Played(result.returncode, result.stdout + result.stderr)


@pytest.fixture
def playbook(tmp_path: Path) -> Playbook:
    return Playbook(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of a few KiB, dense, as the gguf package writes it."""
    np = pytest.importorskip("numpy")
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_tensor("token_embd.weight", np.zeros((100, 64), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def role(name: str, tasks_from: str = "main") -> dict[str, Any]:
    return {
        "name": f"Play {name}",
        "ansible.builtin.import_role": {"name": f"edge.moe.{name}", "tasks_from": f"{tasks_from}.yml"},
    }
