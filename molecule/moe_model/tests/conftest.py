# SPDX-License-Identifier: GPL-3.0-or-later
"""What the scenario's file server was asked for, and what lies in a folder of the board."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from edge_moe_testbed.common import home


@pytest.fixture
def requests() -> list[tuple[str, str]]:
    """Path and status of each GET that was answered, in order."""
    port = os.environ.get("EDGE_MOE_MODEL_PORT", "8096")
    log = (home() / "servers" / f"{port}.log").read_text()
    return re.findall(r'"GET (/\w\S*) HTTP/1\.1" (\d+)', log)


@pytest.fixture
def names(host: Any) -> Any:
    """The sorted names in a folder of the board."""
    return lambda folder: sorted(host.check_output("ls -A %s", folder).split())
