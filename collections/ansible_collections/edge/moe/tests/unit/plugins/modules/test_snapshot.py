# SPDX-License-Identifier: GPL-3.0-or-later
"""The module on this machine, its file in a folder of the test; apt's own resolver on packages that a test makes up."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.edge.moe.plugins.module_utils import _snapshot
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from ansible_collections.edge.moe.plugins.modules import snapshot

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lib" / "snapshot.json"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], file: Path) -> Run:
    def call(check: bool = False, **arguments: Any) -> dict[str, Any]:
        arguments = {"path": str(file), **arguments, "_ansible_check_mode": check}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            snapshot.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return call


def test_check_mode_foretells_and_writes_nothing(run: Run, file: Path) -> None:
    assert run(check=True)["changed"] is True
    assert not file.parent.exists()


def test_it_is_recorded_once_and_only_what_is_added_is_noted_later(run: Run, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    first = run(adding=["zlib-none"], folders=[str(folder)])
    assert first["changed"] is True
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = json.loads(file.read_text())
    assert written["added"] == ["zlib-none"]
    assert str(folder) in written["board"]["files"]

    folder.rmdir()
    for arguments in ({}, {"adding": ["zlib-none"]}, {"folders": ["/usr"]}):
        assert run(**arguments)["changed"] is False
    assert run(adding=["b-none", "-o evil"], check=True)["changed"] is True
    assert json.loads(file.read_text()) == written
    assert run(adding=["b-none", "-o evil"])["changed"] is True
    assert json.loads(file.read_text()) == {**written, "added": ["b-none", "zlib-none"]}


def test_differences_are_told_and_the_snapshot_goes_when_nothing_is_left(run: Run, file: Path, tmp_path: Path) -> None:
    made = tmp_path / "models"
    run(folders=[str(made)])
    made.mkdir()
    (made / "a.gguf").write_text("GGUF")
    arguments = {"folders": [str(made)], "kept": {str(made): "yours"}}
    compared = run(state="compared", **arguments)
    assert compared["changed"] is False
    assert file.exists()
    mine = [each for each in compared["differences"] if str(made) in each]
    assert len(mine) == 2
    assert all(each.endswith("(yours)") for each in mine)
    assert str(file) not in compared["before"]["files"]

    assert run(state="forgotten", check=True, **arguments)["changed"] is True
    assert file.exists()
    assert run(state="forgotten", **arguments)["changed"] is True
    assert not file.parent.exists()
    again = run(state="forgotten", **arguments)
    assert (again["changed"], again["taken"], again["differences"]) == (False, None, [])


def test_a_snapshot_stays_while_something_can_be_put_back(run: Run, file: Path, monkeypatch: Any) -> None:
    real = _snapshot.gather
    monkeypatch.setattr(_snapshot, "gather", lambda *args: {**real(*args), "read_ahead_kb": {"nvme0n1": 128}})
    run()
    monkeypatch.setattr(_snapshot, "gather", lambda *args: {**real(*args), "read_ahead_kb": {"nvme0n1": 32}})
    found = run(state="forgotten")
    assert (found["changed"], found["left"], found["undo"]["read_ahead_kb"]) == (False, True, {"nvme0n1": 128})
    assert [each for each in found["differences"] if "nvme0n1" in each]
    assert file.exists()


def test_a_snapshot_that_came_late_says_so_and_knows_nothing_of_files(
    run: Run, monkeypatch: Any, tmp_path: Path
) -> None:
    unit = tmp_path / "edge-moe-server.service"
    unit.write_text("[Unit]\n")
    monkeypatch.setattr(_snapshot, "TRACES", (str(unit),))
    assert run()["late"] == [str(unit)]
    unit.unlink()
    found = run(state="compared", folders=[str(tmp_path)])
    assert found["late"] == [str(unit)]
    assert found["before"] == {"files": {}, "accounts": {"user": {}, "group": {}}}
    assert [each for each in found["differences"] if each.startswith("file ")] == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": 2, "board": {}}', '{"format": 1, "board": []}', "\0\xff", "[" * 10**5],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize("state", ["recorded", "compared", "forgotten"])
def test_a_damaged_file_is_refused_and_kept(run: Run, file: Path, text: str, state: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    result = run(state=state)
    assert result["failed"] is True
    assert f"{file} is no snapshot" in result["msg"]
    assert "remove it" in result["msg"]
    assert file.read_text() == text


def test_a_hostile_file_leads_to_no_command(run: Run, file: Path) -> None:
    board = {"packages": {"--purge": ["install", "installed", "1"]}, "swap": {"/dev/zram0 /dev/sda": 1}, "units": 5}
    file.parent.mkdir()
    file.write_text(json.dumps({"format": 1, "late": 3, "taken": [], "added": ["--all", 7], "board": board}))
    found = run(state="compared")
    assert found["left"] is False
    assert all("\n" not in each for each in found["differences"])


def test_a_place_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(path=str(tmp_path / "file" / "snapshot.json"))
    assert result["failed"] is True
    assert f"cannot write {tmp_path}/file/snapshot.json" in result["msg"]


def package(name: str, depends: str = "", auto: bool = False) -> tuple[str, str]:
    """Its paragraphs in dpkg's status and in apt's list of those that came along."""
    status = f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nMaintainer: x\nVersion: 1\n"
    status += f"Depends: {depends}\n" if depends else ""
    return status + "Description: x\n\n", f"Package: {name}\nArchitecture: amd64\nAuto-Installed: 1\n\n" if auto else ""


@pytest.mark.skipif(not shutil.which("apt-get"), reason="apt is Debian's")
def test_what_apt_itself_would_remove(tmp_path: Path, monkeypatch: Any) -> None:
    """cmake was added and brought cmake-data and libuv; libuv serves the user's node by now, libgomp1 his ffmpeg."""
    packages = [
        package("cmake", "cmake-data, libuv"),
        package("cmake-data", auto=True),
        package("libuv", auto=True),
        package("node", "libuv"),
        package("libgomp1"),
        package("ffmpeg", "libgomp1"),
        package("leftover", auto=True),  # of before, and nothing needs it: not ours to remove
    ]
    for folder in ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "status").write_text("".join(status for status, _auto in packages))
    (tmp_path / "state/extended_states").write_text("".join(auto for _status, auto in packages))
    (tmp_path / "apt.conf").write_text(
        f'APT::Architecture "amd64"; Dir::State "{tmp_path}/state"; Dir::State::status "{tmp_path}/status";'
        f'Dir::Cache "{tmp_path}/cache"; Dir::Etc "{tmp_path}/etc"; Debug::NoLocking "true";'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    now = _snapshot.parse_packages((tmp_path / "status").read_text())
    before = {name: now[name] for name in ("leftover",)}

    class Module:
        def fail_json(self, msg: str) -> None:
            raise AssertionError(msg)

    simulate = snapshot.simulation(Module(), Host())  # type: ignore[arg-type]  # all of a module that it uses
    goes, kept = _snapshot.removable(["cmake", "libgomp1"], before, now, simulate)
    assert goes == ["cmake", "cmake-data"]
    assert kept == {"libgomp1": ["ffmpeg"]}
    with pytest.raises(AssertionError, match="what would go with none-such"):
        simulate(["none-such"], False)
