# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

# The service is a package of its own that knows nothing of the collection; its tests share one helper.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "roles" / "gpu_clock_floor" / "files")]

from floor_board import FIXTURES, Board  # noqa: E402 - found by the path set above


@pytest.fixture
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Board:
    """An Orin Nano Super, or the tree named by `parametrize(..., indirect=True)`."""
    root = tmp_path / "board"
    shutil.copytree(FIXTURES / getattr(request, "param", "orin-nano-super"), root, symlinks=True)
    return Board(root)
