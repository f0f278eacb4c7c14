# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.edge.moe.plugins.module_utils import _floor_facts
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from ansible_collections.edge.moe.plugins.modules import devfreq_facts
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures" / "sysfs"
NODE = "/sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu"
PROM = """\
# HELP edge_moe_clock_floor_raised x
edge_moe_clock_floor_raised 1
edge_moe_clock_floor_effective_hz 1020000000
edge_moe_clock_floor_transitions_total 7
edge_moe_clock_floor_probes_attached 6
edge_moe_clock_floor_degraded{reason="a \\"reason\\""} 1
edge_moe_clock_floor_updated_timestamp_seconds 1000.25
"""


def gather(root: Path, unit: str | None = None) -> Any:
    return _floor_facts.gather_devfreq(Host(str(root)), unit, 1002.75)


def test_facts_of_an_orin_nano_super() -> None:
    facts = gather(FIXTURES / "orin-nano-super")
    (node,) = facts["nodes"]
    assert node["path"] == NODE
    assert node["max_hz"] == 1020000000
    assert node["pinned_externally"] is False
    assert facts["floor"] is None
    assert facts["warnings"] == []


def test_every_key_is_documented_and_every_documented_key_is_there(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "orin-nano-super", tmp_path, symlinks=True, dirs_exist_ok=True)
    write_run(tmp_path, "boot-1", "boot-1")
    documented = yaml.safe_load(devfreq_facts.RETURN)["ansible_facts"]["contains"]["edge_moe_devfreq"]["contains"]
    facts = gather(tmp_path, "active")
    assert set(facts) == set(documented)
    assert set(facts["nodes"][0]) == set(documented["nodes"]["contains"])
    assert set(facts["floor"]) == set(documented["floor"]["contains"])


def write_run(root: Path, boot: str, journal_boot: str) -> None:
    for name, text in (
        ("proc/sys/kernel/random/boot_id", boot + "\n"),
        ("run/edge-moe/clock-floor.prom", PROM),
        (
            "run/edge-moe-clock-floor/baseline.json",
            json.dumps({"boot_id": journal_boot, "nodes": [{"path": NODE}]}),
        ),
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(("journal_boot", "external"), [("boot-1", False), ("boot-0", True)])
def test_a_clock_at_the_top_is_ours_only_with_a_journal_of_this_boot(
    tmp_path: Path, journal_boot: str, external: bool
) -> None:
    shutil.copytree(FIXTURES / "orin-nano-jetson-clocks", tmp_path, symlinks=True, dirs_exist_ok=True)
    write_run(tmp_path, "boot-1", journal_boot)
    assert gather(tmp_path)["nodes"][0]["pinned_externally"] is external


def test_a_journal_that_is_no_journal_holds_nothing(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "orin-nano-jetson-clocks", tmp_path, symlinks=True, dirs_exist_ok=True)
    write_run(tmp_path, "boot-1", "boot-1")
    for text in ("[]", "{", '{"boot_id": "boot-1", "nodes": 5}', '{"boot_id": "boot-1"}'):
        (tmp_path / "run/edge-moe-clock-floor/baseline.json").write_text(text)
        assert gather(tmp_path)["nodes"][0]["pinned_externally"] is True


def test_what_the_service_last_said(tmp_path: Path) -> None:
    write_run(tmp_path, "boot-1", "boot-1")
    assert gather(tmp_path, "active")["floor"] == {
        "unit": "active",
        "raised": True,
        "effective_hz": 1020000000,
        "transitions": 7,
        "probes_attached": 6,
        "updated_s_ago": 2.5,
        "degraded": 'a "reason"',
    }


def test_a_service_that_has_said_nothing_is_null_not_guessed(tmp_path: Path) -> None:
    floor = gather(tmp_path, "failed")["floor"]
    assert floor == {
        "unit": "failed",
        "raised": None,
        "effective_hz": None,
        "transitions": None,
        "probes_attached": None,
        "updated_s_ago": None,
        "degraded": None,
    }


def test_what_else_sets_the_clock_and_what_the_service_watches_by(tmp_path: Path) -> None:
    assert (gather(tmp_path)["writers"], gather(tmp_path)["perf_event_paranoid"]) == ([], None)
    for name, text in (("etc/rc.local", "jetson_clocks\n"), ("proc/sys/kernel/perf_event_paranoid", "4\n")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "etc/rc.local").chmod(0o755)
    assert (gather(tmp_path)["writers"], gather(tmp_path)["perf_event_paranoid"]) == (["/etc/rc.local"], 4)


@pytest.mark.parametrize("board", ["no-gpu", "no-devfreq"])
def test_no_gpu_is_one_warning_that_names_what_was_looked_at(board: str) -> None:
    facts = gather(FIXTURES / board)
    assert facts["nodes"] == []
    (warning,) = facts["warnings"]
    assert "/sys/class/devfreq" in warning
    assert "ga10b" in warning


def test_unreadable_values_are_named() -> None:
    warnings = gather(FIXTURES / "odd")["warnings"]
    assert "/sys/devices/platform/17000001.gv11b/devfreq/17000001.gv11b/max_freq could not be read" in " ".join(
        warnings
    )


@pytest.mark.parametrize("board", ["orin-nano-super", "odd", "no-gpu"])
@pytest.mark.parametrize("check_mode", [False, True])
def test_the_module_itself_runs_and_changes_nothing(board: str, check_mode: bool) -> None:
    collections = Path(__file__).parents[7]
    arguments = {"ANSIBLE_MODULE_ARGS": {"root": str(FIXTURES / board), "_ansible_check_mode": check_mode}}
    done = subprocess.run(
        [sys.executable, "-m", "ansible_collections.edge.moe.plugins.modules.devfreq_facts"],
        input=json.dumps(arguments),
        cwd=collections,
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert result["changed"] is False
    assert set(result["ansible_facts"]) == {"edge_moe_devfreq"}


TRANS_STAT = """\
     From  :   To
           : 306000000 612000000 1020000000   time(ms)
  306000000:         0         1         20   912345
  612000000:         1         0          0       40
*1020000000:        20         0          0     5678
Total transition : 42
"""


@pytest.mark.parametrize(
    ("text", "times", "changes"),
    [
        (TRANS_STAT, {"306000000": 912345, "612000000": 40, "1020000000": 5678}, 42),
        ("Total transition : 0\n", None, 0),
        ("Not Supported.\n", None, None),
        ("", None, None),
        (None, None, None),
        ("306000000: 1", {"306000000": 1}, None),
        ("* 306000000:   0   7\n", {"306000000": 7}, None),
    ],
)
def test_time_in_state(text: str | None, times: dict[str, int] | None, changes: int | None) -> None:
    assert _floor_facts.parse_trans_stat(text) == (times, changes)


@given(st.text(max_size=300))
def test_any_trans_stat_is_read(text: str) -> None:
    _floor_facts.parse_trans_stat(text)
