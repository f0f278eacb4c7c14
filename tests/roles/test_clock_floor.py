# SPDX-License-Identifier: GPL-3.0-or-later
"""The clock floor refuses to share the clock, and switching it off stops and disables its unit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Playbook, Played, role

PINS = "[Service]\nType=oneshot\nExecStart=/usr/bin/jetson_clocks\n"
JTOP = '{\n  "fan": {"profile": "quiet"},\n  "jetson_clocks": {\n    "wait": 60,\n    "boot": %s\n  }\n}\n'


class Etc:
    """The folders that are searched, in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.units = folder / "units"
        self.jtop = folder / "jtop"
        self.etc = folder / "etc"
        for made in (self.units / "multi-user.target.wants", self.jtop, self.etc):
            made.mkdir(parents=True)

    def unit(self, name: str, text: str, enabled: bool) -> None:
        (self.units / name).write_text(text)
        if enabled:
            (self.units / "multi-user.target.wants" / name).symlink_to(self.units / name)

    def preflight(self, playbook: Playbook, *, enabled: bool = True) -> Played:
        variables = {
            "_gpu_clock_floor_writer_folders": [str(self.units), str(self.etc), str(self.jtop)],
            "_gpu_clock_floor_enabled_folder": str(self.units),
            "gpu_clock_floor_enabled": enabled,
        }
        return playbook.run([role("gpu_clock_floor", "preflight")], arguments=("-e", json.dumps(variables)))


@pytest.fixture
def etc(tmp_path: Path) -> Etc:
    return Etc(tmp_path / "root")


def test_whatever_pins_the_clock_at_boot_is_named_together_with_the_remedy(playbook: Playbook, etc: Etc) -> None:
    etc.unit("pin-clocks.service", PINS, enabled=True)
    etc.unit("jetson-moe-gpu-stabilizer.service", "[Service]\nExecStart=/opt/tool/run\n", enabled=True)
    (etc.jtop / "config.json").write_text(JTOP % "true")
    (etc.etc / "rc.local").write_text("#!/bin/sh\n/usr/bin/jetson_clocks\nexit 0\n")
    (etc.etc / "rc.local").chmod(0o755)
    played = etc.preflight(playbook)
    assert played.rc != 0
    assert (
        "GPU clocks are set at every boot by "
        f"{etc.etc}/rc.local, {etc.jtop}/config.json, jetson-moe-gpu-stabilizer.service, pin-clocks.service."
    ) in played.words, played.text
    assert "systemctl disable --now UNIT" in played.words
    assert etc.preflight(playbook, enabled=False).rc == 0, "nothing to refuse where the floor is not wanted"


def test_what_is_there_but_does_not_run_is_no_conflict(playbook: Playbook, etc: Etc) -> None:
    etc.unit("jetson_clocks.service", PINS, enabled=False)
    etc.unit("nvpmodel.service", "# before jetson_clocks\n[Service]\nExecStart=/usr/sbin/nvpmodel -f x\n", enabled=True)
    (etc.units / "masked.service").symlink_to("/dev/null")
    (etc.jtop / "config.json").write_text(JTOP % "false")
    (etc.etc / "rc.local").write_text("#!/bin/sh\n# jetson_clocks\nexit 0\n")
    (etc.etc / "rc.local").chmod(0o755)
    played = etc.preflight(playbook)
    assert played.rc == 0, played.text


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
