# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COLLECTIONS = Path(__file__).parents[7]
FILES: dict[str, object] = {"__init__.py": "", "a.py": "x = 'é'\r\n"}


def run(path: Path, files: dict[str, object], check: bool = False) -> dict[str, object]:
    arguments = {"path": str(path), "files": files, "suffix": ".py", "_ansible_check_mode": check}
    done = subprocess.run(
        [sys.executable, "-m", "ansible_collections.edge.moe.plugins.modules.file_set"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        cwd=COLLECTIONS,
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout)


def test_a_fresh_folder_is_filled_and_the_second_run_changes_nothing(tmp_path: Path) -> None:
    where = tmp_path / "package"
    planned = run(where, FILES, check=True)
    assert (planned["changed"], planned["written"]) == (True, ["__init__.py", "a.py"])
    assert not where.exists()
    assert run(where, FILES)["changed"] is True
    assert (where / "a.py").read_bytes() == "x = 'é'\r\n".encode()
    assert (where / "a.py").stat().st_mode & 0o7777 == 0o644
    assert where.stat().st_mode & 0o7777 == 0o755
    for check in (True, False):
        assert run(where, FILES, check)["changed"] is False


def test_what_drifted_is_put_right_and_other_files_are_left_alone(tmp_path: Path) -> None:
    run(tmp_path / "p", FILES)
    (tmp_path / "p" / "old.py").write_text("x")
    (tmp_path / "p" / "notes.txt").write_text("x")
    (tmp_path / "p" / "sub.py").mkdir()
    (tmp_path / "p" / "__init__.py").chmod(0o600)
    (tmp_path / "p" / "a.py").unlink()
    (tmp_path / "p" / "a.py").symlink_to("notes.txt")
    planned = run(tmp_path / "p", FILES, check=True)
    result = run(tmp_path / "p", FILES)
    assert planned == result
    assert (result["written"], result["removed"]) == (["__init__.py", "a.py"], ["old.py"])
    assert {path.name for path in (tmp_path / "p").iterdir()} == {"__init__.py", "a.py", "notes.txt", "sub.py"}
    assert (tmp_path / "p" / "notes.txt").read_text() == "x", "the link was replaced, not followed"


@pytest.mark.parametrize("files", [{"../a.py": "x"}, {"a.txt": "x"}, {"a.py": 5}])
def test_names_with_folders_other_suffixes_and_values_that_are_no_text_are_refused(
    tmp_path: Path, files: dict[str, object]
) -> None:
    result = run(tmp_path / "p", files)
    assert result["failed"] is True
    assert next(iter(files)) in str(result["msg"])
    assert not (tmp_path / "p").exists()


def test_a_missing_parent_is_an_error_that_says_so(tmp_path: Path) -> None:
    assert "No such file" in str(run(tmp_path / "none" / "p", FILES)["msg"])
