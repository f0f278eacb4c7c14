# SPDX-License-Identifier: GPL-3.0-or-later
"""The models that came in other ways, and nothing of those that were refused."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

OTHER = hashlib.sha256(b"GGUF" + b"another model " * 200000).hexdigest()


@pytest.mark.parametrize(
    "path",
    [
        "/srv/models/resumed.gguf",
        "/srv/models/other.gguf",
        "/media/stick/other.gguf",
        "/var/lib/edge-moe/models/sample.gguf",
    ],
)
def test_model_is_whole(host: Any, path: str) -> None:
    assert host.file(path).sha256sum == OTHER


def test_the_cut_download_went_on_where_it_ended(requests: list[tuple[str, str]]) -> None:
    assert [status for path, status in requests if path == "/other.gguf"] == ["206", "200"]


def test_a_hash_of_another_file_costs_one_download(requests: list[tuple[str, str]]) -> None:
    # one for the first run, one for the refused one, and one that was refused for want of room
    assert [status for path, status in requests if path == "/sample.gguf"] == ["200"] * 3
    assert ("/nowhere.gguf", "404") in requests


@pytest.mark.parametrize(
    ("folder", "left"),
    [
        ("/var/lib/edge-moe/models", ["sample.gguf", "sample.gguf.edge-moe.json"]),
        ("/srv/models", sorted(f"{name}.gguf{end}" for name in ("other", "resumed") for end in ("", ".edge-moe.json"))),
        ("/srv", ["models"]),
    ],
)
def test_no_refused_run_left_anything(names: Any, folder: str, left: list[str]) -> None:
    assert names(folder) == left
