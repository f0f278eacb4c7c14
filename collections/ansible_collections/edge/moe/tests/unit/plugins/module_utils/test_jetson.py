# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts below are of our own writing, in the forms that boards print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _jetson, _power
from ansible_collections.edge.moe.plugins.module_utils._host import CommandResult, Host
from hypothesis import given
from hypothesis import strategies as st

SUPER = b"nvidia,p3768-0000+p3767-0005-super\0nvidia,p3767-0005\0nvidia,tegra234\0"


@pytest.mark.parametrize(
    ("compatible", "board", "is_super", "soc"),
    [
        (SUPER, "orin-nano-8gb", True, "tegra234"),
        (b"nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0", "orin-nano-8gb", False, "tegra234"),
        (b"nvidia,p3768-0000+p3767-0003-super\0nvidia,tegra234\0", "orin-nano-8gb", True, "tegra234"),
        (b"nvidia,p3768-0000+p3767-0004\0nvidia,tegra234\0", "orin-nano-4gb", False, "tegra234"),
        (b"nvidia,p3768-0000+p3767-0001-super\0nvidia,tegra234\0", "orin-nx-8gb", True, "tegra234"),
        (b"nvidia,p3768-0000+p3767-0000\0nvidia,tegra234\0", "orin-nx-16gb", False, "tegra234"),
        (b"nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0", "agx-orin-64gb", False, "tegra234"),
        (b"nvidia,p3737-0000+p3701-0008\0nvidia,tegra234\0", "agx-orin-industrial", False, "tegra234"),
        (b"nvidia,p3971-0089+p3834-0008\0nvidia,tegra264\0", "thor-t5000", False, "tegra264"),
        # another maker's carrier: the module's number is all there is to go by
        (b"acme,carrier-7+p3767-0001\0nvidia,tegra234\0", "orin-nx-8gb", False, "tegra234"),
        (b"nvidia,tegra194\0", None, None, "tegra194"),
        (b"nvidia,p9999-0000+p8888-0000\0nvidia,tegra299\0", None, None, "tegra299"),
        (b"raspberrypi,5-model-b\0brcm,bcm2712\0", None, None, None),
        (b"", None, None, None),
        (b"\0\0", None, None, None),
        (b"nvidia,p3768-0000+p3767-0005-super", "orin-nano-8gb", True, None),
        (b"\xff\xfe\0nvidia,tegra234\0", None, None, "tegra234"),
    ],
)
def test_board_by_compatible(compatible: bytes, board: str | None, is_super: bool | None, soc: str | None) -> None:
    assert _jetson.identify(_jetson.parse_compatible(compatible)) == (board, is_super, soc)


@pytest.mark.parametrize(
    ("text", "release"),
    [
        (
            "# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64, DATE: Thu Sep 18 22:54:44 "
            "UTC 2025\n# KERNEL_VARIANT: oot\n",
            "36.4.7",
        ),
        ("# R36 (release), REVISION: 5.0, GCID: 43688277, BOARD: generic, EABI: aarch64\n", "36.5.0"),
        (
            "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64, DATE: Tue Aug 1 07:57:35 "
            "PM UTC 2023",
            "35.4.1",
        ),
        ("# R39 (release), REVISION: 2.0,", "39.2.0"),
        ("#R36(release),REVISION:4.3", "36.4.3"),
        ("# R36 (release), REVISION: 5, GCID: 1", "36.5.0"),
        ("", None),
        ("R36", None),
        ("# KERNEL_VARIANT: oot", None),
    ],
)
def test_release_file(text: str, release: str | None) -> None:
    assert _jetson.parse_nv_tegra_release(text) == release


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("36.4.3-20250107174145", "36.4.3"),
        ("36.4-20250107174145", "36.4.0"),
        ("38.2.1", "38.2.1"),
        ("", None),
        ("unknown", None),
        ("36", None),
        ("36.4.3.1-5", None),
    ],
)
def test_release_by_package(version: str, release: str | None) -> None:
    assert _jetson.parse_l4t_package(version) == release


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("NV Power Mode: MAXN_SUPER\n2\n", {"name": "MAXN_SUPER", "id": 2}),
        ("NVPM WARN: fan mode is not set!\nNV Power Mode: 25W\n1\n", {"name": "25W", "id": 1}),
        ("NV Power Mode: MODE_15W\nNVPM VERB: more\n0\n", {"name": "MODE_15W", "id": 0}),
        ("Current mode: NV Power Mode: MAXN\r\n0\r\n", {"name": "MAXN", "id": 0}),
        ("nv power mode : 7W\n3", {"name": "7W", "id": 3}),
        ("NV Power Mode: MAXN\n", {"name": "MAXN", "id": None}),
        ("2\n", None),
        ("", None),
        ("NVPM ERROR: optMask is 1, no request for power mode", None),
    ],
)
def test_power_mode(text: str, mode: dict[str, Any] | None) -> None:
    assert _power.parse_query(text) == mode


