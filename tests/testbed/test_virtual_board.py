# SPDX-License-Identifier: GPL-3.0-or-later
"""A booted virtual board: that it behaves where it claims to be real, and answers like a board where it stands in."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Iterator

import pytest
from edge_moe_testbed.board import Board, Settings

pytestmark = pytest.mark.board

GPU = "/sys/class/devfreq/17000000.gpu"
LOWEST, HIGHEST, CAP_25W = 306000000, 1020000000, 918000000
TABLE = [306000000, 408000000, 510000000, 612000000, 714000000, 816000000, 918000000, 1020000000]


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    machine = Board("pytest")
    machine.destroy()
    try:
        machine.up(Settings(port=port, nvme_gib=1))
        yield machine
    finally:
        machine.destroy()


def output(board: Board, script: str, root: bool = False) -> str:
    """What a shell script prints on the board; it has to succeed."""
    command = f"{'sudo ' if root else ''}sh -euc {shlex.quote(script)}"
    done = board.ssh(command, timeout_s=120)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


@pytest.fixture
def uncapped(board: Board) -> Iterator[Board]:
    output(board, "nvpmodel -m MAXN_SUPER", root=True)
    yield board
    output(board, f"echo 0 >{GPU}/device/load; nvpmodel -m 25W", root=True)


def test_the_clock_table_and_governor_are_those_of_an_orin_nano_super(board: Board) -> None:
    assert numbers(output(board, f"cat {GPU}/available_frequencies")) == TABLE
    assert output(board, f"cat {GPU}/governor") == "nvhost_podgov\n"
    assert "nvhost_podgov" in output(board, f"cat {GPU}/available_governors").split()


def test_min_freq_moves_the_clock_at_once_and_clamps(uncapped: Board) -> None:
    script = f"for hz in 1020000000 0 2000000000 0 500000000 0; do echo $hz >{GPU}/min_freq; cat {GPU}/cur_freq; done"
    assert numbers(output(uncapped, script, root=True)) == [HIGHEST, LOWEST, HIGHEST, LOWEST, 510000000, LOWEST]
    script = f"echo 2000000000 >{GPU}/min_freq; cat {GPU}/min_freq; echo 0 >{GPU}/min_freq; cat {GPU}/min_freq"
    assert numbers(output(uncapped, script, root=True)) == [HIGHEST, LOWEST]


def test_only_root_moves_the_clock(board: Board) -> None:
    assert board.ssh(f"sh -c 'echo 1020000000 >{GPU}/min_freq'").returncode != 0


def test_the_governor_follows_the_load(uncapped: Board) -> None:
    loads = [0, 300, 301, 500, 700, 1000, 0]
    script = "".join(f"echo {load} >{GPU}/device/load; cat {GPU}/cur_freq; " for load in loads)
    clocks = numbers(output(uncapped, script, root=True))
    assert clocks[0] == clocks[1] == clocks[-1] == LOWEST
    assert LOWEST < clocks[2] <= clocks[3] < clocks[4] == clocks[5] == HIGHEST
    assert uncapped.ssh(f"sudo sh -c 'echo 1001 >{GPU}/device/load'").returncode != 0
    assert output(uncapped, f"cat {GPU}/device/load /sys/devices/platform/gpu.0/load") == "0\n0\n"


def test_the_device_tree_names_the_board_as_a_tree_does(board: Board) -> None:
    assert output(board, f"cat {GPU}/device/of_node/name") == "gpu\0"
    assert output(board, "cat /proc/device-tree/model") == (
        "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\0"
    )
    compatible = output(board, "cat /proc/device-tree/compatible").split("\0")
    assert compatible == ["nvidia,p3768-0000+p3767-0005-super", "nvidia,p3767-0005", "nvidia,tegra234", ""]


def test_nvpmodel_answers_in_the_documented_forms(board: Board) -> None:
    assert output(board, "nvpmodel -q") == "NV Power Mode: 25W\n1\n"
    assert "NAME=MAXN_SUPER" in output(board, "nvpmodel -p --verbose")
    assert output(board, "cat /var/lib/nvpmodel/status") == "pmode:0001 fmode:fan_mode_quiet\n"
    refused = board.ssh("nvpmodel -m 2")
    assert refused.returncode != 0
    assert "needs root" in refused.stderr
    unknown = board.ssh("sudo nvpmodel -m 7")
    assert unknown.returncode != 0
    assert "no power mode 7" in unknown.stderr


def test_a_mode_switch_wipes_min_freq_and_sets_the_cap(board: Board) -> None:
    script = f"""
        echo 816000000 >{GPU}/min_freq; cat {GPU}/cur_freq
        for mode in 2 15W MAXN_SUPER 25W; do
            nvpmodel -m $mode; cat {GPU}/min_freq {GPU}/max_freq {GPU}/cur_freq; nvpmodel -q | tail -n 1
        done
    """
    assert numbers(output(board, script, root=True)) == [
        816000000,
        *(LOWEST, HIGHEST, LOWEST, 2),
        *(LOWEST, 612000000, LOWEST, 0),
        *(LOWEST, HIGHEST, LOWEST, 2),
        *(LOWEST, CAP_25W, LOWEST, 1),
    ]


def test_a_floor_above_the_cap_is_clamped_silently(board: Board) -> None:
    script = f"echo 1020000000 >{GPU}/min_freq; cat {GPU}/min_freq {GPU}/cur_freq; echo 0 >{GPU}/min_freq"
    assert numbers(output(board, script, root=True)) == [CAP_25W, CAP_25W]


def test_jetson_clocks_pins_shows_and_restores(board: Board) -> None:
    shown = output(
        board, "jetson_clocks; jetson_clocks --show; jetson_clocks --restore; jetson_clocks --show", root=True
    )
    lines = [line for line in shown.splitlines() if line.startswith("GPU ")]
    assert lines == [
        f"GPU MinFreq={CAP_25W} MaxFreq={CAP_25W} CurrentFreq={CAP_25W}",
        f"GPU MinFreq={LOWEST} MaxFreq={CAP_25W} CurrentFreq={LOWEST}",
    ]
    assert "MinFreq" not in board.ssh("jetson_clocks").stdout


def test_tegrastats_prints_lines_of_the_documented_form(board: Board) -> None:
    text = board.ssh("timeout 8 tegrastats --interval 500").stdout
    form = re.compile(
        r"\d\d-\d\d-\d{4} \d\d:\d\d:\d\d RAM \d+/\d+MB \(lfb \d+x4MB\) SWAP \d+/\d+MB \(cached \d+MB\) "
        r"CPU \[\d+%@\d+(,\d+%@\d+)*\] GR3D_FREQ \d+%(@\d+)? VDD_IN \d+mW/\d+mW"
    )
    lines = text.splitlines()
    assert len(lines) >= 3
    assert [line for line in lines if not form.fullmatch(line)] == []


def test_l4t_is_named_by_file_and_package(board: Board) -> None:
    assert output(board, "cat /etc/nv_tegra_release").startswith("# R36 (release), REVISION: 4.7, ")
    version = output(board, "dpkg-query --showformat='${Version}' --show nvidia-l4t-core")
    assert re.fullmatch(r"36\.4\.7-\d{14}", version)
    assert output(board, "dpkg --audit; dpkg --verify nvidia-l4t-core") == ""


def test_swap_is_zram_with_a_device_a_core_and_a_unit_can_do_without(board: Board) -> None:
    swaps = output(board, "tail -n +2 /proc/swaps").splitlines()
    assert [line.split()[0] for line in swaps] == ["/dev/zram0", "/dev/zram1"]
    total_kib = int(output(board, "awk '/^MemTotal/ { print $2 }' /proc/meminfo"))
    assert sum(int(line.split()[2]) for line in swaps) == pytest.approx(total_kib / 2, rel=0.01)
    script = (
        "systemd-run --quiet --wait --pipe -p MemorySwapMax=0 "
        "sh -c 'cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.swap.max'"
    )
    assert output(board, script, root=True) == "0\n"


def test_probes_can_be_attached(board: Board) -> None:
    assert int(output(board, "cat /sys/bus/event_source/devices/uprobe/type")) > 0
    assert output(board, "test -s /sys/kernel/btf/vmlinux && echo yes") == "yes\n"


def test_the_nvme_disk_is_one_and_carries_the_models_folder(board: Board) -> None:
    assert output(board, "findmnt --noheadings --output SOURCE,FSTYPE /mnt/nvme").split() == ["/dev/nvme0n1", "ext4"]
    queue = "/sys/block/nvme0n1/queue/read_ahead_kb"
    script = f"cat {queue}; echo 512 >{queue}; cat {queue}; echo 128 >{queue}; cat {queue}"
    assert numbers(output(board, script, root=True)) == [128, 512, 128]


def test_direct_reads_show_in_the_disk_statistics(board: Board) -> None:
    script = """
        dd if=/dev/urandom of=/mnt/nvme/probe bs=1M count=8 conv=fsync 2>/dev/null
        before=$(awk '{ print $3 }' /sys/block/nvme0n1/stat)
        dd if=/mnt/nvme/probe of=/dev/null bs=1M iflag=direct 2>/dev/null
        echo $(($(awk '{ print $3 }' /sys/block/nvme0n1/stat) - before))
        rm /mnt/nvme/probe
    """
    assert int(output(board, script, root=True)) * 512 >= 8 * 2**20


def test_no_compiler_is_on_the_board(board: Board) -> None:
    assert output(board, "command -v gcc cc make || echo none") == "none\n"


def test_memory_is_short_and_mostly_free(board: Board) -> None:
    memory = dict(line.split(":") for line in output(board, "cat /proc/meminfo").splitlines())
    total, available = (int(memory[key].split()[0]) / 1024 for key in ("MemTotal", "MemAvailable"))
    assert 650 < total < 768
    assert available > 450


def test_a_power_cycle_keeps_what_was_written_and_the_power_mode(board: Board) -> None:
    settings = board.settings()
    assert settings is not None
    output(board, "nvpmodel -m MAXN_SUPER; echo kept >/mnt/nvme/note; echo kept >/root/note; sync", root=True)
    identity = output(board, "cat /etc/machine-id")
    assert board.down() is True
    assert board.pid() is None
    assert board.up(Settings(port=settings.port, nvme_gib=1)) is True
    assert output(board, "cat /mnt/nvme/note /root/note", root=True) == "kept\nkept\n"
    assert output(board, "cat /etc/machine-id") == identity
    assert numbers(output(board, f"cat {GPU}/max_freq; nvpmodel -q | tail -n 1")) == [HIGHEST, 2]
