# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, SupportsIndex

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _download, _http

CONTENT = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def fetch(web: Any, dest: Path, sha256: str = SHA256, timeout_s: float = 5.0) -> int:
    return _download.fetch(str(dest), sha256, web.url + "/m.gguf", None, timeout_s)


@pytest.fixture
def dest(tmp_path: Path, web: Any) -> Path:
    web.files["/m.gguf"] = CONTENT
    return tmp_path / "모델.gguf"


def part(dest: Path) -> Path:
    return dest.with_name(dest.name + ".part")


def test_a_file_arrives(web: Any, dest: Path) -> None:
    assert fetch(web, dest) == len(CONTENT)
    assert dest.read_bytes() == CONTENT
    assert not part(dest).exists()


def test_a_cut_transfer_goes_on_by_itself(web: Any, dest: Path) -> None:
    web.cut_after = [100_000, 200_000]
    fetch(web, dest)
    assert dest.read_bytes() == CONTENT
    assert [asked for _path, asked in web.requests] == [None, "bytes=100000-", "bytes=300000-"]


def test_a_transfer_that_stays_cut_keeps_its_part_and_the_next_run_goes_on(web: Any, dest: Path) -> None:
    web.cut_after = [300_000, 0, 0, 0, 0, 0]
    with pytest.raises(_download.DownloadError, match="run again to go on from there"):
        fetch(web, dest)
    assert part(dest).stat().st_size == 300_000
    assert not dest.exists()
    web.cut_after, web.requests = [], []
    fetch(web, dest)
    assert web.requests == [("/m.gguf", "bytes=300000-")]
    assert dest.read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(web: Any, dest: Path) -> None:
    part(dest).write_bytes(CONTENT[:5000])
    web.ranges = False
    fetch(web, dest)
    assert dest.read_bytes() == CONTENT


def test_a_part_of_another_version_is_fetched_anew(web: Any, dest: Path) -> None:
    part(dest).write_bytes(b"old" * 1000)
    fetch(web, dest)
    assert dest.read_bytes() == CONTENT


def test_a_part_that_is_longer_than_the_file_is_fetched_anew(web: Any, dest: Path) -> None:
    part(dest).write_bytes(b"x" * (len(CONTENT) + 10))
    fetch(web, dest)
    assert dest.read_bytes() == CONTENT


def test_a_part_that_is_the_whole_file_is_taken(web: Any, dest: Path) -> None:
    part(dest).write_bytes(CONTENT)
    fetch(web, dest)
    assert dest.read_bytes() == CONTENT
    assert len(web.requests) == 1


def test_a_file_that_changes_between_breaks_starts_over(web: Any, dest: Path) -> None:
    other = bytes(len(CONTENT))

    class Switch(list[int]):
        def pop(self, index: SupportsIndex = -1, /) -> int:
            web.files["/m.gguf"], web.etag = CONTENT, '"2"'
            return super().pop(index)

    web.files["/m.gguf"] = other
    web.cut_after = Switch([100_000])
    fetch(web, dest)
    assert dest.read_bytes() == CONTENT


def test_a_wrong_hash_leaves_the_good_file_alone(web: Any, dest: Path) -> None:
    dest.write_bytes(b"good old model")
    wanted = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(_download.DownloadError) as caught:
        fetch(web, dest, wanted)
    message = str(caught.value)
    assert SHA256 in message
    assert wanted in message
    assert "\n" not in message
    assert dest.read_bytes() == b"good old model"
    assert not part(dest).exists()


def test_a_stalled_server_is_given_up_and_the_part_kept(web: Any, dest: Path) -> None:
    web.stall_after = 7000
    with pytest.raises(_download.DownloadError, match="stalled"):
        fetch(web, dest, timeout_s=0.2)
    assert part(dest).stat().st_size == 7000 * _download.MAX_ATTEMPTS


def test_no_room_is_said_before_the_first_byte(web: Any, dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(dest.parent)
    full = os.statvfs_result((*real[:4], 10, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    with pytest.raises(_download.DownloadError, match="no room in") as caught:
        fetch(web, dest)
    assert str(len(CONTENT)) in str(caught.value)
    assert not part(dest).exists()


def test_addresses_that_are_wrong(web: Any, dest: Path) -> None:
    for url, says in (
        (web.url + "/no", "answers 404"),
        ("file:///etc/passwd", "must start with http"),
        ("http://127.0.0.1:9/m", "cannot be reached"),
    ):
        with pytest.raises((_download.DownloadError, _http.HttpError), match=says):
            _download.fetch(str(dest), SHA256, url, None, 2.0)
    assert not dest.exists()


def test_a_link_under_the_temporary_name_is_not_followed(web: Any, dest: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    part(dest).symlink_to(victim)
    with pytest.raises(_download.DownloadError, match="cannot be written"):
        fetch(web, dest)
    assert victim.read_bytes() == b"precious"


def test_a_folder_that_is_missing(web: Any, tmp_path: Path) -> None:
    with pytest.raises(_download.DownloadError, match="does not exist: create it"):
        fetch(web, tmp_path / "no" / "m.gguf")


def test_a_copy_from_the_board_itself(dest: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(CONTENT)
    part(dest).write_bytes(b"left over")
    assert _download.fetch(str(dest), SHA256, None, str(source), 5.0) == len(CONTENT)
    assert dest.read_bytes() == CONTENT
    with pytest.raises(_download.DownloadError, match="cannot be read"):
        _download.fetch(str(dest), SHA256, None, str(tmp_path / "no"), 5.0)


def test_a_hash_is_remembered_until_the_file_changes(dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _download.state(str(dest), SHA256) == "absent"
    dest.write_bytes(CONTENT)
    assert _download.state(str(dest), SHA256) == "present"
    with monkeypatch.context() as patch:
        patch.setattr(_download, "hash_file", lambda *_args: pytest.fail("the file was read again"))
        assert _download.state(str(dest), SHA256) == "present"
    changed = bytearray(CONTENT)
    changed[0] ^= 1
    dest.write_bytes(changed)
    os.utime(dest, ns=(1, 1))
    assert _download.state(str(dest), SHA256) == "wrong"


@pytest.mark.parametrize("memo", [b"", b"{", b"[]", b"null", b'{"size": "x"}', b"\xff", b"{}" * 5000])
def test_a_damaged_note_is_not_believed(dest: Path, memo: bytes) -> None:
    dest.write_bytes(b"not the model")
    Path(_download.memo_path(str(dest))).write_bytes(memo)
    assert _download.state(str(dest), SHA256) == "wrong"
    assert json.loads(Path(_download.memo_path(str(dest))).read_text())["sha256"] != SHA256


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(_download.DownloadError, match="not a regular file"):
        _download.state(str(tmp_path), SHA256)


def test_hashes_are_checked_for_their_form() -> None:
    assert _download.check_sha256(" SHA256:" + SHA256.upper() + "\n") == SHA256
    for bad in ("", "abc", "g" * 64, SHA256 + "0"):
        with pytest.raises(_download.DownloadError, match="64 hexadecimal digits"):
            _download.check_sha256(bad)
