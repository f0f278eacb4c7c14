# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on the board, as root: all that a reset has to leave as it was, as one flat JSON dict.

Taken before the first playbook and after the reset. It looks wider than the collection's own snapshot, and shares no
code with what it judges.

    python3 board_state.py               on the board: what it is like
    python3 board_state.py BEFORE AFTER  anywhere: the names of what differs between two such outputs
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import stat
import subprocess
import sys

TREES = ("/etc", "/mnt", "/opt", "/root", "/srv", "/usr/lib/systemd", "/usr/lib/tmpfiles.d", "/usr/local", "/var/lib")
# Backups that useradd writes beside the files, and what a board that runs writes by itself. Packages are asked of dpkg.
OTHERS = re.compile(
    r"/etc/(passwd|group|shadow|gshadow|subuid|subgid)-$|/etc/(machine-id|resolv\.conf)$|/root/\.(ansible|cache|ssh)|"
    r"/var/lib/(apt|dpkg|systemd|private|logrotate|ucf|dhcp)/|/lost\+found"
)
# Counters, and what the kernel makes anew by itself.
COUNTERS = re.compile(
    r"/(random|pty)/|-(nr|state)$|/(ns_last_pid|nf_conntrack_count|next_id|sched_domain|cap_last_cap|tainted|"
    r"hung_task_detect_count|dentry-state|inode-nr|stat_refresh|drop_caches|compact_memory|flush)|/fs/(quota|mqueue)|"
    r"/net/|/fs/binfmt_misc/"
)
SMALL = 1024**2


def run(*command: str) -> list[str]:
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    return done.stdout.splitlines()


def read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(SMALL).strip()
    except OSError as error:
        return f"error {error.errno}"


def entry(path: str) -> str:
    state = os.lstat(path)
    seen = f"{stat.filemode(state.st_mode)} {state.st_uid}:{state.st_gid}"
    if stat.S_ISLNK(state.st_mode):
        return f"{seen} {os.readlink(path)}"
    if not stat.S_ISREG(state.st_mode):
        return seen
    if state.st_size > SMALL:
        return f"{seen} {state.st_size}"
    with open(path, "rb") as file:
        return f"{seen} {hashlib.sha256(file.read()).hexdigest()}"


def files() -> dict[str, str]:
    found = {}
    for tree in TREES:
        for folder, folders, names in os.walk(tree):
            for name in folders + names:
                path = os.path.join(folder, name)
                if not OTHERS.search(path):
                    found[f"file {path}"] = entry(path)
    return found


def gather() -> dict[str, str]:
    found = files()
    for line in run("dpkg-query", "-W", "-f", "${binary:Package} ${db:Status-Want} ${db:Status-Status} ${Version}\\n"):
        name, _, rest = line.partition(" ")
        found[f"package {name}"] = rest
    found.update({f"auto {name}": "" for name in run("apt-mark", "showauto")})
    for line in run("systemctl", "list-unit-files", "--no-legend", "--no-pager", "--full"):
        found[f"unit {line.split()[0]}"] = line.split()[1]
    for line in run("systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager", "*edge-moe*", "*zram*"):
        found[f"active {line.split()[0]}"] = " ".join(line.split()[1:4])
    for line in read("/proc/swaps").splitlines()[1:]:
        words = line.split()
        found[f"swap {words[0]}"] = f"{words[2]} {words[-1]}"
    for path in glob.glob("/sys/block/*/queue/read_ahead_kb") + glob.glob("/sys/block/zram*/disksize"):
        found[f"block {path}"] = read(path)
    for path in glob.glob("/sys/class/devfreq/*/m??_freq"):
        found[f"clock {path}"] = read(path)
    for path in glob.glob("/proc/sys/**", recursive=True):
        if os.path.isfile(path) and not COUNTERS.search(path):
            found[f"sysctl {path}"] = read(path)
    found.update({f"run {path}": "" for path in glob.glob("/run/*edge*") + glob.glob("/run/systemd/system/*edge*")})
    found["power mode"] = " ".join(run("nvpmodel", "-q"))
    return found


def differing(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def load(path: str) -> dict[str, str]:
    with open(path) as file:
        looked: dict[str, str] = json.load(file)
    return looked


if __name__ == "__main__":
    json.dump(differing(*map(load, sys.argv[1:])) if sys.argv[1:] else gather(), sys.stdout)
