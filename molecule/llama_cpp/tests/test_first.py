# SPDX-License-Identifier: GPL-3.0-or-later
"""A release on a board: its link, its files, its programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

ROOT = "/opt/edge-moe/llama.cpp"
PROGRAMS = ("llama-server", "llama-cli", "llama-bench", "llama-perplexity")


def current(host: Any) -> str:
    return str(host.file(f"{ROOT}/current").linked_to).removeprefix(f"{ROOT}/")


def test_current_is_a_relative_link_of_root(host: Any) -> None:
    target = host.check_output("readlink %s", f"{ROOT}/current")
    assert target.startswith("releases/")
    link = host.check_output("stat --format=%%U:%%G %s", f"{ROOT}/current")
    assert link == "root:root"


def test_release_says_what_it_is(host: Any) -> None:
    release = json.loads(host.file(f"{ROOT}/current/release.json").content_string)
    assert current(host) == f"releases/{release['stamp']}"
    assert release["kind"] == "virtual"
    assert len(release["commit"]) == 40


@pytest.mark.parametrize(
    ("path", "kind", "mode"),
    [
        ("/opt/edge-moe", "directory", 0o755),
        (ROOT, "directory", 0o755),
        (f"{ROOT}/releases", "directory", 0o755),
        (f"{ROOT}/current/", "directory", 0o755),
        (f"{ROOT}/current/bin", "directory", 0o755),
        (f"{ROOT}/current/lib", "directory", 0o755),
        (f"{ROOT}/current/release.json", "regular file", 0o644),
        *((f"{ROOT}/current/bin/{name}", "regular file", 0o755) for name in PROGRAMS),
    ],
)
def test_release_belongs_to_root(host: Any, path: str, kind: str, mode: int) -> None:
    assert host.check_output("stat --format='%%F %%U %%G %%a' %s", path) == f"{kind} root root {mode:o}"


def test_nothing_of_a_release_can_be_changed_by_another(host: Any) -> None:
    assert host.check_output("find %s ! -user root -o -perm /022 ! -type l", f"{ROOT}/releases") == ""


def test_libraries_are_linked_by_their_names(host: Any) -> None:
    library = host.file(f"{ROOT}/current/lib/libllama.so")
    assert library.is_symlink
    assert library.linked_to.startswith(f"{ROOT}/{current(host)}/lib/libllama.so.")


def test_programs_find_their_libraries_beside_them(host: Any) -> None:
    needed = host.check_output("ldd %s", f"{ROOT}/current/bin/llama-server")
    assert "not found" not in needed
    (line,) = [line for line in needed.splitlines() if "libllama.so" in line]
    assert f" => {ROOT}/current/bin/../lib/" in line


@pytest.mark.parametrize("program", ["llama-server", "llama-cli"])
def test_programs_run(host: Any, program: str) -> None:
    said = host.run("%s --version", f"{ROOT}/current/bin/{program}")
    assert said.rc == 0
    assert "version:" in said.stdout + said.stderr
