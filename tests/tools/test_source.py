# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from edge_moe_testbed import source


@pytest.fixture
def pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    archive = {"package": "some-source", "version": "1.0", "sha256": hashlib.sha256(b"right").hexdigest()}
    (tmp_path / "llama.cpp.json").write_text(json.dumps({"archive": archive}))
    monkeypatch.setattr(source, "NATIVE", tmp_path)
    return archive


def fake_pip(monkeypatch: pytest.MonkeyPatch, content: bytes | None, complaint: str = "") -> list[list[str]]:
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if content is not None:
            Path(command[command.index("--dest") + 1], "some_source-1.0.tar.gz").write_bytes(content)
        return subprocess.CompletedProcess(command, 0 if content is not None else 1, "", complaint)

    monkeypatch.setattr(source.subprocess, "run", run)
    return calls


def test_fetched_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: dict[str, str]) -> None:
    calls = fake_pip(monkeypatch, b"right")
    folder = tmp_path / "sources"
    assert source.ensure_archive(folder=folder).read_bytes() == b"right"
    assert source.ensure_archive(folder=folder).read_bytes() == b"right"
    assert len(calls) == 1


def test_a_changed_archive_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: dict[str, str]
) -> None:
    fake_pip(monkeypatch, b"wrong")
    with pytest.raises(source.SourceError, match=hashlib.sha256(b"wrong").hexdigest()):
        source.ensure_archive(folder=tmp_path / "sources")
    assert list((tmp_path / "sources").iterdir()) == []


def test_a_damaged_copy_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: dict[str, str]) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "some_source-1.0.tar.gz").write_bytes(b"half")
    fake_pip(monkeypatch, b"right")
    assert source.ensure_archive(folder=folder).read_bytes() == b"right"


def test_pip_failure_is_one_line_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: dict[str, str]
) -> None:
    fake_pip(monkeypatch, None, "looking\nERROR: no matching distribution")
    with pytest.raises(source.SourceError) as caught:
        source.ensure_archive(folder=tmp_path / "sources")
    assert "no matching distribution" in str(caught.value)
    assert "by hand" in str(caught.value)
    assert "\n" not in str(caught.value)
