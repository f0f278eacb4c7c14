# SPDX-License-Identifier: GPL-3.0-or-later
"""The built llama-server, for every test of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from edge_moe_testbed.bench import harness


@pytest.fixture(scope="session")
def root() -> Path:
    return harness.unpacked_artifact()
