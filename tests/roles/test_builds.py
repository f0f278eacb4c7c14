# SPDX-License-Identifier: GPL-3.0-or-later
"""The way from source to a current release, with a toy project in llama.cpp's place: stamps, failures, releases."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from .conftest import Playbook, Played, role

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_PIN = "llama.cpp-ffffffffffff"
PROGRAMS = ("llama-server", "llama-cli", "llama-bench", "llama-perplexity")
CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(toy C)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_library(llama SHARED lib.c)
set_target_properties(llama PROPERTIES VERSION 1.2 SOVERSION 1)
foreach(program llama-server llama-cli llama-bench llama-perplexity)
  add_executable(${program} main.c)
  target_link_libraries(${program} llama)
endforeach()
"""


class Toy:
    """A toy source archive and native folder, and the role played on them."""

    def __init__(self, playbook: Playbook, folder: Path) -> None:
        self.playbook, self.folder = playbook, folder
        self.artifacts, self.root = folder / "artifacts", folder / "root"
        self.native = folder / "native"
        (self.native / "patches").mkdir(parents=True)
        (self.native / "apply.py").write_text("print('applied')\n")
        self.flags: list[str] = []
        self.patch("first")
        self.source("int toy(void) { return 0; }")

    def patch(self, text: str, pin_name: str = "llama.cpp", commit: str = COMMIT) -> None:
        (self.native / "patches" / f"{pin_name}.patch").write_text(text)
        pin = {
            "commit": commit,
            "git_url": "unused",
            "archive": {"sha256": "", "subdir": ""},
            "patch": f"patches/{pin_name}.patch",
            "patch_sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        (self.native / f"{pin_name}.json").write_text(json.dumps(pin))

    def source(self, library: str) -> None:
        main = "int toy(void);\nint main(void) { return toy(); }\n"
        self.archive = self.folder / "toy.tar.gz"
        with tarfile.open(self.archive, "w:gz") as archive:
            for name, text in (("CMakeLists.txt", CMAKE), ("lib.c", library + "\n"), ("main.c", main)):
                entry = tarfile.TarInfo(f"toy/{name}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))

    def play(self, tasks_from: str, *arguments: str) -> Played:
        settings: dict[str, Any] = {
            "llama_cpp_build_host": "localhost",
            "llama_cpp_kind": "toy",
            "llama_cpp_cuda": False,
            "llama_cpp_source": "archive",
            "llama_cpp_archive": str(self.archive),
            "llama_cpp_archive_sha256": hashlib.sha256(self.archive.read_bytes()).hexdigest(),
            "llama_cpp_archive_subdir": "toy",
            "llama_cpp_cache_dir": str(self.folder / "build"),
            "llama_cpp_artifact_dir": str(self.artifacts),
            "llama_cpp_root": str(self.root),
            "llama_cpp_cmake_flags": self.flags,
            "llama_cpp_keep_releases": 2,
        }
        extra = ("--extra-vars", json.dumps({"_llama_cpp_native_dir": str(self.native)}))
        return self.playbook.run([role("llama_cpp", tasks_from)], settings, arguments=(*extra, *arguments))

    def built(self) -> list[str]:
        return sorted(path.name for path in self.artifacts.iterdir()) if self.artifacts.exists() else []

    def release(self, name: str) -> dict[str, Any]:
        with tarfile.open(self.artifacts / name) as archive:
            file = archive.extractfile("release.json")
            assert file is not None
            described: dict[str, Any] = json.load(file)
        return described

    def current(self) -> str:
        return os.readlink(self.root / "current")

    def releases(self) -> list[str]:
        return sorted(f"releases/{path.name}" for path in (self.root / "releases").iterdir())


@pytest.fixture
def toy(playbook: Playbook, tmp_path: Path) -> Toy:
    return Toy(playbook, tmp_path)


def test_the_same_inputs_build_once_and_another_patch_or_pin_builds_again(toy: Toy) -> None:
    first = toy.play("artifact")
    assert first.rc == 0, first.text
    (default,) = toy.built()

    # another pin beside it is no input of this build
    toy.patch("for another commit", OTHER_PIN, commit="f" * 40)
    again = toy.play("artifact")
    assert again.rc == 0
    assert again.recap("board", "changed") == 0
    assert toy.built() == [default]

    pinned = toy.play("artifact", "--extra-vars", f"llama_cpp_pin={OTHER_PIN}")
    assert pinned.rc == 0, pinned.text
    (other,) = set(toy.built()) - {default}
    assert toy.release(other)["commit"] == "f" * 40

    toy.patch("second")
    assert toy.play("artifact").rc == 0
    assert len(toy.built()) == 3


def test_a_pin_that_is_not_there_is_refused_with_those_that_are(toy: Toy) -> None:
    toy.patch("for another commit", OTHER_PIN, commit="f" * 40)
    played = toy.play("artifact", "--extra-vars", "llama_cpp_pin=0.3.35")
    assert played.rc != 0
    assert f'llama_cpp_pin "0.3.35" has to be one of llama.cpp, {OTHER_PIN}.' in played.words
    assert toy.built() == []


def test_a_patch_that_is_not_the_pinned_one_is_refused(toy: Toy) -> None:
    pinned, changed = (hashlib.sha256(text.encode()).hexdigest() for text in ("first", "changed"))
    (toy.native / "patches/llama.cpp.patch").write_text("changed")
    played = toy.play("artifact")
    assert played.rc != 0
    assert f"has sha256 {changed}, llama.cpp.json pins {pinned}" in played.words
    assert toy.built() == []


def test_the_artifact_holds_the_release_and_says_what_it_is(toy: Toy) -> None:
    assert toy.play("artifact").rc == 0
    (name,) = toy.built()
    with tarfile.open(toy.artifacts / name) as archive:
        members = {member.name: member for member in archive.getmembers()}
    described = toy.release(name)
    assert {f"bin/{program}" for program in PROGRAMS} <= members.keys()
    assert members["lib/libllama.so"].issym()
    assert members["lib/libllama.so.1.2"].isfile()
    assert {member.mtime for member in members.values()} == {0}
    assert described["commit"] == COMMIT
    assert name == f"llama.cpp-{described['stamp']}.tar.gz"


def test_check_mode_builds_nothing_and_does_not_fail(toy: Toy) -> None:
    played = toy.play("artifact", "--check")
    assert played.rc == 0, played.text
    assert played.recap("board", "changed") > 0
    assert toy.built() == []


def test_a_failed_build_shows_why_and_leaves_no_artifact(toy: Toy) -> None:
    toy.source("int toy(void) { return nonsense; }")
    played = toy.play("artifact")
    assert played.rc != 0
    assert "nonsense" in played.words
    assert toy.built() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="releases belong to root")
def test_releases_lie_side_by_side_and_old_ones_go(toy: Toy) -> None:
    def ship(flag: str) -> str:
        toy.flags = [f"-DTOY={flag}"]
        played = toy.play("main")
        assert played.rc == 0, played.text
        return toy.current()

    older, newer = ship("1"), ship("2")
    assert toy.releases() == sorted({older, newer})
    assert len(toy.built()) == 2
    assert ship("1") == older
    assert len(toy.built()) == 2, "it was built before"
    # what ran last stays, though the other one is newer
    latest = ship("3")
    assert toy.releases() == sorted({older, latest})
    assert len({older, newer, latest}) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="releases belong to root")
