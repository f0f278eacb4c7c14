# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _server_unit
from ansible_collections.edge.moe.plugins.module_utils._host import CommandResult, Host
from ansible_collections.edge.moe.plugins.module_utils._server_unit import Unit
from hypothesis import given
from hypothesis import strategies as st

UNIT = "edge-moe-server.service"
GROUP = f"/edge.slice/edge-moe.slice/{UNIT}"
LOG = """\
ggml_cuda_init: found 1 CUDA devices:
load_tensors: offloaded 24/25 layers to GPU
NvMapMemAllocInternalTagged: 1075072515 error 12
NvMapMemHandleAlloc: error 0
CUDA error: out of memory
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 100.00 MiB on device 0: cudaMalloc failed: out of memory
main: server is listening on http://127.0.0.1:8080
"""


def test_major_faults_behind_any_name() -> None:
    rest = "S 1 70 70 0 -1 4194304 25500 0 4321 0 100 50 0 0 20 0 9 0 1234 1 2"
    for name in ("llama-server", "a) b (c", "x y", "((", ""):
        assert _server_unit.parse_major_faults(f"70 ({name}) {rest}") == 4321
    assert _server_unit.parse_major_faults("") is None
    assert _server_unit.parse_major_faults("70 (a) S 1") is None


def test_unified_mount() -> None:
    assert _server_unit.parse_unified_mount("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0") == "/sys/fs/cgroup"
    hybrid = "tmpfs /sys/fs/cgroup tmpfs ro 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    assert _server_unit.parse_unified_mount(hybrid) == "/sys/fs/cgroup/unified"
    assert _server_unit.parse_unified_mount("") is None


def test_oom_kills_are_not_those_of_the_group() -> None:
    events = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 5\n"
    assert _server_unit.parse_oom_kills(events) == 1
    assert _server_unit.parse_oom_kills("oom_group_kill 5\n") is None
    assert _server_unit.parse_oom_kills("") is None


def test_a_log() -> None:
    assert _server_unit.parse_log(LOG) == {
        "lines": 7,
        "nvmap_errors": 2,
        "cuda_errors": 2,
        "gpu_layers": [24, 25],
        "no_gpu": False,
        "first": {
            "nvmap_errors": "NvMapMemAllocInternalTagged: 1075072515 error 12",
            "cuda_errors": "CUDA error: out of memory",
        },
    }


@pytest.mark.parametrize(
    "line",
    [
        "warning: no usable GPU found, --gpu-layers option will be ignored",
        "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected",
    ],
)
def test_a_log_without_a_gpu(line: str) -> None:
    log = _server_unit.parse_log(f"start\n{line}{'x' * 400}\n")
    assert log["no_gpu"] is True
    assert log["gpu_layers"] is None
    assert len(log["first"]["no_gpu"]) == 300
    assert line.startswith(log["first"]["no_gpu"][:60])


@given(st.text(max_size=200))
def test_any_text_passes_the_parsers(text: str) -> None:
    _server_unit.parse_major_faults(text)
    _server_unit.parse_unified_mount(text)
    _server_unit.describe_end(_server_unit.parse_unit_properties(text))
    _server_unit.parse_oom_kills(text)
    _server_unit.parse_log(text)


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ("Result=oom-kill ExecMainCode=2 ExecMainStatus=9", "the kernel killed it for want of memory (Result=oom-kill"),
        (
            "Result=signal ExecMainCode=2 ExecMainStatus=11",
            "signal SIGSEGV ended it (Result=signal, Exec",
        ),
        ("Result=core-dump ExecMainCode=3 ExecMainStatus=6", "signal SIGABRT ended it"),
        ("Result=signal ExecMainCode=2 ExecMainStatus=999", "signal 999 ended it"),
        ("Result=exit-code ExecMainCode=1 ExecMainStatus=1", "it exited with status 1 (Result=exit-code"),
        ("Result=success ExecMainCode=0 ExecMainStatus=0 MainPID=99", "systemd has started it anew"),
        ("", "systemd does not tell how it ended (Result=?, ExecMainStatus=?)"),
    ],
)
def test_how_a_unit_ended(properties: str, says: str) -> None:
    assert _server_unit.describe_end(dict(part.split("=") for part in properties.split())).startswith(says)


