# SPDX-License-Identifier: GPL-3.0-or-later
"""The clock-floor service on a machine without a GPU node: files, fences, and what it says that it lacks."""

from __future__ import annotations

from typing import Any

import pytest

UNIT = "edge-moe-clock-floor.service"
PACKAGE = "/usr/lib/edge-moe/edge_moe_clock_floor"
MODULE = "env PYTHONPATH=/usr/lib/edge-moe PYTHONDONTWRITEBYTECODE=1 python3 -S -s -m edge_moe_clock_floor"


def show(host: Any, name: str) -> str:
    return str(host.check_output("systemctl show --value -p %s %s", name, UNIT)).strip()


@pytest.mark.parametrize(
    ("path", "kind", "mode"),
    [
        ("/etc/default/edge-moe-clock-floor", "regular file", 0o644),
        (f"/etc/systemd/system/{UNIT}", "regular file", 0o644),
        ("/usr/lib/edge-moe", "directory", 0o755),
        (PACKAGE, "directory", 0o755),
        (f"{PACKAGE}/__main__.py", "regular file", 0o644),
        (f"{PACKAGE}/restore.py", "regular file", 0o644),
        ("/etc/edge-moe", "directory", 0o755),
        ("/etc/tmpfiles.d/edge-moe.conf", "regular file", 0o644),
    ],
)
def test_everything_installed_belongs_to_root(host: Any, path: str, kind: str, mode: int) -> None:
    assert host.check_output("stat --format='%%F %%U %%G %%a' %s", path) == f"{kind} root root {mode:o}"


def test_folder_for_health_is_shared_and_sticky(host: Any) -> None:
    folder = host.file("/run/edge-moe")
    assert (folder.user, folder.group, folder.mode) == ("root", "edge-moe", 0o1775)


def test_user_of_the_server_cannot_log_in(host: Any) -> None:
    user = host.user("edge-moe")
    assert (user.shell, user.home, user.group) == ("/usr/sbin/nologin", "/nonexistent", "edge-moe")


def test_unit_is_well_formed(host: Any) -> None:
    said = host.run("systemd-analyze verify %s", f"/etc/systemd/system/{UNIT}")
    assert (said.rc, [line for line in said.stderr.splitlines() if UNIT in line]) == (0, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Type", "notify"),
        ("NotifyAccess", "main"),
        ("UnitFileState", "enabled"),
        ("Restart", "on-failure"),
        ("RestartPreventExitStatus", "2"),
        ("WatchdogUSec", "30s"),
        ("Nice", "-10"),
        ("OOMScoreAdjust", "-500"),
        ("LimitNOFILE", "16384"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "read-only"),
        ("ProtectKernelTunables", "yes"),
        ("ProtectProc", "invisible"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("PrivateNetwork", "yes"),
        ("RestrictAddressFamilies", "AF_UNIX"),
        ("RestrictNamespaces", "yes"),
        ("MemoryDenyWriteExecute", "yes"),
        ("SystemCallArchitectures", "native"),
        ("RuntimeDirectoryPreserve", "yes"),
    ],
)
def test_service_is_fenced_in(host: Any, name: str, value: str) -> None:
    assert show(host, name) == value


def test_the_clock_is_put_back_however_the_service_ends(host: Any) -> None:
    assert "argv[]=/usr/bin/python3 -S -s -m edge_moe_clock_floor.restore ;" in show(host, "ExecStopPost")
    assert "flags=privileged" in show(host, "ExecStopPostEx")


def test_capabilities_are_those_that_the_kernel_asks_for(host: Any) -> None:
    paranoid = int(host.file("/proc/sys/kernel/perf_event_paranoid").content_string)
    last = "cap_sys_admin" if paranoid > 2 else "cap_checkpoint_restore"
    assert set(show(host, "CapabilityBoundingSet").split()) == {"cap_perfmon", "cap_sys_ptrace", last}


def test_only_its_own_folders_can_be_written(host: Any) -> None:
    """Of a board the node's device stands here too; without a GPU there is none."""
    assert show(host, "ReadWritePaths") == "-/run/edge-moe"


def test_it_runs_and_says_what_it_lacks(host: Any) -> None:
    assert host.service(UNIT).is_running
    assert "degraded: no GPU devfreq node (/sys/class/devfreq" in show(host, "StatusText")
    health = host.file("/run/edge-moe/clock-floor.prom").content_string
    assert "edge_moe_clock_floor_raised 0" in health
    check = host.run(f"{MODULE} check")
    assert check.rc == 1
    assert "node: none (/sys/class/devfreq" in check.stdout