def test_stored_power_mode_and_its_name() -> None:
    assert _power.parse_status("pmode:0002 fmode:fan_mode_quiet") == 2
    assert _power.parse_status("fmode:quiet") is None
    conf = "# < POWER_MODEL ID=9 NAME=OLD >\n< POWER_MODEL ID=0 NAME=15W >\n  <POWER_MODEL ID=2 NAME=MAXN_SUPER>\n"
    assert _power.parse_conf_names(conf) == {0: "15W", 2: "MAXN_SUPER"}


def test_meminfo_takes_what_it_knows() -> None:
    text = "MemTotal:        7802332 kB\nMemAvailable:    6123456 kB\nHugePages_Total:       0\nodd line\nX: y kB\n"
    assert _jetson.parse_meminfo(text) == {
        "MemTotal": 7802332 * 1024,
        "MemAvailable": 6123456 * 1024,
        "HugePages_Total": 0,
    }


def test_swaps_with_zram_and_a_file_with_a_space() -> None:
    text = (
        "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
        "/dev/zram0                              partition\t182544\t\t12\t\t5\n"
        "/mnt/a\\040b                              file\t8388604\t0\t-2\n"
        "short line\n"
    )
    assert _jetson.parse_swaps(text) == [
        {"device": "/dev/zram0", "zram": True, "size_bytes": 182544 * 1024, "used_bytes": 12 * 1024},
        {"device": "/mnt/a b", "zram": False, "size_bytes": 8388604 * 1024, "used_bytes": 0},
    ]


@pytest.mark.parametrize(
    ("text", "count"), [("0-5", 6), ("0", 1), ("0-3,6,8-9", 7), ("", None), ("3-1", None), ("a", None), ("0-", None)]
)
def test_cpu_list(text: str, count: int | None) -> None:
    assert _jetson.parse_cpu_list(text) == count


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("[none] mq-deadline kyber", "none"), ("none [mq-deadline]", "mq-deadline"), ("none", "none"), ("", None)],
)
def test_scheduler(text: str, chosen: str | None) -> None:
    assert _jetson.parse_scheduler(text) == chosen


@pytest.mark.parametrize(
    ("mounts", "version"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", 2),
        (
            "tmpfs /sys/fs/cgroup tmpfs ro 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
            "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0",
            1,
        ),
        ("proc /proc proc rw 0 0", None),
        ("", None),
    ],
)
def test_cgroup_version(mounts: str, version: int | None) -> None:
    assert _jetson.parse_cgroup_version(mounts) == version


def test_cuda_version() -> None:
    assert _jetson.parse_cuda_version_json('{"cuda" : {"name" : "CUDA SDK", "version" : "12.6.11"}}') == "12.6.11"
    assert _jetson.parse_cuda_version_json("{}") is None
    assert _jetson.parse_nvcc_version("Cuda compilation tools, release 12.6, V12.6.68\n") == "12.6"


BOARD: dict[str, str | bytes] = {
    "/proc/device-tree/compatible": SUPER,
    "/proc/device-tree/model": b"NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\0",
    "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.7, GCID: 1, BOARD: generic\n",
    "/proc/meminfo": "MemTotal: 7802332 kB\nMemAvailable: 6123456 kB\nCmaTotal: 262144 kB\nCmaFree: 12345 kB\n",
    "/proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 100 0 5\n",
    "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
    "/proc/sys/kernel/osrelease": "5.15.148-tegra\n",
    "/sys/bus/event_source/devices/uprobe/type": "8\n",
    "/sys/devices/system/cpu/online": "0-5\n",
    "/sys/block/nvme0n1/size": "1953525168\n",
    "/sys/block/nvme0n1/device/model": "Acme SSD 1TB            \n",
    "/sys/block/nvme0n1/queue/read_ahead_kb": "128\n",
    "/sys/block/nvme0n1/queue/scheduler": "[none] mq-deadline\n",
    "/sys/block/nvme0c0n1/size": "1\n",
    "/sys/class/nvme/nvme0/state": "live\n",
    "/sys/class/nvme/nvme0/hwmon3/temp1_input": "41850\n",
    "/sys/class/thermal/thermal_zone1/type": "gpu-thermal\n",
    "/sys/class/thermal/thermal_zone1/temp": "50218\n",
    "/sys/class/thermal/thermal_zone1/trip_point_0_type": "passive\n",
    "/sys/class/thermal/thermal_zone1/trip_point_0_temp": "0\n",
    "/sys/class/thermal/thermal_zone1/trip_point_1_type": "critical\n",
    "/sys/class/thermal/thermal_zone1/trip_point_1_temp": "104500\n",
    "/sys/class/thermal/thermal_zone1/trip_point_2_type": "hot\n",
    "/sys/class/thermal/thermal_zone1/trip_point_2_temp": "97000\n",
    "/proc/buddyinfo": "Node 0, zone   Normal    100    50    20    10     5     4     3     2     1     0     1\n",
    "/sys/kernel/debug/nvmap/iovmm/clients": (
        "CLIENT  PROCESS  PID  SIZE\nuser  llama-server  812  424960K\ntotal  424960K\n"
    ),
    "/sys/block/mmcblk0/size": "1\n",
    "/usr/local/cuda/bin/nvcc": "",
    "/usr/local/cuda/version.json": '{"cuda" : {"version" : "12.6.11"}}',
    "/sys/class/devfreq/17000000.gpu/device/of_node/name": b"gpu\0",
    "/sys/class/devfreq/17000000.gpu/available_frequencies": "306000000 1020000000\n",
    "/sys/class/devfreq/17000000.gpu/min_freq": "306000000\n",
    "/sys/class/devfreq/17000000.gpu/max_freq": "1020000000\n",
    "/sys/class/devfreq/17000000.gpu/cur_freq": "306000000\n",
}
DPKG = (
    "ii \tnvidia-l4t-core\t36.4.7-20250918154033\nhi \tnvidia-l4t-kernel\t36.4.7-20250918154033\n"
    "rc \tnvidia-l4t-old\t35.4.1-2023\nii \tbash\t5.1\n"
)
COMMANDS = {
    "nvpmodel": "NV Power Mode: MAXN_SUPER\n2\n",
    "dpkg-query": DPKG,
    "nvme": '{"critical_warning":0,"percent_used":3,"media_errors":0}',
}


