# SPDX-License-Identifier: GPL-3.0-or-later
"""Each source of the watch present, missing and odd, and its thread."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _watch
from ansible_collections.edge.moe.plugins.module_utils._devfreq import Sysfs
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from ansible_collections.edge.moe.plugins.module_utils._watch import Watch
from hypothesis import given
from hypothesis import strategies as st

GPU = "/sys/class/devfreq/17000000.gpu"
CPUFREQ = "/sys/devices/system/cpu/cpufreq"
HWMON = "/sys/class/hwmon"
THERMAL = "/sys/class/thermal"
GROUP = "/sys/fs/cgroup/edge.slice/server.service"
FILES: dict[str, str | bytes] = {
    f"{GPU}/device/of_node/name": b"gpu\0",
    f"{GPU}/available_frequencies": "306000000 612000000 1020000000\n",
    f"{GPU}/min_freq": "306000000\n",
    f"{GPU}/max_freq": "1020000000\n",
    f"{GPU}/cur_freq": "1020000000\n",
    f"{GPU}/device/load": "620\n",
    f"{CPUFREQ}/policy0/scaling_cur_freq": "1344000\n",
    f"{CPUFREQ}/policy0/scaling_max_freq": "1728000\n",
    f"{CPUFREQ}/policy0/cpuinfo_max_freq": "1728000\n",
    f"{CPUFREQ}/policy4/scaling_cur_freq": "729600\n",
    f"{CPUFREQ}/policy4/scaling_max_freq": "1728000\n",
    f"{CPUFREQ}/policy4/cpuinfo_max_freq": "1728000\n",
    f"{HWMON}/hwmon0/name": "pwmfan\n",
    f"{HWMON}/hwmon1/name": "ina3221\n",
    f"{HWMON}/hwmon1/in1_label": "VDD_IN\n",
    f"{HWMON}/hwmon1/in1_input": "5000\n",
    f"{HWMON}/hwmon1/curr1_input": "930\n",
    f"{HWMON}/hwmon1/in2_label": "VDD_CPU_GPU_CV\n",
    f"{HWMON}/hwmon1/in2_input": "5000\n",
    f"{HWMON}/hwmon1/curr2_input": "120\n",
    f"{HWMON}/hwmon2/oc1_event_cnt": "4\n",
    f"{HWMON}/hwmon2/oc2_event_cnt": "0\n",
    f"{THERMAL}/thermal_zone0/type": "cpu-thermal\n",
    f"{THERMAL}/thermal_zone0/temp": "47875\n",
    f"{THERMAL}/thermal_zone1/type": "gpu-thermal\n",
    f"{THERMAL}/thermal_zone1/temp": "61250\n",
    f"{THERMAL}/thermal_zone1/trip_point_0_type": "hot\n",
    f"{THERMAL}/thermal_zone1/trip_point_0_temp": "99000\n",
    f"{THERMAL}/thermal_zone2/type": "cv0-thermal\n",
    f"{THERMAL}/thermal_zone2/temp": "-256000\n",
    f"{THERMAL}/cooling_device0/type": "pwm-fan\n",
    f"{THERMAL}/cooling_device0/cur_state": "3\n",
    f"{THERMAL}/cooling_device1/type": "cpufreq-cpu0\n",
    f"{THERMAL}/cooling_device1/cur_state": "0\n",
    f"{THERMAL}/cooling_device2/type": "devfreq-17000000.gpu\n",
    f"{THERMAL}/cooling_device2/cur_state": "2\n",
    f"{GROUP}/memory.swap.current": "8192\n",
}
TEGRASTATS = """\
import sys, time
print("09-17-2026 02:10:03 RAM 1488/7620MB", flush=True)
for n in range(1000):
    print(f"CPU [0%@1036,off] GR3D_FREQ 0% tj@50.2C VDD_IN {4000 + n * 1000}mW/4654mW VDD_SOC 1mW/1mW", flush=True)
    time.sleep(0.05)
