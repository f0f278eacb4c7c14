# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the test bed keeps what it makes: one cache folder, EDGE_MOE_HOME or ~/.cache/edge-moe."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    return Path(os.environ.get("EDGE_MOE_HOME") or Path.home() / ".cache" / "edge-moe")


def images_dir() -> Path:
    return cache_dir() / "images"


def boards_dir() -> Path:
    return cache_dir() / "boards"


def sources_dir() -> Path:
    return cache_dir() / "sources"


def artifacts_dir() -> Path:
    return cache_dir() / "artifacts"


def models_dir() -> Path:
    return cache_dir() / "models"
