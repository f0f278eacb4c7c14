# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's archive as Galaxy and its users see it: the sessions of `make test-release`; `nox -l` lists them.

Each session has a virtual environment of its own below EDGE_MOE_HOME/release, with the versions that
tests/release/constraints.txt pins. What is installed already is not installed again. A session whose Python is not
here is skipped, and its end says so.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from functools import cache, partial, update_wrapper
from pathlib import Path
from typing import NamedTuple

import nox

PROJECT = Path(__file__).parent
PROGRAMS = Path(sys.executable).parent
TESTS = PROJECT / "tests/release"
COLLECTION = PROJECT / "collections/ansible_collections/edge/moe"
UNIT_TESTS = ("hypothesis", "jinja2", "pytest", "pytest-xdist", "pyyaml")
CONTROLLER = ("-r", str(COLLECTION / "tests/unit/requirements.txt"))


class Core(NamedTuple):
    """An ansible-core that the collection supports. Of `pythons` the first that is here is taken."""

    version: str
    pip: str  # what its ansible-test begins environments with
    pythons: tuple[str, ...]
    always: tuple[str, ...] = ()  # what `make test-release` runs of it; `make test-release-all` runs everything


CORES = {
    "2.19": Core("2.19.14", "24.2", ("3.11", "3.12", "3.13")),
    "2.20": Core("2.20.10", "25.2", ("3.12", "3.13", "3.14")),
    "2.21": Core("2.21.5", "25.2", ("3.13", "3.14", "3.12"), ("sanity",)),
}
BOARD = "3.10"  # JetPack 6

HOME = Path(os.environ.get("EDGE_MOE_HOME") or Path.home() / ".cache/edge-moe").absolute() / "release"
nox.options.envdir = str(HOME)
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False


def offer_pyenv() -> None:
    """Every Python of pyenv on PATH: its shims stand there already, and only those of one version run."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders = [str(folder) for folder in sorted(root.glob("versions/3.1?.*/bin"))]
    os.environ["PATH"] = os.pathsep.join([*folders, os.environ["PATH"]])


@cache
def runs(version: str) -> bool:
    """Whether it is here, and whole: Debian keeps venv apart."""
    program = shutil.which(f"python{version}")
    probe = [program or "", "-c", "import ensurepip, venv"]
    return program is not None and subprocess.run(probe, capture_output=True, check=False).returncode == 0


@cache
def chosen(versions: tuple[str, ...]) -> str:
    """The first version that is here; one that is not, with a word about how to get it, if none is."""
    found = next(filter(runs, versions), None)
    if found is None:
        print(
            f"Python {' or '.join(versions)} is not on PATH nor in ~/.pyenv, so its sessions are skipped: install"
            f" python{versions[0]}-venv where Debian or Ubuntu has it, or run pyenv install {versions[0]},"
            f" or uv python install {versions[0]}"
        )
    return found or versions[0]


def archive() -> Path:
    return next((PROJECT / "build").glob("edge-moe-*.tar.gz"))


def tree(session: nox.Session, galaxy: str = "ansible-galaxy") -> Path:
    """The collection from the archive in an empty tree, which lies where no Git is: ansible-test would ask it."""
    folder = HOME / "trees" / session.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with session.chdir(folder):
        session.run(
            galaxy, "collection", "install", "--offline", str(archive()), "-p", ".",
            env={"ANSIBLE_CONFIG": None}, silent=True, external=True,
        )  # fmt: skip
    return folder / "ansible_collections/edge/moe"


def install(session: nox.Session, *packages: str) -> None:
    session.install("--quiet", "--constraint", str(TESTS / "constraints.txt"), *packages)


def home_of_ansible_test(session: nox.Session, pip: str) -> Path:
    """A home of its own, as it keeps environments there; with pip's settings, as it passes on none of the variables."""
    home = HOME / "home"
    installer = home / f".ansible/test/cache/get_pip_{pip.replace('.', '_')}.py"
    installer.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(TESTS / "get_pip.py", installer)
    told = str(session.run("python", "-m", "pip", "config", "list", silent=True)).splitlines()
    pairs = [line.partition("=")[::2] for line in told]  # section.name='value'
    settings = {name.rpartition(".")[2]: " ".join(ast.literal_eval(value).split()) for name, value in pairs}
    file = home / ".config/pip/pip.conf"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} = {value}" for name, value in {**settings, "quiet": 1}.items()]
    file.write_text("\n".join(["[global]", *lines, ""]))
    return home


def sanity(session: nox.Session, core: str) -> None:
    """All of ansible-test sanity; what can run on a board is imported with a board's Python, too, where it is here."""
    install(session, f"ansible-core=={CORES[core].version}")
    session.chdir(tree(session))
    pythons = [str(session.python), *([BOARD] if runs(BOARD) else [])]
    session.run(
        "ansible-test", "sanity", "--color", "no", *(f"--target-python={python}" for python in pythons),
        env={"HOME": str(home_of_ansible_test(session, CORES[core].pip))},
    )  # fmt: skip


def units(session: nox.Session, core: str) -> None:
    """ansible-test units on a controller, and the inventory plugin, whose boards no fork of a test may inherit."""
    install(session, f"ansible-core=={CORES[core].version}", *UNIT_TESTS, *CONTROLLER)
    session.run(
        "pytest", "-q", str(COLLECTION / "tests/unit/plugins/inventory"),
        env={"ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")},
    )  # fmt: skip
    session.chdir(tree(session))
    session.run("ansible-test", "units", "--color", "no", f"--target-python={session.python}")


offer_pyenv()
for core, tested in CORES.items():
    for kind in (sanity, units):
        nox.session(
            update_wrapper(partial(kind, core=core), kind),
            name=f"{kind.__name__}-{core}",
            python=chosen(tested.pythons),
            tags=["all"],
            default=kind.__name__ in tested.always,
        )


@nox.session(name="units-board", python=chosen((BOARD,)), tags=["all"])
def units_board(session: nox.Session) -> None:
    """ansible-test units with a board's Python: the modules and what they use; and the clock-floor service."""
    install(session, *UNIT_TESTS)
    session.chdir(tree(session, galaxy=str(PROGRAMS / "ansible-galaxy")))
    session.run("pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", "tests/unit/clock_floor")
    session.run(
        str(PROGRAMS / "ansible-test"), "units", "--color", "no",
        f"--target-python={BOARD}@{session.virtualenv.bin}/python", external=True,
    )  # fmt: skip


@nox.session(python=chosen(CORES["2.19"].pythons), tags=["all"])
def packaging(session: nox.Session) -> None:
    """Galaxy's importer, the changelog, the execution environment, and a playbook through ansible-runner."""
    install(
        session, f"ansible-core=={CORES['2.19'].version}", "galaxy-importer", "antsibull-changelog", "ansible-builder",
        "ansible-runner", "pytest",
    )  # fmt: skip
    session.run("pytest", "-v", "-m", "release", str(TESTS), env={"EDGE_MOE_ARCHIVE": str(archive())})


@nox.session(python=chosen(CORES["2.19"].pythons), default=False)
def changelog(session: nox.Session) -> None:
    """antsibull-changelog in the collection, with what follows --: `release` turns fragments into a version's notes."""
    install(session, f"ansible-core=={CORES['2.19'].version}", "antsibull-changelog")
    session.chdir(COLLECTION)
    session.run("antsibull-changelog", *(session.posargs or ["generate"]))