"""


def write(host: Host, name: str, text: str) -> None:
    Path(host.path(name)).write_text(text)


def watch_of(host: Host) -> Watch:
    return Watch(host, next(iter(Sysfs(host.root).gpu_nodes()), None), GROUP)


def seen(host: Host, seconds: float = 0.1, change: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """What a watch gives of a request of that length; `change` happens at its middle."""
    with watch_of(host) as watch, watch.busy():
        time.sleep(seconds / 2)
        change()
        time.sleep(seconds / 2)
    assert watch.problem is None
    return watch.summary()


# Pure


@pytest.mark.parametrize(
    ("line", "watts"),
    [
        ("tj@50.2C VDD_IN 4654mW/4600mW VDD_CPU_GPU_CV 560mW/560mW", 4.654),
        ("VDD_IN 4654/4600 VDD_SOC 1/1", 4.654),
        ("VDD_IN 4654mW", 4.654),
        ("VDD_IN_X 1mW/1mW MY_VDD_IN 3mW/3mW VDD_INX 5", None),
        ("VDD_IN mW/mW", None),
        ("VDD_IN -5mW/2mW", None),
        ("", None),
    ],
)
def test_tegrastats(line: str, watts: float | None) -> None:
    assert _watch.parse_tegrastats_watts(line) == watts


@given(st.text(max_size=100))
def test_any_line_passes(line: str) -> None:
    _watch.parse_tegrastats_watts("VDD_IN " + line)


def test_clock_summary() -> None:
    summary = _watch.summarise_clock({306_000_000: 20, 1_019_900_000: 80}, 306_000_000, 1_020_000_000)
    assert summary is not None
    assert summary["share_at_max"] == 0.8
    assert summary["max_hz_seen"] == 1_019_900_000
    assert summary["samples"] == 100
    assert summary["shares"] == {"306000000": 0.2, "1019900000": 0.8}
    assert _watch.summarise_clock({}, 1, 2) is None


def test_a_histogram_does_not_grow_without_end() -> None:
    counts: dict[int, int] = {}
    for value in range(10_000):
        _watch.add_to_histogram(counts, value)
    assert len(counts) == _watch.MAX_CLOCKS
    assert sum(counts.values()) == 10_000
    assert counts[_watch.MAX_CLOCKS - 1] == 10_000 - _watch.MAX_CLOCKS + 1


# Sources


def test_all_sources(make_host: Callable[..., Host]) -> None:
    result = seen(make_host(FILES))
    assert result["gpu"]["shares"] == {"1020000000": 1.0}
    assert result["gpu"]["load"] == {"mean": 0.62, "max": 0.62}
    assert result["cpu"] == {
        "clocks_khz": {"729600": 0.5, "1344000": 0.5},
        "allowed_khz": 1_728_000,
        "full_khz": 1_728_000,
        "lowest_allowed_share": 0.0,
    }
    power = result["power"]
    assert (power["source"], power["rail"], power["mean_w"], power["max_w"]) == ("hwmon", "VDD_IN", 4.65, 4.65)
    assert 4.65 * 0.1 <= power["joules"] < 4.65
    assert result["heat"] == {"max_celsius": 61.25, "zone": "gpu-thermal", "hot_celsius": 99.0}
    assert result["throttle"] == {"events": {}, "cooling": {"devfreq-17000000.gpu": 2}}
    assert result["swap_bytes"] == 8192


def test_a_machine_with_nothing(make_host: Callable[..., Host]) -> None:
    result = seen(make_host({}))
    assert result.pop("throttle") == {"events": {}, "cooling": {}}
    assert set(result.values()) == {None}


@pytest.mark.parametrize(
    ("prefix", "key"),
    [
        (GPU, "gpu"),
        (CPUFREQ, "cpu"),
        (f"{HWMON}/hwmon1", "power"),
        (f"{THERMAL}/thermal_zone", "heat"),
        (GROUP, "swap_bytes"),
    ],
)
def test_a_source_that_is_missing_takes_no_other_along(make_host: Callable[..., Host], prefix: str, key: str) -> None:
    result = seen(make_host({name: text for name, text in FILES.items() if not name.startswith(prefix)}))
    assert [name for name, value in result.items() if value is None] == [key]


@pytest.mark.parametrize("text", ["", "odd\n", "1 2\n", "\0", "9" * 70])
def test_files_that_hold_no_number_are_no_samples(make_host: Callable[..., Host], text: str) -> None:
    read = ("cur_freq", "load", "_input", "scaling_max_freq", "temp", "cur_state", "event_cnt", "swap.current")
    files = {name: text if name.endswith(read) else content for name, content in FILES.items()}
    result = seen(make_host(files))
    assert result.pop("throttle") == {"events": {}, "cooling": {}}
    assert set(result.values()) == {None}


def test_a_folder_where_a_file_is_expected(make_host: Callable[..., Host]) -> None:
    files = {name + ("/x" if name.endswith("cur_freq") else ""): text for name, text in FILES.items()}
    assert seen(make_host(files))["gpu"] is None


def test_the_load_of_the_platform_device(make_host: Callable[..., Host]) -> None:
    files: dict[str, str | bytes] = {name: text for name, text in FILES.items() if not name.endswith("/load")}
    assert seen(make_host(files))["gpu"]["load"] is None
    files["/sys/devices/platform/gpu.0/load"] = "1000\n"
    assert seen(make_host(files))["gpu"]["load"] == {"mean": 1.0, "max": 1.0}


def test_cpus_without_policies(make_host: Callable[..., Host]) -> None:
    files = {name.replace("/cpufreq/policy", "/cpu").replace("/scaling", "/cpufreq/scaling"): text
             for name, text in FILES.items()}  # fmt: skip
    cpu = seen(make_host(files))["cpu"]
    assert set(cpu["clocks_khz"]) == {"729600", "1344000"}
    assert cpu["full_khz"] is None


def test_a_cap_that_falls_meanwhile(make_host: Callable[..., Host]) -> None:
    host = make_host(FILES)
    result = seen(host, 0.8, lambda: write(host, f"{CPUFREQ}/policy4/scaling_max_freq", "1036800\n"))
    assert result["cpu"]["allowed_khz"] == 1_036_800
    assert 0.2 < result["cpu"]["lowest_allowed_share"] < 0.8


def test_a_cap_that_was_there_from_the_start(make_host: Callable[..., Host]) -> None:
    result = seen(make_host({**FILES, f"{CPUFREQ}/policy0/scaling_max_freq": "1190400\n"}))
    assert result["cpu"]["lowest_allowed_share"] == 1.0
    assert (result["cpu"]["allowed_khz"], result["cpu"]["full_khz"]) == (1_190_400, 1_728_000)


@pytest.mark.parametrize("label", ["in1_label", "power1_label"])
def test_power_that_the_monitor_multiplies_itself(make_host: Callable[..., Host], label: str) -> None:
    files = {name: text for name, text in FILES.items() if not name.startswith(f"{HWMON}/hwmon1/")}
    host = make_host({**files, f"{HWMON}/hwmon3/{label}": "VDD_IN\n", f"{HWMON}/hwmon3/power1_input": "7125000\n"})
    assert seen(host)["power"]["mean_w"] == 7.125


def test_energy_is_that_of_the_requests(make_host: Callable[..., Host]) -> None:
    with watch_of(make_host(FILES)) as watch:
        for _request in range(2):
            with watch.busy():
                time.sleep(0.1)
            time.sleep(0.3)
    assert 0.2 <= watch.busy_s < 0.3
    power = watch.summary()["power"]
    assert power["joules"] == pytest.approx(4.65 * watch.busy_s, abs=0.002)


def test_requests_at_once_are_one_time(make_host: Callable[..., Host]) -> None:
    with watch_of(make_host(FILES)) as watch:
        with watch.busy():
            with watch.busy():
                time.sleep(0.1)
            time.sleep(0.05)
        time.sleep(0.2)
    assert 0.15 <= watch.busy_s < 0.25


def test_tegrastats_where_the_kernel_shows_no_monitor(make_host: Callable[..., Host], tmp_path: Path) -> None:
    host: Any = make_host({name: text for name, text in FILES.items() if "hwmon1" not in name})
    script = tmp_path / "tegrastats.py"
    script.write_text(TEGRASTATS)
    host.programs["tegrastats"] = [sys.executable, str(script)]
    with watch_of(host) as watch, watch.busy():
        time.sleep(1.2)
    power = watch.summary()["power"]
    assert (power["source"], power["rail"]) == ("tegrastats", "VDD_IN")
    assert power["samples"] >= 3
    assert power["max_w"] == 4.0 + power["samples"] - 1
    assert power["mean_w"] == pytest.approx(4.0 + (power["samples"] - 1) / 2)
    assert watch._power._lines is not None
    assert watch._power._lines._process.returncode is not None


def test_what_fights_its_end_is_killed_with_its_children(make_host: Callable[..., Host]) -> None:
    host: Any = make_host({})
    host.programs["tegrastats"] = ["sh", "-c", "trap '' TERM; echo started; sleep 60 & wait; sleep 60"]
    lines = host.lines(["tegrastats"])
    deadline = time.monotonic() + 5
    while not lines.take() and time.monotonic() < deadline:
        time.sleep(0.01)
    lines.stop()
    # Whoever inherits the killed child takes a moment to collect it.
    while time.monotonic() < deadline:
        try:
            os.killpg(lines._process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("a child lives on")


def test_a_line_without_end_is_bounded(make_host: Callable[..., Host]) -> None:
    host: Any = make_host({})
    host.programs["tegrastats"] = ["sh", "-c", "yes x | tr -d '\\n'"]
    lines = host.lines(["tegrastats"])
    try:
        taken = 0
        while taken < 40:
            assert lines.take() == []
            taken += len(lines._rest) > 60_000
        assert len(lines._rest) <= 64 * 1024
    finally:
        lines.stop()


def test_events_that_grew(make_host: Callable[..., Host]) -> None:
    throttled = "/sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count"
    host = make_host({**FILES, throttled.format(0): "1\n", throttled.format(1): "0\n"})

    def change() -> None:
        write(host, f"{HWMON}/hwmon2/oc1_event_cnt", "9\n")
        write(host, throttled.format(0), "2\n")
        write(host, throttled.format(1), "2\n")

    assert seen(host, change=change)["throttle"]["events"] == {"oc1_event_cnt": 5, "core_throttle_count": 3}


def test_only_requests_are_sampled(make_host: Callable[..., Host]) -> None:
    host = make_host(FILES)
    with watch_of(host) as watch:
        with watch.busy():
            time.sleep(0.1)
        write(host, f"{GPU}/cur_freq", "306000000\n")
        write(host, f"{THERMAL}/thermal_zone0/temp", "90000\n")
        time.sleep(0.15)
    result = watch.summary()
    assert result["gpu"]["min_hz_seen"] == 1_020_000_000
    assert result["heat"]["max_celsius"] == 61.25


# Its end


def open_files() -> set[str]:
    return {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name != "0"
            if os.path.exists(f"/proc/self/fd/{name}")}  # fmt: skip


def test_all_is_closed_when_a_request_fails(make_host: Callable[..., Host]) -> None:
    host = make_host(FILES)
    before = threading.active_count()
    watch, held = watch_of(host), []

    def request() -> None:
        with watch, watch.busy():
            time.sleep(0.05)
            held.extend(path for path in open_files() if path.startswith(host.root))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        request()
    assert len(held) >= 12
    assert threading.active_count() == before
    assert [path for path in open_files() if path.startswith(host.root)] == []
    assert watch.busy_s > 0


def test_a_sampler_that_fails_does_not_cost_the_measurement(
    make_host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: object) -> None:
        raise RuntimeError("odd board")

    monkeypatch.setattr(_watch.Heat, "sample", fail)
    host = make_host(FILES)
    with watch_of(host) as watch, watch.busy():
        time.sleep(0.1)
    assert watch.problem == "sampling ended early: RuntimeError: odd board"
    assert watch.summary()["gpu"]["samples"] == 1
    assert [path for path in open_files() if path.startswith(host.root)] == []


def test_a_driver_that_hangs_does_not_hold_the_measurement(
    make_host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(_watch, "STOP_S", 0.1)
    monkeypatch.setattr(_watch.Heat, "sample", lambda _self: release.wait(20))
    try:
        with watch_of(make_host(FILES)) as watch, watch.busy():
            time.sleep(0.05)
        assert watch.problem is not None
        assert "a sensor's driver hangs" in watch.problem
    finally:
        release.set()
        watch._thread.join()
        for source in watch._sources:
            source.close()
