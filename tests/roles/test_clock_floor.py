# SPDX-License-Identifier: GPL-3.0-or-later
"""The clock floor refuses to share the clock, and switching it off stops and disables its unit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Playbook, role

PINS = "[Service]\nType=oneshot\nExecStart=/usr/bin/jetson_clocks\n"


def test_whatever_pins_the_clock_at_boot_is_named_together_with_the_remedy(playbook: Playbook, tmp_path: Path) -> None:
    units, local = tmp_path / "root/etc/systemd/system", tmp_path / "root/etc/rc.local"
    (units / "multi-user.target.wants").mkdir(parents=True)
    (units / "pin-clocks.service").write_text(PINS)
    (units / "multi-user.target.wants/pin-clocks.service").symlink_to(units / "pin-clocks.service")
    local.write_text("#!/bin/sh\n/usr/bin/jetson_clocks\nexit 0\n")
    local.chmod(0o755)
    there = {"edge.moe.devfreq_facts": {"root": str(tmp_path / "root")}}
    preflight = {"name": "On a board", "module_defaults": there, "block": [role("gpu_clock_floor", "preflight")]}
    played = playbook.run([preflight], {"gpu_clock_floor_enabled": True})
    assert played.rc != 0
    assert "board: GPU clocks are set at every boot by /etc/rc.local, pin-clocks.service." in played.words, played.text
    assert "systemctl disable --now UNIT" in played.words
    unwanted = playbook.run([preflight], {"gpu_clock_floor_enabled": False})
    assert unwanted.rc == 0, "nothing to refuse where the floor is not wanted"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"gpu_clock_floor_floor_hz": 1020, "gpu_clock_floor_hold_s": 61},
            "FLOOR_HZ=1020 is not accepted: it takes a frequency in Hz such as 918000000, or 0 for the highest; "
            "HOLD_S=61 is not accepted: it takes seconds from 0 to 60.",
        ),
        (
            {"gpu_clock_floor_libraries": ["lib/libllama.so"]},
            'LIBRARIES="lib/libllama.so" is not accepted: it takes absolute paths or globs',
        ),
    ],
)
def test_settings_that_would_stop_the_service_are_refused_before_they_are_written(
    playbook: Playbook, settings: dict[str, object], says: str
) -> None:
    played = playbook.run([role("gpu_clock_floor", "settings")], settings)
    assert played.rc != 0
    assert f"board: the service would not start with {says}" in played.words, played.text


def test_the_settings_of_the_role_are_accepted_also_in_check_mode(playbook: Playbook) -> None:
    played = playbook.run([role("gpu_clock_floor", "settings")], arguments=("--check",))
    assert played.rc == 0, played.text


SYSTEMCTL = """#!/bin/sh
echo "$@" >> "{log}"
case $1 in
    show) printf 'Id=edge-moe-clock-floor.service\\nLoadState=loaded\\nActiveState=active\\nUnitFileState=enabled\\n' ;;
    is-enabled) echo enabled ;;
esac
"""


@pytest.mark.parametrize(
    ("enabled", "asked", "never"),
    [(False, {"stop", "disable"}, {"start", "restart", "enable"}), (True, set(), {"stop", "disable", "restart"})],
)
def test_switching_it_off_stops_and_disables_the_running_unit(
    playbook: Playbook,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    enabled: bool,
    asked: set[str],
    never: set[str],
) -> None:
    """Stopping restores the clock: SIGTERM does, and ExecStopPost where it did not. See the tests of the service."""
    log = tmp_path / "asked"
    stub = tmp_path / "bin" / "systemctl"
    stub.parent.mkdir()
    stub.write_text(SYSTEMCTL.format(log=log))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(stub.parent), prepend=":")
    variables = {"gpu_clock_floor_enabled": enabled, "__gpu_clock_floor_files": {"changed": False}}
    played = playbook.run([role("gpu_clock_floor", "run")], arguments=("-e", json.dumps(variables)))
    assert played.rc == 0, played.text
    verbs = {word for line in log.read_text().splitlines() for word in line.split() if not word.endswith(".service")}
    assert asked <= verbs
    assert not never & verbs
