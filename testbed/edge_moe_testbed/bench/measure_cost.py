# SPDX-License-Identifier: GPL-3.0-or-later
"""What being measured costs a server: decode speed under ``edge.moe.measure`` against that of bare requests.

One server with the model in its page cache decodes with as many threads as there are cores, so that whatever the
measurement does takes time from it. Pairs of one prompt run in turn, bare and measured, who goes first alternating;
both speeds are the server's own. Measured means all that a board has: streamed, every source sampled, the result
written. The sources are files of a pretended board in memory, so what a board's drivers take for a reading is not in
it. The value is 1 less the median of the pairs' ratios; the texts of every pair must be equal.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _measure
from ansible_collections.edge.moe.plugins.module_utils._host import CommandResult, Host

from edge_moe_testbed import models
from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import BenchError, Figure, bench_dir, machine
from edge_moe_testbed.common import PROJECT
from edge_moe_testbed.prompts import prompts

PAIRS = 20
N_PREDICT = 64
PROMPT_IDS = ("en-1", "ko-1")
GOAL = 0.01
UNIT = "edge-moe-server.service"
MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of a name of its own is made in it
TREE = PROJECT / "collections/ansible_collections/edge/moe/tests/unit/fixtures/sysfs/orin-nano-super"
SOURCES = ("gpu", "cpu", "power", "heat")


class Board(Host):
    """A pretended board below ``root`` whose server's unit has the main process ``pid``."""

    def __init__(self, root: Path, pid: int) -> None:
        super().__init__(str(root))
        self.pid = pid
        shutil.copytree(TREE, root, symlinks=True, dirs_exist_ok=True)
        group = f"sys/fs/cgroup/{UNIT}"
        files = {
            "sys/class/block/nvme0n1/stat": "1 0 2000 0 0 0 0 0 0 0 0",
            "sys/class/hwmon/hwmon1/in1_label": "VDD_IN",
            "sys/class/hwmon/hwmon1/in1_input": "5000",
            "sys/class/hwmon/hwmon1/curr1_input": "2400",
            f"{group}/memory.swap.current": "0",
            f"{group}/memory.swap.max": "0",
            f"{group}/memory.events": "oom_kill 0",
            **{f"sys/class/thermal/thermal_zone{zone}/type": f"zone{zone}-thermal" for zone in range(9)},
            **{f"sys/class/thermal/thermal_zone{zone}/temp": "52000" for zone in range(9)},
            **{f"sys/class/thermal/cooling_device{device}/type": f"cpufreq-cpu{device}" for device in range(4)},
            **{f"sys/class/thermal/cooling_device{device}/cur_state": "0" for device in range(4)},
        }
        for policy in (0, 4):
            for name in ("scaling_cur_freq", "scaling_max_freq", "cpuinfo_max_freq"):
                files[f"sys/devices/system/cpu/cpufreq/policy{policy}/{name}"] = "1728000"
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        (root / "proc").mkdir()
        (root / "proc" / str(pid)).symlink_to(f"/proc/{pid}")

    def command(self, argv: list[str], timeout_s: float = 5.0) -> CommandResult:
        if argv[0] == "systemctl":
            return CommandResult(0, f"MainPID={self.pid}\nControlGroup=/{UNIT}\n", "", None)
        return CommandResult(None, "", "", "not found")


def cost(pairs: list[dict[str, float]]) -> float:
    """Part of the bare speed that is lost; what noise makes of less than nothing is nothing."""
    return max(0.0, 1 - statistics.median(pair["measured"] / pair["bare"] for pair in pairs))


def bare(server: harness.Server, text: str) -> dict[str, Any]:
    answer = server.complete(text, N_PREDICT, ignore_eos=True)
    speed = answer["timings"]["predicted_per_second"]
    return {"speed": speed, "text": answer["content"], "tokens": answer["tokens"]}


def measured(board: Board, server: harness.Server, text: str) -> dict[str, Any]:
    client = _measure.Client(f"http://127.0.0.1:{server.port}", 600)
    dest = board.path("result.json")
    session = _measure.Session(board, client, UNIT, "nvme0n1", 0.0, lambda result: _measure.write_result(dest, result))
    result = session.run([{"id": "x", "text": text}], N_PREDICT, 1, 60)
    missing = [name for name in SOURCES if result[name] is None]
    if missing or result["warnings"]:
        raise BenchError(f"not all was sampled: {', '.join(missing)} missing, warnings {result['warnings']}")
    request = result["requests"][0]
    return {"speed": request["decode_tokens_per_s"], "text": request["text"], "tokens": request["tokens"]}


def measure() -> Figure:
    texts = [prompts()[name] for name in PROMPT_IDS]
    model = models.ensure_moe("bench-moe", models.BENCH)
    log = bench_dir() / "log" / "measure_cost.log"
    pairs: list[dict[str, float]] = []
    with (
        harness.server(
            harness.unpacked_artifact(),
            model,
            log,
            threads=os.cpu_count() or 2,
            environment={"EDGE_MOE_CACHE_MIB": "0"},
        ) as server,
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
    ):
        board = Board(Path(folder), server.process.pid)
        for text in texts:  # the first run of each reads the model
            bare(server, text)
        for number in range(PAIRS):
            text = texts[number % len(texts)]
            answers: dict[str, dict[str, Any]] = {}
            # By twos, so that each prompt is begun by either side.
            for side in ("bare", "measured")[:: 1 if number // len(texts) % 2 == 0 else -1]:
                answers[side] = bare(server, text) if side == "bare" else measured(board, server, text)
            if any(answers["bare"][key] != answers["measured"][key] for key in ("text", "tokens")):
                raise BenchError(f"texts differ in pair {number + 1}: what is measured is not what is served ({log})")
            pairs.append({side: answer["speed"] for side, answer in answers.items()})
            print(
                f"  pair {number + 1}/{PAIRS}: bare {pairs[-1]['bare']:.2f}, measured {pairs[-1]['measured']:.2f}",
                flush=True,
            )
    return Figure(
        name="measure_cost",
        value=cost(pairs),
        unit="share",
        goal=GOAL,
        better="lower",
        detail={
            "machine": machine(),
            "model": asdict(models.BENCH),
            "prompts": PROMPT_IDS,
            "n_predict": N_PREDICT,
            "pairs": pairs,
            "text_equal": True,
        },
    )
