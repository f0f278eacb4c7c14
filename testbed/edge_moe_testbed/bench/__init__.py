# SPDX-License-Identifier: GPL-3.0-or-later
"""Benchmarks. Each writes ``build/bench/NAME.json``; ``run`` prints them as one table."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

from edge_moe_testbed.bench.figure import BenchError, Figure, bench_dir, load_figures

# Each is a module of this package.
BENCHES = (
    "decode_ratio",
    "decode_bound",
    "prefill_ratio",
    "lookahead_gain",
    "never_slower",
    "several_at_once",
    "health_cost",
    "policy_gap",
    "read_efficiency",
    "read_cpu",
    "floor_reaction_ms",
    "floor_memory_mib",
    "floor_idle_cpu",
    "floor_call_us",
    "health_fleet",
    "plan_error",
    "measure_cost",
    "tune_regret",
    "converge",
)


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser("bench", help="run benchmarks and print one table")
    bench.add_argument("names", nargs="*", metavar="NAME", help=f"which (default: all): {', '.join(BENCHES)}")


def load(name: str) -> ModuleType:
    """The benchmark's module. The collection's own code is imported there as Ansible imports it."""
    collections = str(Path(__file__).resolve().parents[3] / "collections")
    if collections not in sys.path:
        sys.path.append(collections)
    return importlib.import_module(f"{__name__}.{name}")


def run(args: argparse.Namespace) -> int:
    unknown = [name for name in args.names if name not in BENCHES]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    failed = False
    for name in args.names or BENCHES:
        print(f"== {name}", flush=True)
        try:
            figure: Figure = load(name).measure()
        except BenchError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
            continue
        figure.write(bench_dir())
    print_table(load_figures(bench_dir()))
    return 1 if failed else 0


def print_table(figures: list[Figure]) -> None:
    """Figure, value, goal and whether it is met, a line each."""
    print(f"{'figure':<20} {'value':>10} {'unit':<8} {'goal':>10}  met")
    for figure in figures:
        sign = ">=" if figure.better == "higher" else "<="
        met = "yes" if figure.met() else "no"
        print(
            f"{figure.name:<20} {figure.value:>10.3f} {figure.unit:<8} {sign + format(figure.goal, '.3g'):>10}  {met}"
        )
