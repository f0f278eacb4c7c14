# SPDX-License-Identifier: GPL-3.0-or-later
"""The server's units as systemd shows them, and where they stand."""

from __future__ import annotations

from typing import Any

import pytest

SERVER = "edge-moe-server.service"
REFERENCE = "edge-moe-reference.service"


def show(host: Any, unit: str, name: str) -> str:
    return str(host.check_output("systemctl show --value -p %s %s", name, unit)).strip()


@pytest.mark.parametrize(
    ("path", "kind", "mode"),
    [
        ("/etc/edge-moe", "directory", 0o755),
        ("/etc/edge-moe/server.env", "regular file", 0o644),
        (f"/etc/systemd/system/{SERVER}", "regular file", 0o644),
        (f"/etc/systemd/system/{REFERENCE}", "regular file", 0o644),
        ("/etc/systemd/system/edge-moe.slice", "regular file", 0o644),
        ("/usr/local/bin/edge-moe-run", "regular file", 0o755),
    ],
)
def test_what_is_configured_belongs_to_root(host: Any, path: str, kind: str, mode: int) -> None:
    assert host.check_output("stat --format='%%F %%U %%G %%a' %s", path) == f"{kind} root root {mode:o}"


@pytest.mark.parametrize("unit", [SERVER, REFERENCE])
def test_units_are_well_formed(host: Any, unit: str) -> None:
    said = host.run("systemd-analyze verify %s", f"/etc/systemd/system/{unit}")
    assert (said.rc, [line for line in said.stderr.splitlines() if "edge-moe" in line]) == (0, [])


@pytest.mark.parametrize("unit", [SERVER, REFERENCE])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("User", "edge-moe"),
        ("Group", "edge-moe"),
        ("SupplementaryGroups", "video render"),
        ("Slice", "edge-moe.slice"),
        ("MemorySwapMax", "0"),
        ("LimitMEMLOCK", "infinity"),
        ("LimitNOFILE", "65536"),
        ("OOMScoreAdjust", "200"),
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", ""),
        ("ProtectSystem", "strict"),
        ("ReadWritePaths", "/run/edge-moe"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("ProtectKernelTunables", "yes"),
        ("RestrictNamespaces", "yes"),
        ("SystemCallArchitectures", "native"),
    ],
)
def test_servers_are_fenced_in(host: Any, unit: str, name: str, value: str) -> None:
    assert show(host, unit, name) == value


def test_slice_may_not_swap(host: Any) -> None:
    assert show(host, "edge-moe.slice", "MemorySwapMax") == "0"
    assert show(host, SERVER, "ControlGroup").endswith("/edge.slice/edge-moe.slice/edge-moe-server.service")


def test_kernel_holds_the_limit_where_it_can(host: Any) -> None:
    """The role refuses a kernel that cannot, which serve.yml requires it to."""
    if "memory" not in host.file("/sys/fs/cgroup/cgroup.controllers").content_string.split():
        pytest.skip("this kernel has no memory controller in cgroup v2")
    assert (
        host.file(f"/sys/fs/cgroup{show(host, SERVER, 'ControlGroup')}/memory.swap.max").content_string.strip() == "0"
    )


def test_server_starts_with_the_machine_and_the_reference_does_not(host: Any) -> None:
    assert host.service(SERVER).is_running
    assert host.service(SERVER).is_enabled
    assert not host.service(REFERENCE).is_running
    assert show(host, REFERENCE, "UnitFileState") == "static"
    assert SERVER in show(host, REFERENCE, "Conflicts").split()
