# SPDX-License-Identifier: GPL-3.0-or-later
"""What is published beside the code: the archive as Galaxy takes it, its release notes, its execution environment.

These need the programs of session `packaging` in noxfile.py, and the archive that `make collection` has built.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
COLLECTION = PROJECT / "collections/ansible_collections/edge/moe"
ARCHIVE = Path(os.environ.get("EDGE_MOE_ARCHIVE", "no archive: run make test-release"))

pytestmark = pytest.mark.release


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**inherited, "LC_ALL": "C.UTF-8", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection as it comes out of the archive."""
    folder = tmp_path_factory.mktemp("installed")
    done = run("ansible-galaxy", "collection", "install", "--offline", ARCHIVE, "-p", folder, cwd=folder)
    assert done.returncode == 0, done.stdout
    return folder / "ansible_collections/edge/moe"


def test_galaxy_takes_the_archive_without_a_word(tmp_path: Path) -> None:
    configured = str(PROJECT / "tests/release/galaxy-importer.cfg")
    done = run(sys.executable, "-m", "galaxy_importer.main", ARCHIVE, cwd=tmp_path, GALAXY_IMPORTER_CONFIG=configured)
    assert done.returncode == 0, done.stdout
    assert "ansible-lint run complete" in done.stdout
    # what ansible-lint finds comes as a warning, too
    assert [line for line in done.stdout.splitlines() if line.startswith(("WARNING", "ERROR", "CRITICAL"))] == []
    result = json.loads((tmp_path / "importer_result.json").read_text())
    seen = {(entry["content_type"], entry["name"]) for entry in result["contents"]}
    assert {("role", role.name) for role in COLLECTION.glob("roles/[a-z]*")} <= seen
    assert {("module", module.stem) for module in COLLECTION.glob("plugins/modules/*.py")} <= seen
    assert ("inventory", "boards") in seen
    assert result["requires_ansible"] == ">=2.19.0"


# Release notes


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The collection in a tree of its own, where antsibull-changelog may write; the link out of it is left out."""
    folder = tmp_path / "ansible_collections/edge/moe"
    shutil.copytree(COLLECTION, folder, symlinks=True, ignore=shutil.ignore_patterns("native"))
    return folder


def test_fragments_and_notes_are_in_order() -> None:
    for words in (["lint"], ["lint-changelog-yaml", "changelogs/changelog.yaml"]):
        done = run("antsibull-changelog", *words, cwd=COLLECTION)
        assert (done.returncode, done.stdout) == (0, ""), words


def test_a_fragment_of_no_section_is_refused(copy: Path) -> None:
    fragments = copy / "changelogs/fragments"
    fragments.mkdir(exist_ok=True)
    (fragments / "odd.yml").write_text("bug_fixes:\n  - clock floor - was too low\n")
    done = run("antsibull-changelog", "lint", cwd=copy)
    assert done.returncode != 0
    assert "bug_fixes" in done.stdout


def test_the_notes_name_everything_and_are_written_out(copy: Path) -> None:
    releases = yaml.safe_load((copy / "changelogs/changelog.yaml").read_text())["releases"]
    assert yaml.safe_load((copy / "galaxy.yml").read_text())["version"] in releases
    told = {
        (kind, entry["name"])
        for release in releases.values()
        for kind, entries in (
            ("modules", release.get("modules", [])), *release.get("plugins", {}).items(),
            *release.get("objects", {}).items(),
        )
        for entry in entries
    }  # fmt: skip
    there = {
        *(("modules", path.stem) for path in copy.glob("plugins/modules/*.py")),
        *(("filter", path.stem) for path in copy.glob("plugins/filter/*.yml")),
        *(("inventory", path.stem) for path in copy.glob("plugins/inventory/*.py")),
        *(("playbook", path.stem) for path in copy.glob("playbooks/*.yml")),
        *(("role", path.name) for path in copy.glob("roles/*")),
    }
    assert there - told == set(), "add them to changelogs/changelog.yaml, or to a fragment of the next version"
    done = run("antsibull-changelog", "generate", cwd=copy)
    assert done.returncode == 0, done.stdout
    assert (copy / "CHANGELOG.rst").read_text() == (COLLECTION / "CHANGELOG.rst").read_text(), "nox -s changelog"


# The execution environment


def test_the_execution_environment_has_the_archive_and_what_it_needs(tmp_path: Path) -> None:
    context = tmp_path / "context"
    created = run("ansible-builder", "create", "--context", context, cwd=PROJECT)
    assert created.returncode == 0, created.stdout
    assert (context / "Containerfile").is_file()
    # what the image's own build does next: collections from the context, then what they name
    inside = tmp_path / "collections"
    done = run(
        "ansible-galaxy", "collection", "install", "--offline", "-r", "requirements.yml", "-p", inside,
        cwd=context / "_build",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    named = run("ansible-builder", "introspect", inside, cwd=tmp_path)
    assert named.returncode == 0, named.stdout
    for package in ("netaddr", "paramiko", "matplotlib", "openssh-clients"):
        assert package in named.stdout


@pytest.mark.parametrize(
    ("board", "status"), [("orin-nano-super", "successful"), ("orin-nano-jetson-clocks", "failed")]
)
def test_ansible_runner_plays_the_health_of_a_board(installed: Path, tmp_path: Path, board: str, status: str) -> None:
    runner: Any = importlib.import_module("ansible_runner")
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "edge_moe_health_become": False,
        "edge_moe_health_root": str(installed / "tests/unit/fixtures/sysfs" / board),
    }
    played = runner.run(
        private_data_dir=str(tmp_path),
        playbook="edge.moe.health",
        inventory={"jetson": {"hosts": {"kitchen": host}}},
        envvars={"ANSIBLE_COLLECTIONS_PATH": str(installed.parents[2])},
        quiet=True,
    )
    text = played.stdout.read()
    assert played.status == status, text
    shown = next(event for event in played.events if event["event_data"].get("task") == "Show one line a board")
    assert shown, text
    assert "kitchen" in text
    if status == "failed":
        assert "1 of 1 boards need a person: kitchen" in " ".join(text.split())
