# SPDX-License-Identifier: GPL-3.0-or-later
"""Which command lines and environments place experts on the CPU, and which processes therefore count."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from edge_moe_clock_floor.cmdline import argv_places_experts, environment_places_experts, overrides_place_experts
from edge_moe_clock_floor.config import Config
from edge_moe_clock_floor.processes import Processes

PLAIN = Config()
ZERO = Config(count_zero_n_cpu_moe=True)
EXTRA = Config(moe_flags=("--my-moe", "-ot"))


@pytest.mark.parametrize(
    ("line", "config", "expected"),
    [
        ("llama-server -m x --cpu-moe", PLAIN, True),
        ("llama-server -cmoe", PLAIN, True),
        ("llama-server --cpu_moe", PLAIN, True),
        ("llama-server --n-cpu-moe 20", PLAIN, True),
        ("llama-server --n_cpu_moe 20", PLAIN, True),
        ("llama-server --n-cpu-moe=20", PLAIN, True),
        ("llama-server -ncmoe 1", PLAIN, True),
        ("llama-server -ncmoe=1", PLAIN, True),
        ("llama-server -ncmoe 0", PLAIN, False),
        ("llama-server --n-cpu-moe=0", PLAIN, False),
        ("llama-server -ncmoe 0", ZERO, True),
        ("llama-server -ncmoe 0 --cpu-moe", PLAIN, True),
        ("llama-server -ncmoe", PLAIN, False),
        ("llama-server -ncmoe many", ZERO, False),
        ("llama-server -ncmoe -3", PLAIN, False),
        ("llama-server -m cpu-moe.gguf -ngl 99", PLAIN, False),
        ("llama-server --cpu-moe-draft", PLAIN, False),
        ("llama-server -ncffn 4", PLAIN, False),
        ("--cpu-moe", PLAIN, False),
        ("llama-server --my-moe", EXTRA, True),
        ("llama-server --my-moe=3", EXTRA, True),
        ("llama-server --cpu-moe", EXTRA, False),
        ("llama-server -ot attn=CPU", EXTRA, True),
        ("llama-server -ot attn=CPU", PLAIN, False),
        ("llama-server -ot exps=CPU", PLAIN, True),
        ("llama-server --override-tensor=exps=CPU", PLAIN, True),
        (r"llama-server --override-tensor blk\.([0-9]|1[0-9])\.ffn_.*_exps\.=CPU", PLAIN, True),
        ("llama-server -ot", PLAIN, False),
        ("", PLAIN, False),
    ],
)
def test_argv(line: str, config: Config, expected: bool) -> None:
    assert argv_places_experts(line.split(" "), config) is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([".*=CPU"], True),
        ([r"\.ffn_(up|down)_exps\.weight=CUDA0"], False),
        (["exps=CUDA0,.*=CPU"], False),
        (["attn=CPU,exps=CUDA0"], False),
        ([r"blk\.3\.=CUDA0", "exps=CPU"], True),
        ([r"blk\.39\.ffn_gate_exps=CPU"], True),
        (["ffn_gate_up_exps=CPU"], True),
        (["exps"], False),
        (["(exps=CPU"], True),  # no pattern, but meant
        (["(attn=CPU"], False),
        ([], False),
    ],
)
def test_override_patterns(values: list[str], expected: bool) -> None:
    assert overrides_place_experts(values) is expected


@pytest.mark.parametrize(
    ("pattern", "expected"), [("(([a-z0-9._]+)*)+!exps=CPU", True), ("(([a-z0-9._]+)*)+!=CPU", False)]
)
def test_a_pattern_that_explodes_is_cut_off(pattern: str, expected: bool) -> None:
    before = signal.getsignal(signal.SIGALRM)
    start = time.monotonic()
    assert overrides_place_experts([pattern]) is expected
    assert time.monotonic() - start < 2
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LLAMA_ARG_CPU_MOE": "1"}, True),
        ({"LLAMA_ARG_CPU_MOE": "on"}, True),
        ({"LLAMA_ARG_CPU_MOE": "0"}, False),
        ({"LLAMA_ARG_CPU_MOE": ""}, False),
        ({"LLAMA_ARG_N_CPU_MOE": "12"}, True),
        ({"LLAMA_ARG_N_CPU_MOE": "0"}, False),
        ({"LLAMA_ARG_OVERRIDE_TENSOR": "exps=CPU"}, True),
        ({"LLAMA_ARG_N_CPU_FFN": "3"}, False),
        ({}, False),
    ],
)
def test_environment(environment: dict[str, str], expected: bool) -> None:
    assert environment_places_experts(environment, PLAIN) is expected


def sleeper(*words: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words], env=environment)


def test_living_processes_are_judged_by_argv_or_environment_and_remembered() -> None:
    processes = Processes(PLAIN)
    started = [sleeper("--cpu-moe"), sleeper("-m", "dense"), sleeper(LLAMA_ARG_N_CPU_MOE="3")]
    try:
        time.sleep(0.3)
        assert [processes.counts(child.pid, 1.0) for child in started] == [True, False, True]
        assert [processes.known_to_count(child.pid) for child in started] == [True, False, True]
        assert sorted(processes.pidfds.values()) == sorted(child.pid for child in started)
        started[0].kill()
        started[0].wait()
        assert processes.reap() == [started[0].pid]
        assert not processes.counts(started[0].pid, 2.0)
    finally:
        for child in started:
            child.kill()
            child.wait()
        processes.close()


def fake_proc(root: Path, pid: int, start: str, argv: list[str], state: str = "S") -> None:
    (root / str(pid)).mkdir(exist_ok=True)
    (root / str(pid) / "stat").write_text(f"{pid} (a) b (c) {state} " + "0 " * 18 + f"{start} 0 0\n")
    (root / str(pid) / "cmdline").write_bytes(b"\0".join(word.encode() for word in argv) + b"\0")


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    processes = Processes(PLAIN, str(tmp_path))
    fake_proc(tmp_path, 999999, "100", ["a", "--cpu-moe"])
    assert processes.counts(999999, 0.0)
    fake_proc(tmp_path, 999999, "200", ["a"])
    assert processes.reap() == [999999]
    assert not processes.counts(999999, 0.1)


def test_a_no_is_asked_again_later_as_exec_keeps_pid_and_start_time(tmp_path: Path) -> None:
    processes = Processes(PLAIN, str(tmp_path))
    fake_proc(tmp_path, 999999, "100", ["sh"])
    assert not processes.counts(999999, 0.0)
    fake_proc(tmp_path, 999999, "100", ["llama-server", "--cpu-moe"])
    assert not processes.counts(999999, PLAIN.rescan_s - 0.1)
    assert processes.counts(999999, PLAIN.rescan_s + 0.1)


def test_a_zombie_counts_no_more(tmp_path: Path) -> None:
    processes = Processes(PLAIN, str(tmp_path))
    fake_proc(tmp_path, 999999, "100", ["a", "--cpu-moe"], "Z")
    assert not processes.counts(999999, 0.0)
