# SPDX-License-Identifier: GPL-3.0-or-later
"""Going back on this machine: releases, what is recorded before the first change, and what is removed again."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from edge_moe_testbed import docs

from .conftest import Playbook, Played, role

OLD, NEW = "a" * 16, "b" * 16


class Releases:
    """Two releases on a board, the newer one current, and the role's entry points on them."""

    def __init__(self, playbook: Playbook, folder: Path) -> None:
        self.playbook, self.root = playbook, folder / "opt" / "llama.cpp"
        for name in (OLD, NEW, "c" * 16 + ".part"):
            (self.root / "releases" / name).mkdir(parents=True)
        (self.root / "current").symlink_to(f"releases/{NEW}")

    def remember(self, name: str) -> None:
        (self.root / "previous").symlink_to(f"releases/{name}")

    def links(self) -> tuple[str, str]:
        """What is current and what was before it."""
        return Path(os.readlink(self.root / "current")).name, Path(os.readlink(self.root / "previous")).name

    def roll_back(self, to: str = "", *arguments: str) -> Played:
        settings = {"llama_cpp_root": str(self.root), "llama_cpp_rollback_to": to}
        return self.playbook.run([role("llama_cpp", "rollback")], settings, arguments=arguments)


@pytest.fixture
def releases(playbook: Playbook, tmp_path: Path) -> Releases:
    return Releases(playbook, tmp_path)


def test_it_goes_back_and_a_second_time_returns(releases: Releases) -> None:
    releases.remember(OLD)
    foretold = releases.roll_back("", "--check", "--diff")
    assert foretold.rc == 0, foretold.text
    assert foretold.recap("board", "changed") == 2
    assert f"releases/{OLD}" in foretold.words
    assert releases.links() == (NEW, OLD)

    assert releases.roll_back().rc == 0
    assert releases.links() == (OLD, NEW)
    assert releases.roll_back().rc == 0
    assert releases.links() == (NEW, OLD)


def test_a_release_that_is_named_is_switched_to_once(releases: Releases) -> None:
    first = releases.roll_back(OLD)
    assert first.rc == 0, first.text
    assert releases.links() == (OLD, NEW)
    again = releases.roll_back(OLD)
    assert again.rc == 0, again.text
    assert again.recap("board", "changed") == 0
    assert f"{OLD} -> {OLD}, which is current already" in again.words
    assert releases.links() == (OLD, NEW)


@pytest.mark.parametrize("wanted", ["", "d" * 16, "c" * 16, "../../../etc"])
def test_without_such_a_release_it_names_those_that_are_there(releases: Releases, wanted: str) -> None:
    played = releases.roll_back(wanted)
    assert played.rc != 0
    told = f"has no release {wanted}" if wanted else "has no release before the current one to go back to"
    assert told in played.words
    assert f"Current is {NEW}, there are {OLD}, {NEW}." in played.words
    assert "-e llama_cpp_rollback_to=STAMP" in played.words
    assert Path(os.readlink(releases.root / "current")).name == NEW


def test_a_board_without_any_release_is_told_so(playbook: Playbook, tmp_path: Path) -> None:
    played = playbook.run([role("llama_cpp", "rollback")], {"llama_cpp_root": str(tmp_path / "none")})
    assert played.rc != 0
    assert "Current is none, there are none." in played.words


def reset(roles: list[str], **variables: Any) -> list[dict[str, Any]]:
    kept = role("common", "forget")
    kept["vars"] = {"_common_kept": variables.pop("kept", {})}
    return [role("common", "compare"), *(role(name, "reset") for name in roles), kept]


