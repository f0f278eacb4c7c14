# SPDX-License-Identifier: GPL-3.0-or-later
"""How much of the way from LRU to the optimum the default eviction policy goes, at two token cycles, in decode.

The value is the mean over recordings of trained models: every trace in ``../shared/traces`` and in the folder that
``EDGE_MOE_TRACES`` names. LRU and the optimum have one pool of as many slots as the policy has over all layers.

Beside it, and not in it, stand traces made here: one that a server with the random-weight demo model records, and
synthetic ones of known structure. They tell where the policy gains and where it cannot; no trained model routes so.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edge_moe_testbed import models
from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import BenchError, Figure, bench_dir, machine
from edge_moe_testbed.prompts import prompts

CYCLES = 2.0
ALL_CYCLES = (1.0, 1.5, 2.0, 3.0, 4.0)
PROJECT = Path(__file__).resolve().parents[3]
GIVEN_TRACES = PROJECT.parent / "shared" / "traces"

RECORD_PROMPTS = 4
RECORD_TOKENS = 128


def build_simulator() -> Path:
    folder = bench_dir().parent / "native-bench"
    for command in (
        ["cmake", "-S", str(PROJECT / "native"), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", str(folder), "--target", "edge-moe-sim"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"'{' '.join(command)}' failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return folder / "edge-moe-sim"


def recorded_traces() -> list[Path]:
    """Recordings of trained models on this machine."""
    named = os.environ.get("EDGE_MOE_TRACES")
    if named and not Path(named).is_dir():
        raise BenchError(f"EDGE_MOE_TRACES is {named!r}: not a folder")
    folders = [GIVEN_TRACES, *([Path(named)] if named else [])]
    found = {
        path.resolve(): path
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if path.suffix in (".csv", ".jsonl", ".trace")
    }
    if not found:
        raise BenchError(
            f"no traces (*.csv, *.jsonl, *.trace) in {GIVEN_TRACES}; name a folder that has some in EDGE_MOE_TRACES"
        )
    return list(found.values())


def record_demo(folder: Path) -> Path:
    """Let a patched llama-server with the demo model record what it routes."""
    root = harness.unpacked_artifact()
    model = models.ensure_moe("demo-moe", models.DEMO)
    trace = folder / "demo-moe.trace"
    environment = {"EDGE_MOE_CACHE_MIB": "64", "EDGE_MOE_TRACE": str(trace.resolve())}
    log = bench_dir() / "log" / "policy_gap-record.log"
    threads = os.cpu_count() or 2
    with harness.server(root, model, log, threads=threads, environment=environment) as server:
        for prompt in list(prompts().values())[:RECORD_PROMPTS]:
            server.complete(prompt, RECORD_TOKENS)
    return trace


Tokens = Iterator[list[np.ndarray]]


def _topics(rng: np.random.Generator, layers: int, experts: int, used: int, tokens: int) -> Tokens:
    """Each of 12 topics has its own favourite experts and lasts 40 tokens on average; within it order means nothing."""
    favour = rng.permuted(np.tile(1.0 / np.arange(1, experts + 1), (12, layers, 1)), axis=2)
    topic = 0
    for _ in range(tokens):
        if rng.random() < 1 / 40:
            topic = int(rng.integers(12))
        yield [rng.choice(experts, used, replace=False, p=row / row.sum()) for row in favour[topic]]


def _phrases(rng: np.random.Generator, layers: int, experts: int, used: int, tokens: int) -> Tokens:
    """A vocabulary of 60 words, each with two likely successors and its own experts, a quarter of them by chance."""
    own = np.stack([[rng.permutation(experts)[:used] for _ in range(layers)] for _ in range(60)])
    successors = rng.integers(60, size=(60, 2))
    word = 0
    for _ in range(tokens):
        word = int(rng.integers(60) if rng.random() < 0.15 else successors[word][int(rng.random() < 0.3)])
        chosen = []
        for row in own[word]:
            kept = row[rng.random(used) >= 0.25]
            others = np.setdiff1d(np.arange(experts), kept)
            chosen.append(np.concatenate([kept, rng.permutation(others)[: used - len(kept)]]))
        yield chosen


def _chance(rng: np.random.Generator, layers: int, experts: int, used: int, tokens: int) -> Tokens:
    """Every choice is as likely as any other: there is nothing to learn."""
    for _ in range(tokens):
        yield [rng.permutation(experts)[:used] for _ in range(layers)]


SYNTHETIC: dict[str, Callable[[np.random.Generator, int, int, int, int], Tokens]] = {
    "topics": _topics,
    "phrases": _phrases,
    "chance": _chance,
}


def write_synthetic(
    name: str, folder: Path, layers: int = 8, experts: int = 64, used: int = 4, tokens: int = 800
) -> Path:
    """The same file on every machine."""
    path = folder / f"synthetic-{name}.jsonl"
    choices = SYNTHETIC[name](np.random.default_rng(1), layers, experts, used, tokens)
    with path.open("w") as file:
        for number, token in enumerate(choices):
            json.dump({"tok": number, "layers": [sorted(int(expert) for expert in layer) for layer in token]}, file)
            file.write("\n")
    return path


def replay(simulator: Path, trace: Path) -> dict[str, Any]:
    command = [str(simulator), str(trace), "--cycles", ",".join(map(str, ALL_CYCLES)), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(done.stderr.strip() or f"{simulator} ended with {done.returncode} on {trace}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def gap(result: dict[str, Any], cycles: float = CYCLES) -> float:
    """Of the policy that serves by default; not a number if the trace's layers cannot hold so much."""
    for row in result["capacities"]:
        if abs(row["cycles"] - cycles) < 1e-3:
            return float(row["policies"][result["default_policy"]]["gap"])
    return math.nan


def mean_gaps(results: Iterable[dict[str, Any]]) -> dict[float, float]:
    """By capacity in cycles, over the traces whose layers can hold it."""
    means = {}
    for cycles in ALL_CYCLES:
        gaps = [share for result in results if not math.isnan(share := gap(result, cycles))]
        if gaps:
            means[cycles] = statistics.mean(gaps)
    return means


def measure() -> Figure:
    simulator = build_simulator()
    folder = bench_dir().parent / "traces"
    folder.mkdir(parents=True, exist_ok=True)
    trained = {path.name: replay(simulator, path) for path in recorded_traces()}
    made_here = {name: replay(simulator, write_synthetic(name, folder)) for name in SYNTHETIC}
    try:
        made_here["demo-moe, random weights"] = replay(simulator, record_demo(folder))
        not_recorded = ""
    except BenchError as error:
        not_recorded = str(error)
    for name, result in {**trained, **made_here}.items():
        print(f"  {name}: {gap(result):.3f}", flush=True)
    means = mean_gaps(trained.values())
    if CYCLES not in means:
        raise BenchError(f"no trace has layers that hold {CYCLES:g} token cycles: {', '.join(trained)}")
    return Figure(
        name="policy_gap",
        value=means[CYCLES],
        unit="share",
        goal=0.40,
        better="higher",
        detail={
            "machine": machine(),
            "cycles": CYCLES,
            "value_is": "mean over the traces of trained models",
            "trained": trained,
            "made_here": made_here,
            "demo_not_recorded": not_recorded,
            "mean_by_cycles": means,
        },
    )