@pytest.fixture
def host(make_host: Callable[..., Host]) -> Any:
    return make_host(
        {
            "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            "/proc/77/stat": "77 (llama-server) S",
            f"/sys/fs/cgroup{GROUP}/memory.swap.max": "0\n",
            f"/sys/fs/cgroup{GROUP}/memory.events": "oom 0\noom_kill 3\n",
            f"/sys/fs/cgroup{GROUP}/memory.peak": "123456\n",
        },
        {"systemctl": f"MainPID=77\nControlGroup={GROUP}\nInvocationID={'a1' * 16}\n"},
    )


def test_its_control_group(host: Any) -> None:
    unit = Unit(host, UNIT)
    assert (unit.pid, unit.swap_max(), unit.memory_peak(), unit.oom_kills_since()) == (77, "0", 123456, 0)
    Path(host.path(f"/sys/fs/cgroup{GROUP}/memory.events")).write_text("oom 1\noom_kill 5\n")
    assert unit.oom_kills_since() == 2


def test_nothing_is_known_without_a_unit(host: Any) -> None:
    unit = Unit(host, None)
    assert (unit.pid, unit.group_dir, unit.end(), unit.log()) == (None, None, None, None)
    assert (unit.swap_max(), unit.memory_peak(), unit.oom_kills_since(), unit.major_faults()) == (None,) * 4


def test_control_groups_cannot_lead_elsewhere(host: Any) -> None:
    host.commands["systemctl"] = CommandResult(0, "MainPID=77\nControlGroup=/../../etc\n", "", None)
    assert Unit(host, UNIT).group_dir is None


def test_a_process_that_runs_has_no_end(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_server_unit, "GONE_S", 0.1)
    assert Unit(host, UNIT).end() is None


def test_the_end_of_a_process_that_has_gone(host: Any) -> None:
    unit = Unit(host, UNIT)
    Path(host.path("/proc/77/stat")).unlink()
    Path(host.path("/proc/77")).rmdir()
    Path(host.path(f"/sys/fs/cgroup{GROUP}/memory.events")).write_text("oom_kill 4\n")
    host.commands["systemctl"] = CommandResult(0, "Result=oom-kill\nExecMainCode=2\nExecMainStatus=9\n", "", None)
    assert unit.end() == (
        f"{UNIT}: the kernel killed it for want of memory (Result=oom-kill, ExecMainStatus=9); "
        "oom_kill of its control group grew by 1"
    )


def test_the_journal_of_this_invocation(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def command(argv: list[str], timeout_s: float = 5.0) -> CommandResult:
        asked.append(argv)
        return CommandResult(0, LOG, "", None)

    unit = Unit(host, UNIT)
    monkeypatch.setattr(host, "command", command)
    log = unit.log()
    assert log is not None
    assert log["gpu_layers"] == [24, 25]
    assert asked[0][0] == "journalctl"
    assert asked[0][-3:] == ["-u", UNIT, f"_SYSTEMD_INVOCATION_ID={'a1' * 16}"]
    assert len(asked) == 1


def test_a_long_journal_is_read_at_both_ends(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(argv: list[str], timeout_s: float = 5.0) -> CommandResult:
        if any(word.startswith("--lines=") for word in argv):
            return CommandResult(0, "late\nCUDA error: late\n", "", None)
        return CommandResult(None, "load_tensors: offloaded 1/2 layers to GPU\ncut li", "", "printed more than 1 KiB")

    unit = Unit(host, UNIT)
    monkeypatch.setattr(host, "command", command)
    log = unit.log()
    assert log is not None
    assert (log["gpu_layers"], log["cuda_errors"], log["lines"]) == ([1, 2], 1, 4)


@pytest.mark.parametrize("invocation", ["", "x", "a1" * 16 + " --root=/"])
def test_no_journal_is_null(host: Any, invocation: str) -> None:
    assert Unit(host, UNIT).log() is None  # there is no journalctl
    host.commands["journalctl"] = CommandResult(0, LOG, "", None)
    host.commands["systemctl"] = CommandResult(0, f"MainPID=77\nInvocationID={invocation}\n", "", None)
    assert Unit(host, UNIT).log() is None