def test_releases_and_model_go_and_what_was_there_before_stays(
    playbook: Playbook, releases: Releases, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "mine.gguf").write_text("GGUF")
    variables = {
        "llama_cpp_root": str(releases.root),
        "moe_model_dir": str(models),
        "moe_model_path": "/nowhere/served.gguf",
    }
    snapshot = tmp_path / "state" / "snapshot.json"
    assert playbook.run([role("common", "snapshot")], variables, arguments=("--check",)).rc == 0
    assert not snapshot.exists()
    # a board that has such folders of its own
    (releases.root.parent / "theirs").mkdir()
    (releases.root / "notes").write_text("mine")
    assert playbook.run([role("common", "snapshot")], variables).rc == 0
    before = snapshot.read_text()
    (models / "served.gguf").write_text("GGUF")
    (models / "served.gguf.edge-moe.json").write_text("{}")
    again = playbook.run([role("common", "snapshot")], variables)
    assert again.recap("board", "changed") == 0
    assert snapshot.read_text() == before

    undo = reset(["moe_model", "llama_cpp"])
    foretold = playbook.run(undo, variables, arguments=("--check",))
    assert foretold.rc == 0, foretold.text
    assert (models / "served.gguf").exists()
    assert "check mode, so nothing was put back yet" in foretold.words

    played = playbook.run(undo, variables)
    assert played.rc == 0, played.text
    assert sorted(path.name for path in models.iterdir()) == ["mine.gguf"]
    assert sorted(path.name for path in releases.root.parent.iterdir()) == ["llama.cpp", "theirs"]
    assert [path.name for path in releases.root.iterdir()] == ["notes"]
    assert "differences to the snapshot of" in played.words
    assert not snapshot.parent.exists()

    second = playbook.run(undo, variables)
    assert second.recap("board", "changed") == 0
    assert "there is no snapshot" in second.words


def test_what_is_kept_is_listed_with_its_reason(playbook: Playbook, tmp_path: Path) -> None:
    models = tmp_path / "models"
    variables = {"moe_model_dir": str(models), "moe_model_path": "/nowhere/served.gguf"}
    assert playbook.run([role("common", "snapshot")], variables).rc == 0
    models.mkdir()
    (models / "served.gguf").write_text("GGUF")
    played = playbook.run(reset([], kept={str(models): "kept for you"}), variables)
    assert played.rc == 0, played.text
    for path in (models, models / "served.gguf"):
        line = played.words.partition(f"file {path}: ")[2].partition(")")[0]
        assert line.startswith("not there -> ")
        assert line.endswith("(kept for you")


def test_a_damaged_snapshot_stops_both_ways(playbook: Playbook, tmp_path: Path) -> None:
    snapshot = tmp_path / "state" / "snapshot.json"
    snapshot.parent.mkdir()
    snapshot.write_text(json.dumps({"format": 1}))
    for tasks_from in ("snapshot", "compare"):
        played = playbook.run([role("common", tasks_from)])
        assert played.rc != 0
        assert f"{snapshot} is no snapshot of format 1" in played.words


def test_all_of_reset_can_be_foretold(playbook: Playbook) -> None:
    """On this machine in check mode: every role's part of it is played, and nothing of it is there."""
    played = playbook.run_book("edge.moe.reset", arguments=("--check",))
    assert played.rc == 0, played.text
    assert "there is no snapshot" in played.words
    assert "stay as they are" in played.words


def test_every_role_undoes_the_files_that_it_writes() -> None:
    book = (docs.COLLECTION / "playbooks/reset.yml").read_text()
    count = 0
    for folder in docs.roles():
        undone = (folder / "tasks/reset.yml").read_text()
        texts = [path.read_text() for path in [*folder.glob("tasks/*.yml"), *folder.glob("vars/*.yml")]]
        written = [path for text in texts for path in re.findall(r'- path: (?:"\{\{ )?([^ "\n]+)', text)]
        # of a variable's path the variable, which may hold several
        assert [path for path in written if (path if "/" in path else path.partition(".")[0]) not in undone] == []
        assert f"name: edge.moe.{folder.name}\n        tasks_from: reset.yml" in book
        count += len(written)
    assert count >= 8