def test_a_board_in_order(make_host: Callable[..., Host]) -> None:
    facts = _jetson.gather(make_host(BOARD, COMMANDS))
    assert facts["is_jetson"] is True
    assert (facts["board"], facts["super"], facts["soc"]) == ("orin-nano-8gb", True, "tegra234")
    assert facts["model"] == "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"
    assert facts["l4t"] == {
        "version": "36.4.7",
        "release_file": "36.4.7",
        "package": "36.4.7-20250918154033",
        "agree": True,
    }
    assert facts["jetpack"] == "6.2.1"
    assert facts["kernel"] == "5.15.148-tegra"
    assert facts["cgroup_version"] == 2
    assert (facts["uprobes"], facts["btf"]) == (True, False)
    assert facts["power_mode"] == {
        "name": "MAXN_SUPER",
        "id": 2,
        "gpu_cap_hz": None,
        "emc_cap_hz": None,
        "label_true": True,
        "label_note": "the GPU may run up to 1020 MHz, as MAXN_SUPER says",
    }
    assert facts["memory"] == {
        "total_bytes": 7802332 * 1024,
        "available_bytes": 6123456 * 1024,
        "cma_total_bytes": 262144 * 1024,
        "cma_free_bytes": 12345 * 1024,
        "nvmap_bytes": 415 << 20,
        "largest_free_block_bytes": 4 << 20,
    }
    assert facts["thermal"] == [{"name": "gpu-thermal", "celsius": 50.218, "hot_celsius": 97.0}]
    assert [swap["device"] for swap in facts["swap"]] == ["/dev/zram0"]
    assert facts["nvme"] == [
        {
            "name": "nvme0n1",
            "model": "Acme SSD 1TB",
            "size_bytes": 1953525168 * 512,
            "read_ahead_kb": 128,
            "scheduler": "none",
            "health": {
                "state": "live",
                "celsius": 41.85,
                "critical_warning": 0,
                "percent_used": 3,
                "media_errors": 0,
            },
        }
    ]
    assert facts["cuda"] == {"version": "12.6.11", "nvcc": "/usr/local/cuda/bin/nvcc"}
    assert facts["jetson_clocks"] is False
    assert facts["cores"] == 6
    assert facts["held_packages"] == ["nvidia-l4t-kernel"]
    assert facts["warnings"] == []


@pytest.mark.parametrize("missing", sorted(BOARD))
def test_no_single_file_is_needed(make_host: Callable[..., Host], missing: str) -> None:
    files = {name: content for name, content in BOARD.items() if name != missing}
    facts = _jetson.gather(make_host(files, COMMANDS))
    assert facts["is_jetson"] is (missing != "/proc/device-tree/compatible")


@pytest.mark.parametrize("odd", [b"", b"\0", b"\xff" * 50, b"garbage\n" * 20000, "한글".encode()])
def test_odd_content_anywhere_fails_nothing(make_host: Callable[..., Host], odd: bytes) -> None:
    facts = _jetson.gather(make_host(dict.fromkeys(BOARD, odd), dict.fromkeys(COMMANDS, odd.decode(errors="replace"))))
    assert facts["is_jetson"] is False
    assert set(facts["memory"].values()) == {None}


