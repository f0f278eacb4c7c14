# SPDX-License-Identifier: GPL-3.0-or-later
"""The Galaxy archive, installed into an empty folder and used from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tomllib
import yaml
from edge_moe_testbed import samples

PROJECT = Path(__file__).resolve().parents[2]
COLLECTION = PROJECT / "collections/ansible_collections/edge/moe"
PROGRAMS = Path(sys.executable).parent


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**inherited, "LC_ALL": "C.UTF-8", "PATH": f"{PROGRAMS}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def files_below(folder: Path) -> set[Path]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in found if "__pycache__" not in path.parts}


def test_archive_carries_all_that_an_empty_folder_needs(tmp_path: Path) -> None:
    built = run("make", "collection", cwd=PROJECT)
    assert built.returncode == 0, built.stdout + built.stderr
    archive = next((PROJECT / "build").glob("edge-moe-*.tar.gz"))
    installed = run("ansible-galaxy", "collection", "install", "--offline", archive, "-p", "collections", cwd=tmp_path)
    assert installed.returncode == 0, installed.stdout + installed.stderr

    collection = tmp_path / "collections" / "ansible_collections" / "edge" / "moe"
    native = collection / "roles" / "llama_cpp" / "files" / "native"
    assert not native.is_symlink()
    assert files_below(native) == files_below(PROJECT / "native")
    shared = collection / "roles" / "gpu_clock_floor" / "files" / "edge_moe_clock_floor" / "_devfreq.py"
    assert shared.read_text() == (collection / "plugins" / "module_utils" / "_devfreq.py").read_text()

    (tmp_path / "inventory.yml").write_text("jetson: {hosts: {board: {ansible_connection: local}}}\n")
    books = sorted(book.stem for book in (collection / "playbooks").glob("*.yml"))
    assert "site" in books
    for book in books:
        parsed = run(
            "ansible-playbook", f"edge.moe.{book}", "-i", "inventory.yml", "--syntax-check",
            cwd=tmp_path, ANSIBLE_COLLECTIONS_PATH=str(tmp_path / "collections"),
        )  # fmt: skip
        assert parsed.returncode == 0, parsed.stderr

    samples.write_fleet(tmp_path / "results")
    reported = run(
        "ansible", "localhost", "-m", "edge.moe.report", "-a", "results=results dest=report",
        cwd=tmp_path, ANSIBLE_COLLECTIONS_PATH=str(tmp_path / "collections"),
    )  # fmt: skip
    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert (tmp_path / "report/report.html").exists(), "the page's template is in the archive"


def test_what_stands_twice_is_the_same() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = [name for extra in project["optional-dependencies"].values() for name in extra]
    needed = [line for line in (COLLECTION / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert set(needed) <= {*project["dependencies"], *extras}
    version = yaml.safe_load((COLLECTION / "galaxy.yml").read_text())["version"]
    assert project["version"] == version
    environment = yaml.safe_load((PROJECT / "execution-environment.yml").read_text())
    dependencies = environment["dependencies"]
    assert dependencies["ansible_core"]["package_pip"] in project["dependencies"]
    assert environment["additional_build_files"][0]["src"] == f"build/edge-moe-{version}.tar.gz"
    assert dependencies["galaxy"]["collections"][0]["name"] == f"archives/edge-moe-{version}.tar.gz"
    oldest = yaml.safe_load((COLLECTION / "meta/runtime.yml").read_text())["requires_ansible"].removesuffix(".0")
    assert dependencies["ansible_core"]["package_pip"].startswith(f"ansible-core{oldest},")
