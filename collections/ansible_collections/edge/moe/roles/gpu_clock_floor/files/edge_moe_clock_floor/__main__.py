# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds the GPU's minimum clock up while a MoE model with experts on the CPU computes.

Commands:

    run          the service (needs root)
    restore      give the clock back after a service that died; does nothing if nothing is owed
    check        print the devfreq node, the libraries and the functions found; no root needed
    status       print what the running service last said about itself; no root needed
    once FREQ    raise the floor by hand for some seconds and restore it
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from . import baseline, libraries, metrics
from ._devfreq import Sysfs, choose_floor
from .config import PATH, Config, ConfigError, load
from .controller import Controller, mhz
from .elf import ElfError
from .loop import Loop
from .notify import Notifier
from .restore import EXIT_BUSY, only_one, restore
from .uprobe import PMU, Probes, pmu_type

EXIT_DEGRADED, EXIT_USAGE = 1, 2


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def journal(arguments: argparse.Namespace) -> baseline.Journal:
    return baseline.Journal(arguments.run_dir, Sysfs("/").boot_id())


def run(arguments: argparse.Namespace, config: Config) -> int:
    if only_one(arguments.run_dir) is None:
        log(f"another clock-floor service holds {arguments.run_dir}/lock")
        return EXIT_BUSY
    controller = Controller(Sysfs(arguments.root), journal(arguments), config.floor_hz, log)
    Loop(config, controller, lambda: Probes(Sysfs("/")), Notifier(), arguments.metrics, log).run()
    return 0


def check(arguments: argparse.Namespace, config: Config) -> int:
    """Everything the service needs, one line each; the exit code says whether all of it is there."""
    good = True
    sysfs = Sysfs(arguments.root)
    nodes = sysfs.gpu_nodes()
    owed = {entry.path for entry in journal(arguments).load()}
    for node in nodes:
        print(f"node: {node.path} ({node.of_node_name or node.name}), governor {node.governor}")
        print(f"  min {mhz(node.min_hz)}, max {mhz(node.max_hz)}, now {mhz(node.cur_hz)}")
        asked = mhz(config.floor_hz) if config.floor_hz else "the highest"
        print(f"  floor asked for {asked}, would be {mhz(choose_floor(node, config.floor_hz))}")
        if node.path in owed:
            print("  the floor is up")
        elif node.pinned:
            good = False
            print("  pinned: min_freq equals max_freq, as after jetson_clocks; the service would stand down")
    if not nodes:
        good = False
        print(f"node: none ({sysfs.seen()})")
    found = libraries.matches(config.libraries)
    watched = False
    for path in found:
        try:
            result = libraries.inspect(path, config.functions)
            watched = watched or bool(result.functions)
            missing = f" (not there: {', '.join(result.missing)})" if result.missing else ""
            print(f"library: {path}: {', '.join(result.functions) or 'no function of ours'}{missing}")
        except (OSError, ElfError) as error:
            print(f"library: {path}: {error}")
    if not found:
        print(f"library: none at {' '.join(config.libraries)}")
    kind = pmu_type(Sysfs("/"))
    print(f"probes: uprobe events of type {kind}" if kind is not None else f"probes: none, /{PMU}/type is missing")
    return 0 if good and watched and kind is not None else EXIT_DEGRADED


def status(arguments: argparse.Namespace) -> int:
    try:
        with open(arguments.metrics, encoding="utf-8") as handle:
            print("".join(line for line in handle if not line.startswith("#")), end="")
    except OSError as error:
        log(f"no status: {error}")
        return EXIT_DEGRADED
    return 0


def once(arguments: argparse.Namespace) -> int:
    lock = only_one(arguments.run_dir)
    if lock is None:
        log("the service is running; stop it first")
        return EXIT_BUSY
    controller = Controller(Sysfs(arguments.root), journal(arguments), arguments.hz, log)
    controller.start()
    controller.call(os.getpid(), time.monotonic())
    try:
        if not controller.raised or controller.applied is None:
            return EXIT_DEGRADED
        print("requested {}, applied {}, effective {}".format(*(mhz(hz) for hz in controller.applied)), flush=True)
        time.sleep(arguments.seconds)
    except KeyboardInterrupt:
        pass
    finally:
        controller.release(time.monotonic())
        os.close(lock)
    return 0


def frequency(text: str) -> int:
    number, unit = text.lower().removesuffix("hz"), 1
    for suffix, factor in (("m", 1_000_000), ("k", 1_000), ("g", 1_000_000_000)):
        if number.endswith(suffix):
            number, unit = number[:-1], factor
            break
    value = int(float(number) * unit)
    if value < 1_000_000:
        raise ValueError(text)
    return value


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="edge_moe_clock_floor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("command", choices=["run", "restore", "check", "status", "once"])
    result.add_argument("hz", nargs="?", type=frequency, help="with once: the floor, such as 918MHz or 918000000")
    result.add_argument("--seconds", type=float, default=5.0, help="with once: how long (default 5)")
    result.add_argument("--config", default=PATH, help="settings file (default %(default)s)")
    result.add_argument("--root", default="/", help="root below which sys/ is looked for (default %(default)s)")
    result.add_argument("--run-dir", default=baseline.DIRECTORY, help="where the journal is kept (default %(default)s)")
    result.add_argument("--metrics", default=metrics.PATH, help="health file (default %(default)s)")
    return result


def main(argv: list[str]) -> int:
    # The published tool had --check; both spellings work.
    words = [word[2:] if word in ("--check", "--status", "--once") else word for word in argv]
    arguments = parser().parse_args(words)
    if arguments.command == "restore":
        return restore(arguments.root, arguments.run_dir)
    if arguments.command == "status":
        return status(arguments)
    if arguments.command == "once":
        if arguments.hz is None:
            log("once needs a frequency, such as 918MHz")
            return EXIT_USAGE
        return once(arguments)
    try:
        config = load(arguments.config)
    except ConfigError as error:
        log(str(error))
        return EXIT_USAGE
    return run(arguments, config) if arguments.command == "run" else check(arguments, config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
