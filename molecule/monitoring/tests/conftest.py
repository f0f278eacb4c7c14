# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the exporter listens, and what it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"


@pytest.fixture
def listens(host: Any) -> list[str]:
    """Addresses with ports. The network is the host's, so only the lines of this program count."""
    lines = host.check_output("ss --no-header --listening --tcp --numeric --processes").splitlines()
    return [line.split()[3] for line in lines if '"prometheus-node' in line]


@pytest.fixture
def metrics(host: Any) -> Callable[[str], list[str]]:
    return lambda address: host.check_output("python3 -c %s %s", FETCH, f"http://{address}/metrics").splitlines()
