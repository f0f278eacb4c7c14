# SPDX-License-Identifier: GPL-3.0-or-later
"""The model after a first run, and after those that had nothing to do."""

from __future__ import annotations

import hashlib
from typing import Any

MODELS = "/var/lib/edge-moe/models"
SAMPLE = b"GGUF" + b"edge.moe " * 300000


def test_model_is_whole_and_everybody_may_read_it(host: Any) -> None:
    model = host.file(f"{MODELS}/sample.gguf")
    assert model.sha256sum == hashlib.sha256(SAMPLE).hexdigest()
    assert (model.user, model.group, model.mode) == ("root", "root", 0o644)


def test_nothing_else_is_left_of_the_download(names: Any) -> None:
    assert names(MODELS) == ["sample.gguf", "sample.gguf.edge-moe.json"]


def test_it_was_fetched_once_however_often_the_role_was_played(requests: list[tuple[str, str]]) -> None:
    assert requests == [("/sample.gguf", "200")]
