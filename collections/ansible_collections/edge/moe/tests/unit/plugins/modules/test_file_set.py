# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COLLECTIONS = Path(__file__).parents[7]
TEXTS = {"__init__.py": "", "a.py": "x = 'é'\r\n"}


def run(arguments: dict[str, Any], check: bool = False) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "ansible_collections.edge.moe.plugins.modules.file_set"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_check_mode": check}}),
        cwd=COLLECTIONS,
        capture_output=True,
        text=True,
        check=False,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def package(where: Path) -> dict[str, Any]:
    return {
        "folders": [str(where)],
        "files": [{"path": str(where / name), "text": text} for name, text in TEXTS.items()],
        "exclusive": [{"path": str(where), "suffix": ".py"}],
    }


def test_a_fresh_folder_is_filled_and_the_second_run_changes_nothing(tmp_path: Path) -> None:
    where = tmp_path / "package"
    both = [str(where / "__init__.py"), str(where / "a.py")]
    planned = run(package(where), check=True)
    assert (planned["changed"], planned["made"], planned["written"]) == (True, [str(where)], both)
    assert not where.exists()
    assert run(package(where)) == planned
    assert (where / "a.py").read_bytes() == "x = 'é'\r\n".encode()
    assert (where / "a.py").stat().st_mode & 0o7777 == 0o644
    assert where.stat().st_mode & 0o7777 == 0o755
    for check in (True, False):
        assert run(package(where), check)["changed"] is False


def test_what_drifted_is_put_right_and_other_files_are_left_alone(tmp_path: Path) -> None:
    where = tmp_path / "p"
    run(package(where))
    where.chmod(0o700)
    (where / "old.py").write_text("x")
    (where / "notes.txt").write_text("x")
    (where / "sub.py").mkdir()
    (where / "__init__.py").chmod(0o600)
    (where / "a.py").unlink()
    (where / "a.py").symlink_to("notes.txt")
    planned = run(package(where), check=True)
    result = run(package(where))
    assert planned == result
    assert result["made"] == [str(where)]
    assert result["written"] == [str(where / "__init__.py"), str(where / "a.py")]
    assert result["removed"] == [str(where / "old.py")]
    assert {path.name for path in where.iterdir()} == {"__init__.py", "a.py", "notes.txt", "sub.py"}
    assert (where / "notes.txt").read_text() == "x", "the link was replaced, not followed"
    assert where.stat().st_mode & 0o7777 == 0o755


def test_modes_differ_by_file_and_a_changed_text_shows_its_difference(tmp_path: Path) -> None:
    script, notes = tmp_path / "run", tmp_path / "notes"
    arguments = {
        "files": [{"path": str(script), "text": "#!/bin/sh\n", "mode": "0755"}, {"path": str(notes), "text": "a"}]
    }
    run(arguments)
    assert (script.stat().st_mode & 0o7777, notes.stat().st_mode & 0o7777) == (0o755, 0o644)
    arguments["files"][1]["text"] = "b"
    result = run(arguments)
    assert result["written"] == [str(notes)]
    assert [(part["before"], part["after"], part["after_header"]) for part in result["diff"]] == [
        ("a", "b", str(notes))
    ]


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"path": "a.py", "text": "x"}, "absolute"),
        ({"path": "/tmp/../etc/a.py", "text": "x"}, "absolute"),
        ({"path": "/tmp/a.py", "text": "x", "mode": "u+x"}, "octal"),
        ({"path": "/tmp/a.py"}, "text"),
    ],
)
def test_unclear_entries_are_refused_before_anything_is_written(
    tmp_path: Path, entry: dict[str, object], complaint: str
) -> None:
    result = run({"folders": [str(tmp_path / "p")], "files": [entry]})
    assert result["failed"] is True
    assert complaint in str(result["msg"])
    assert not (tmp_path / "p").exists()


def test_a_missing_parent_is_an_error_that_says_so(tmp_path: Path) -> None:
    result = run(package(tmp_path / "none" / "p"))
    assert result["failed"] is True
    assert "No such file" in str(result["msg"])


def test_what_is_to_be_gone_goes_and_a_folder_only_if_it_is_empty_then(tmp_path: Path) -> None:
    kept, emptied = tmp_path / "kept", tmp_path / "emptied"
    for folder in (kept, emptied):
        folder.mkdir()
        (folder / "ours").write_text("x")
    (kept / "theirs").write_text("x")
    (emptied / "link").symlink_to(kept / "theirs")
    gone = [emptied / "ours", emptied / "link", emptied, kept / "ours"]
    arguments = {"absent": [str(path) for path in [*gone, kept, tmp_path / "none"]]}
    planned = run(arguments, check=True)
    assert (planned["changed"], planned["removed"]) == (True, [str(path) for path in gone])
    assert emptied.exists()
    assert run(arguments) == planned
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["kept", "kept/theirs"]
    assert run(arguments)["changed"] is False
