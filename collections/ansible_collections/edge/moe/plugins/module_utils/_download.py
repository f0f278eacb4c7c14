# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A big file, present with one exact hash: resumed where it was cut, and never half in place.

Private to this collection: it may change in any release.

The bytes go to `DEST.part` beside the target, so that they are on the disk that must hold them, and the last step is
a rename. What a file's hash was found to be is kept in `DEST.edge-moe.json`, so that a second run does not read 20 GiB
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _http
from ansible_collections.edge.moe.plugins.module_utils._host import read_bounded

CHUNK = 1 << 20
# Left free on the target's disk, for whatever else writes there while the model arrives.
SPARE_BYTES = 64 * 1024 * 1024
MAX_ATTEMPTS = 5
PROGRESS_BYTES = 1 << 20


class DownloadError(Exception):
    """One line: what was seen, what is needed and what to do."""


def check_sha256(value: str) -> str:
    text = value.strip().lower()
    if text.startswith("sha256:"):
        text = text[len("sha256:") :]
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise DownloadError(f"sha256 is {value!r}; it must be 64 hexadecimal digits")
    return text


def memo_path(dest: str) -> str:
    return dest + ".edge-moe.json"


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def remembered_hash(dest: str) -> str | None:
    """The hash noted for the file as it is now, or None when it has changed since or was never noted."""
    status = _status(dest)
    data = read_bounded(memo_path(dest), 4096)
    if status is None or data is None:
        return None
    try:
        memo = json.loads(data)
    except ValueError:
        return None
    if not isinstance(memo, dict) or memo.get("size") != status.st_size or memo.get("mtime_ns") != status.st_mtime_ns:
        return None
    found = memo.get("sha256")
    return found if isinstance(found, str) else None


def remember_hash(dest: str, sha256: str) -> None:
    status = os.stat(dest)
    memo = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
    temporary = f"{memo_path(dest)}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(memo, stream)
    os.replace(temporary, memo_path(dest))


def hash_file(path: str, digest: Any = None) -> Any:
    """A SHA-256 object over the whole file."""
    digest = hashlib.sha256() if digest is None else digest
    with open(path, "rb", buffering=0) as stream:
        while True:
            part = stream.read(CHUNK)
            if not part:
                return digest
            digest.update(part)


def state(dest: str, sha256: str) -> str:
    """`present` when dest is there with that hash, else `wrong` or `absent`. Reads the file at most once."""
    status = _status(dest)
    if status is None:
        return "absent"
    if not stat.S_ISREG(status.st_mode):
        raise DownloadError(f"{dest} is there and is not a regular file: remove it, or name another dest")
    known = remembered_hash(dest)
    if known is None:
        known = hash_file(dest).hexdigest()
        # Only true hashes are noted, so a note for a wrong file is as good as one for the right file.
        # A check by a normal user may not write it: the next run hashes again.
        with contextlib.suppress(OSError):
            remember_hash(dest, known)
    return "present" if known == sha256 else "wrong"


def check_space(directory: str, needed: int, have: int) -> None:
    """Refuse before the first byte when the rest of the file cannot fit."""
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if needed - have + SPARE_BYTES > free:
        raise DownloadError(
            f"no room in {directory}: {free} bytes are free, {needed - have + SPARE_BYTES} are needed "
            f"({needed} of the file, {have} of them there, {SPARE_BYTES} to spare): free some, or use another folder"
        )


class _Fetch:
    def __init__(self, dest: str, timeout_s: float) -> None:
        self.dest = dest
        self.part = dest + ".part"
        self.timeout_s = timeout_s
        self.validator: str | None = None

    def part_size(self) -> int:
        status = _status(self.part)
        return status.st_size if status is not None else 0

    def _open_part(self, flags: int) -> int:
        # O_NOFOLLOW: a link planted under the temporary name must not choose where root writes.
        try:
            return os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
        except OSError as error:
            raise DownloadError(f"{self.part} cannot be written: {error.strerror}") from None

    def from_url(self, url: str) -> None:
        """Bring the whole file into the part file, going on where it ends after each break."""
        attempts, expected = 0, None
        while True:
            before = self.part_size()
            try:
                expected = self._once(url)
                if expected is None or self.part_size() >= expected:
                    return
                problem = f"the server closed the connection after {self.part_size()} of {expected} bytes"
            except _http.HttpError as error:
                if error.status == 416 and before:
                    # The part is as long as the file or longer. Its hash tells which.
                    return
                if error.status is not None and error.status < 500:
                    raise DownloadError(f"{error}; check the address") from None
                problem = str(error)
            # A connection that brought less than this is as good as none.
            attempts = 1 if self.part_size() - before >= PROGRESS_BYTES else attempts + 1
            if attempts >= MAX_ATTEMPTS:
                raise DownloadError(
                    f"{url}: {problem}; {self.part_size()} bytes are kept in {self.part}, run again to go on from there"
                )

    def _once(self, url: str) -> int | None:
        """One connection. The size of the whole file, if the server told it."""
        have = self.part_size()
        with _http.open_range(url, have, None, self.timeout_s, self.validator) as answer:
            if have and not answer.ranged:
                have = 0  # No ranges here, or the file has changed: this is the whole file from its start.
            self.validator = answer.validator
            if answer.size is not None:
                check_space(os.path.dirname(self.dest), answer.size, have)
            self._store(answer, os.O_APPEND if have else os.O_TRUNC)
            return answer.size

    def _store(self, source: Any, flags: int) -> None:
        descriptor = self._open_part(flags)
        try:
            while True:
                data = source.read(CHUNK)
                if not data:
                    break
                self._write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def from_file(self, source: str) -> None:
        try:
            with open(source, "rb", buffering=0) as stream:
                check_space(os.path.dirname(self.dest), os.fstat(stream.fileno()).st_size, 0)
                self._store(stream, os.O_TRUNC)
        except OSError as error:
            raise DownloadError(f"{source} cannot be read: {error.strerror}") from None

    def _write(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as error:
            raise DownloadError(
                f"{self.part} cannot be written: {error.strerror}; {self.part_size()} bytes are kept, "
                "make room and run again to go on from there"
            ) from None


def fetch(dest: str, sha256: str, url: str | None, src_path: str | None, timeout_s: float) -> int:
    """Put the file in place, or raise with the old one untouched. Its size."""
    directory = os.path.dirname(dest) or "."
    if not os.path.isdir(directory):
        raise DownloadError(f"the folder {directory} does not exist: create it on the disk that shall hold the model")
    job = _Fetch(dest, timeout_s)
    resumed = job.part_size()
    if url is not None:
        job.from_url(url)
    elif src_path is not None:
        resumed = 0
        job.from_file(src_path)
    seen = hash_file(job.part).hexdigest()
    if seen != sha256 and url is not None and resumed:
        # The bytes of an earlier run may be those of another version of the file: once from the start.
        os.unlink(job.part)
        job.from_url(url)
        seen = hash_file(job.part).hexdigest()
    if seen != sha256:
        size = job.part_size()
        os.unlink(job.part)
        raise DownloadError(
            f"{url or src_path} has sha256 {seen} ({size} bytes) and {sha256} is needed: nothing was installed; "
            "check the address and the hash against the publisher's page"
        )
    os.replace(job.part, dest)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return os.stat(dest).st_size