def test_a_release_that_does_not_start_leaves_the_running_one(toy: Toy) -> None:
    assert toy.play("main").rc == 0
    before = toy.current()
    toy.source("int toy(void) { return 42; }")
    toy.flags = ["-DTOY=broken"]
    played = toy.play("main")
    assert played.rc != 0
    assert "does not start here" in played.words
    assert "The running release was left as it is" in played.words
    assert toy.current() == before
    assert [path.name for path in (toy.root / "releases").iterdir() if path.suffix != ".part"] == [Path(before).name]


@pytest.mark.skipif(os.geteuid() != 0, reason="releases belong to root")
def test_an_artifact_that_does_not_unpack_leaves_nothing_of_it(toy: Toy) -> None:
    assert toy.play("artifact").rc == 0
    (name,) = toy.built()
    artifact = toy.artifacts / name
    artifact.write_bytes(artifact.read_bytes()[:200])
    played = toy.play("main")
    assert played.rc != 0
    assert f"{artifact} could not be unpacked: " in played.words
    assert "remove it on the controller and it is built again. The running release was left as it is." in played.words
    assert list((toy.root / "releases").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="releases belong to root")
def test_check_mode_on_a_board_without_any_release_does_not_fail(toy: Toy) -> None:
    played = toy.play("main", "--check")
    assert played.rc == 0, played.text
    assert not toy.root.exists()
