# SPDX-License-Identifier: GPL-3.0-or-later
"""Where OpenSSH's server cannot be had or cannot run, that is said. That it runs is shown by the inventory's tests."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from edge_moe_testbed import openssh
from edge_moe_testbed.common import TestbedError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_MOE_HOME", str(tmp_path))
    return tmp_path


def test_a_machine_without_apt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(TestbedError, match="no apt-get here"):
        openssh.packages()


def test_a_package_that_apt_does_not_know_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openssh, "PACKAGES", ("edge-moe-no-such-package",))
    with pytest.raises(TestbedError, match=r"(?s)Unable to locate package.*Try: sudo apt-get update"):
        openssh.packages()
    assert [path for path in (cache / "openssh").iterdir() if path.is_dir() and path.suffix != ".part"] == []


def test_a_server_that_cannot_run_is_quoted() -> None:
    # Not in the test's own folder, which whom servers run as may not enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "usr/sbin/sshd"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho 'libwrap.so.0: cannot open shared object file'\nexit 127\n")
        program.chmod(0o755)
        (folder / "usr/lib/here").mkdir(parents=True)
        (folder / "usr/lib/here/libnss_wrapper.so").touch()
        server = openssh.Server(folder, folder, "127.0.8.1", 2222, "jetson", Path("/bin/sh"))
        server.configure()
        openssh.give_away(folder)
        server.start()
        with pytest.raises(TestbedError, match=r"(?s)does not run here.*code 127:.*cannot open shared object"):
            openssh.wait_for([server])
