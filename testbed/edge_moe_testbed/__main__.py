# SPDX-License-Identifier: GPL-3.0-or-later
"""Command line of the test bed: ``python -m edge_moe_testbed COMMAND``."""

from __future__ import annotations

import argparse
import importlib
import sys

# Loaded only when named: boards and containers need nothing but the standard library, models need numpy and gguf.
COMMANDS = {
    "board": "edge_moe_testbed.board",
    "container": "edge_moe_testbed.container",
    "serve": "edge_moe_testbed.fileserver",
    "model": "edge_moe_testbed.models",
    "source": "edge_moe_testbed.source",
    "bench": "edge_moe_testbed.bench",
    "docs": "edge_moe_testbed.docs",
    "record": "edge_moe_testbed.record",
    "faults": "edge_moe_testbed.faults",
    "mutate": "edge_moe_testbed.mutate",
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="edge-moe-testbed", description="A Jetson without a Jetson, and what tests need."
    )
    if not argv or argv[0] not in COMMANDS:
        parser.add_argument("command", choices=sorted(COMMANDS))
        parser.parse_args(argv)
        return 2
    module = importlib.import_module(COMMANDS[argv[0]])
    module.add_arguments(parser.add_subparsers(dest="command", required=True))
    return int(module.run(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
