# SPDX-License-Identifier: MIT
"""Put the expert cache into a llama.cpp source tree: check the commit, apply the patch, copy our sources.

A patch belongs to one commit and is applied without any fuzz: each hunk must match at its own line. All of it
is worked out in memory before the first file is written, so a refusal leaves the tree as it was, and a run that
was interrupted can be repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
COPIED = ("src", "glue")
INTO = Path("ggml/src/edge-moe")
PINS = "llama.cpp*.json"
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class Refused(Exception):
    """One line: what was seen, what is needed, what to do."""


def read_pins() -> dict[str, dict]:
    """commit -> pin"""
    pins = [json.loads(path.read_text()) for path in sorted(NATIVE.glob(PINS))]
    return {pin["commit"]: pin for pin in pins}


def read_patch(pin: dict) -> str:
    patch = NATIVE / pin["patch"]
    found = hashlib.sha256(patch.read_bytes()).hexdigest()
    if found != pin["patch_sha256"]:
        raise Refused(
            f"{patch} has sha256 {found}, the pin of {pin['commit']} says {pin['patch_sha256']}: restore the file, "
            f"or after a change on purpose run {Path(__file__).name} --update-pin"
        )
    text = patch.read_text()
    named = re.match(r"edge-moe expert cache for llama\.cpp commit ([0-9a-f]{40})\n", text)
    if not named or named.group(1) != pin["commit"]:
        raise Refused(
            f"{patch} is for commit {named.group(1) if named else 'none that it names'}, its pin says "
            f"{pin['commit']}: use the patch that belongs to the pinned commit"
        )
    return text


def update_pins() -> None:
    for path in NATIVE.glob(PINS):
        pin = json.loads(path.read_text())
        pin["patch_sha256"] = hashlib.sha256((NATIVE / pin["patch"]).read_bytes()).hexdigest()
        path.write_text(json.dumps(pin, indent=2) + "\n")


def commit_of(source: Path) -> str | None:
    """The commit of a checkout, a worktree or a submodule, from the files that git keeps; None if there is no .git."""
    git = source / ".git"
    if git.is_file():
        pointer = git.read_text().strip()
        if not pointer.startswith("gitdir: "):
            return None
        git = source / pointer[len("gitdir: ") :]
    head_file = git / "HEAD"
    if not head_file.is_file():
        return None
    head = head_file.read_text().strip()
    if not head.startswith("ref: "):
        return head
    ref = head[len("ref: ") :]
    common = git / "commondir"
    for folder in (git, git / common.read_text().strip() if common.is_file() else git):
        if (folder / ref).is_file():
            return (folder / ref).read_text().strip()
        packed = folder / "packed-refs"
        for line in packed.read_text().splitlines() if packed.is_file() else ():
            if line.endswith(" " + ref):
                return line.split()[0]
    return None


def parse_patch(text: str) -> dict[str, list[tuple[int, list[str]]]]:
    """file -> hunks of (first line in the old file, lines with their ' ', '-' or '+')"""
    files: dict[str, list[tuple[int, list[str]]]] = {}
    hunks: list[tuple[int, list[str]]] = []
    old_left = new_left = 0
    for line in text.splitlines(keepends=True):
        if old_left or new_left:
            hunks[-1][1].append(line)
            old_left -= line[0] in " -"
            new_left -= line[0] in " +"
        elif line.startswith("+++ b/"):
            hunks = files.setdefault(line[len("+++ b/") :].rstrip("\n"), [])
        elif match := HUNK.match(line):
            old_left, new_left = int(match[2] or 1), int(match[4] or 1)
            hunks.append((int(match[1]), []))
    return files


def rewrite(lines: list[str], hunks: list[tuple[int, list[str]]], reverse: bool) -> list[str] | None:
    """The file with the hunks applied (or taken out), or None if one of them does not match where it should."""
    gone, come = ("+", "-") if reverse else ("-", "+")
    out: list[str] = []
    done = 0
    shift = 0
    for start, hunk in hunks:
        if reverse:
            begin = start - 1 + shift
            shift += sum((line[0] == "+") - (line[0] == "-") for line in hunk)
        else:
            begin = start - 1
        out += lines[done:begin]
        old = [line[1:] for line in hunk if line[0] != come]
        if lines[begin : begin + len(old)] != old:
            return None
        out += [line[1:] for line in hunk if line[0] != gone]
        done = begin + len(old)
    return out + lines[done:]


def write(path: Path, data: bytes) -> bool:
    """Replace the file in one step; False if it is so already (its time is left alone, so nothing is rebuilt)."""
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".edge-moe-new")
    temporary.write_bytes(data)
    if path.exists():
        os.chmod(temporary, path.stat().st_mode & 0o777)
    os.replace(temporary, path)
    return True


def apply(source: Path, commit: str | None) -> str:
    pins = read_pins()
    known = " or ".join(pins)
    if not (source / "ggml/src/ggml-cpu/ggml-cpu.c").is_file():
        raise Refused(
            f"{source} is not a llama.cpp source tree (it has no ggml/src/ggml-cpu/ggml-cpu.c): "
            "give the folder that has llama.cpp's top CMakeLists.txt"
        )
    seen = commit or commit_of(source)
    if seen is None:
        raise Refused(f"{source} does not say which commit it is: name it with --commit (there is a patch for {known})")
    if seen not in pins:
        raise Refused(f"{source} is llama.cpp commit {seen}, there is a patch for {known}: check that one out")
    patch = parse_patch(read_patch(pins[seen]))

    results: dict[Path, bytes] = {}
    patched = 0
    for name, hunks in patch.items():
        path = source / name
        if not path.is_file():
            raise Refused(f"{path} is missing, though commit {seen} has it: unpack the sources again")
        lines = path.read_text().splitlines(keepends=True)
        if rewrite(lines, hunks, reverse=True) is not None:
            continue
        result = rewrite(lines, hunks, reverse=False)
        if result is None:
            raise Refused(
                f"{path} is neither as in commit {seen} nor patched by this version: unpack the sources again"
            )
        results[path] = "".join(result).encode()
        patched += 1

    target = source / INTO
    ours: dict[Path, bytes] = {}
    for folder in COPIED:
        for path in sorted((NATIVE / folder).rglob("*")):
            if path.is_file():
                ours[target / path.relative_to(NATIVE)] = path.read_bytes()
    copied = sum([write(path, data) for path, data in ours.items()])
    stale = [path for path in target.rglob("*") if path.is_file() and path not in ours]
    for path in stale:
        path.unlink()
    for path, data in results.items():
        write(path, data)

    if patched or copied or stale:
        return f"edge-moe: {source}: {patched} files patched, {copied} copied, {len(stale)} removed"
    return f"edge-moe: {source}: already applied, nothing to do"


def main() -> int:
    parser = argparse.ArgumentParser(description="put the expert cache into a llama.cpp source tree")
    parser.add_argument("source", type=Path, nargs="?", help="folder with llama.cpp's sources")
    parser.add_argument("--commit", help="the commit of the sources, where no .git tells it")
    parser.add_argument("--update-pin", action="store_true", help="write the patch's sha256 into its pin and stop")
    args = parser.parse_args()
    try:
        if args.update_pin:
            update_pins()
        elif args.source is None:
            parser.error("SOURCE is missing")
        else:
            print(apply(args.source, args.commit))
    except Refused as refusal:
        print(f"edge-moe: {refusal}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"edge-moe: {error.filename}: {error.strerror}: give a folder that can be written to", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