def test_no_jetson_says_what_was_read(make_host: Callable[..., Host]) -> None:
    host = make_host(
        {"/sys/class/dmi/id/product_name": "Some PC\n", "/proc/meminfo": "MemTotal: 1 kB\n"}, {"dpkg-query": DPKG}
    )
    facts = _jetson.gather(host)
    assert facts["is_jetson"] is False
    assert facts["warnings"] == [
        "this machine is no Jetson: there is no readable /proc/device-tree/compatible, "
        "/sys/class/dmi/id/product_name says Some PC"
    ]


def test_another_board_is_named(make_host: Callable[..., Host]) -> None:
    host = make_host({"/proc/device-tree/compatible": b"raspberrypi,5-model-b\0", "/proc/meminfo": "MemTotal: 1 kB\n"})
    assert _jetson.gather(host)["warnings"] == [
        "this machine is no Jetson: /proc/device-tree/compatible says raspberrypi,5-model-b"
    ]


def test_sources_that_disagree(make_host: Callable[..., Host]) -> None:
    mixed = DPKG.replace("ii \tnvidia-l4t-core\t36.4.7-20250918154033", "ii \tnvidia-l4t-core\t36.4.4-20250616085344")
    facts = _jetson.gather(make_host(BOARD, {**COMMANDS, "dpkg-query": mixed}))
    assert facts["l4t"]["agree"] is False
    assert facts["l4t"]["version"] == "36.4.4"
    assert any("half-finished upgrade" in warning for warning in facts["warnings"])
    assert any("36.4.4, 36.4.7" in warning for warning in facts["warnings"])


def test_unknown_release_is_null_with_the_release_told(make_host: Callable[..., Host]) -> None:
    files = {**BOARD, "/etc/nv_tegra_release": "# R36 (release), REVISION: 9.9, GCID: 1\n"}
    facts = _jetson.gather(make_host(files, {"nvpmodel": COMMANDS["nvpmodel"], "dpkg-query": "ii \tbash\t5\n"}))
    assert facts["l4t"]["version"] == "36.9.9"
    assert facts["jetpack"] is None
    assert "no JetPack is known here for L4T 36.9.9" in facts["warnings"]


def test_power_mode_of_a_tool_that_hangs(make_host: Callable[..., Any]) -> None:
    files = {
        **BOARD,
        "/var/lib/nvpmodel/status": "pmode:0001 fmode:fan_mode_quiet\n",
        "/etc/nvpmodel.conf": "< POWER_MODEL ID=1 NAME=25W >\n",
    }
    host = make_host(files, {"dpkg-query": DPKG})
    host.commands["nvpmodel"] = CommandResult(None, "", "", "no answer within 5 s")
    facts = _jetson.gather(host)
    assert (facts["power_mode"]["name"], facts["power_mode"]["id"]) == ("25W", 1)
    assert any("no answer within 5 s" in warning for warning in facts["warnings"])


def test_pinned_clock_is_told_from_our_floor(make_host: Callable[..., Host]) -> None:
    files = {**BOARD, "/sys/class/devfreq/17000000.gpu/min_freq": "1020000000\n"}
    assert _jetson.gather(make_host(files, COMMANDS))["jetson_clocks"] is True
    files["/run/edge-moe/clock-floor.prom"] = "edge_moe_clock_floor_raised 1\n"
    assert _jetson.gather(make_host(files, COMMANDS))["jetson_clocks"] is False


PARSERS: list[Callable[[str], Any]] = [
    _jetson.parse_nv_tegra_release,
    _jetson.parse_l4t_package,
    _jetson.parse_packages,
    _power.parse_query,
    _power.parse_status,
    _power.parse_conf_names,
    _jetson.parse_meminfo,
    _jetson.parse_swaps,
    _jetson.parse_cpu_list,
    _jetson.parse_scheduler,
    _jetson.parse_cuda_version_json,
    _jetson.parse_nvcc_version,
    _jetson.parse_cgroup_version,
]


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
@given(text=st.text(max_size=300))
def test_no_text_breaks_a_parser(parser: Callable[[str], Any], text: str) -> None:
    parser(text)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_board(data: bytes) -> None:
    _jetson.identify(_jetson.parse_compatible(data))


@given(st.integers(30, 60), st.integers(0, 99), st.integers(0, 99), st.text(max_size=40))
def test_every_release_is_read_back(major: int, minor: int, patch: int, rest: str) -> None:
    release = f"{major}.{minor}.{patch}"
    rest = rest.replace("\n", " ").replace("\r", " ")
    assert _jetson.parse_nv_tegra_release(f"# R{major} (release), REVISION: {minor}.{patch}, {rest}") == release
    assert _jetson.parse_l4t_package(f"{release}-20250107174145") == release
