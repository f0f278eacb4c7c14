# SPDX-License-Identifier: GPL-3.0-or-later
"""What the virtual board keeps of compiled archives gives what compiling gives, whatever became of the kept files."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from edge_moe_testbed.image import ASSETS

PACKAGES = ASSETS / "rootfs/usr/lib/python3/dist-packages"
SCRIPT = "import sys; sys.path.insert(0, sys.argv[1]); import counted; print(counted.VALUE, counted.__file__)"


class Home:
    """A home folder, and an archive that is imported from."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.archive = folder, folder / "module.zip"

    def source(self, text: str) -> None:
        with zipfile.ZipFile(self.archive, "w") as archive:
            archive.writestr("counted.py", text)

    def imported(self) -> str:
        # as a .pth file does at each start
        command = [sys.executable, "-c", f"import edge_moe_compiled; {SCRIPT}", str(self.archive)]
        environment = {**os.environ, "HOME": str(self.folder), "PYTHONPATH": str(PACKAGES)}
        value, file = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        assert file == f"{self.archive}/counted.py"
        return value

    @property
    def kept(self) -> list[Path]:
        return sorted(path for path in (self.folder / ".cache").rglob("*") if path.is_file())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    made.source("VALUE = 1\n")
    return made


def test_a_start_of_python_reads_the_hook() -> None:
    assert (PACKAGES / "edge-moe-compiled.pth").read_text() == "import edge_moe_compiled\n"


def test_the_same_text_is_compiled_once_and_another_one_anew(home: Home) -> None:
    assert home.imported() == "1"
    (kept,) = home.kept
    # what is kept is what runs
    kept.write_bytes(marshal.dumps(compile("VALUE = 5", "kept", "exec")))
    assert home.imported() == "5"
    home.source("VALUE = 2\n")
    assert home.imported() == "2"
    assert len(home.kept) == 2


@pytest.mark.parametrize("data", [b"", b"spoilt", marshal.dumps("no code")])
def test_a_file_that_is_spoilt_is_made_anew(home: Home, data: bytes) -> None:
    assert home.imported() == "1"
    (kept,) = home.kept
    whole = kept.read_bytes()
    kept.write_bytes(data)
    assert home.imported() == "1"
    assert home.kept == [kept]
    assert kept.read_bytes() == whole


def test_where_nothing_can_be_kept_everything_is_compiled(home: Home) -> None:
    (home.folder / ".cache").write_text("in the way")
    assert home.imported() == "1"
