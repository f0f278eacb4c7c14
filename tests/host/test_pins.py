# SPDX-License-Identifier: GPL-3.0-or-later
"""Each pinned llama.cpp takes its patch, and what the patch touches compiles there with our headers.

The second pin's programs are not built here, which takes as long as the first's: native/README.md says what a build of
them by hand has shown.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from edge_moe_testbed import source

pytestmark = pytest.mark.llama

# Common code and programs are not patched, and without them there is less to configure.
UNPATCHED = ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP", "UI")


def run(*command: str | Path, cwd: Path) -> str:
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, f"{command[0]}: {ended.stdout[-2000:]}{ended.stderr[-4000:]}"
    return ended.stdout


@pytest.mark.parametrize("name", source.PINS)
def test_a_pin_takes_its_patch_and_the_patched_files_compile_without_building_it_whole(
    name: str, tmp_path: Path
) -> None:
    pin = json.loads((source.NATIVE / f"{name}.json").read_text())
    with tarfile.open(source.ensure_archive(name)) as archive:
        # Debian 12's Python 3.11.2 has no filters yet; the archive has the pinned digest
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)  # noqa: S202 - its digest is the pinned one
    tree = tmp_path / pin["archive"]["subdir"]

    # no --commit: the archive has the submodule's .git, which says itself which commit it is
    applied = run(sys.executable, source.NATIVE / "apply.py", tree, cwd=tmp_path)
    patched = re.findall(r"^\+\+\+ b/(.+)", (source.NATIVE / pin["patch"]).read_text(), re.MULTILINE)
    assert f"{len(patched)} files patched" in applied

    flags = [f"-DLLAMA_BUILD_{part}=OFF" for part in UNPATCHED]
    run("cmake", "-G", "Ninja", "-S", tree, "-B", "build", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *flags, cwd=tmp_path)
    commands = json.loads((tmp_path / "build" / "compile_commands.json").read_text())
    ours = tree / "ggml" / "src" / "edge-moe" / "glue"
    wanted = {tree / file for file in patched if not file.endswith(".txt")} | set(ours.glob("*.cpp"))
    found = {Path(entry["file"]): entry for entry in commands if Path(entry["file"]) in wanted}
    assert found.keys() == wanted
    for entry in found.values():
        run(*shlex.split(entry["command"]), "-fsyntax-only", cwd=Path(entry["directory"]))
