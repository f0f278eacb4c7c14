# SPDX-License-Identifier: GPL-3.0-or-later
"""Pretended boards on loopback addresses: an OpenSSH server for each, and files that the inventory's probe reads.

Each board has an address of its own in 127.0.0.0/8, a host key of its own, and all have the same port, as in a real
network. SSH and the probe are real. Only where the probe reads is turned to the board's own files: the login shell puts
a `head` and a `dpkg-query` before the machine's, which look below the board's folder.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_moe_testbed import openssh

USER = "jetson"
# Where the probe finds its parts; the package is known to dpkg.
FILES = {
    "compatible": "proc/device-tree/compatible",
    "model": "proc/device-tree/model",
    "release": "etc/nv_tegra_release",
    "memory": "proc/meminfo",
    "kernel": "proc/sys/kernel/osrelease",
}
DPKG_STATUS = """\
Package: nvidia-l4t-core
Status: install ok installed
Maintainer: edge.moe
Architecture: all
Version: {version}
Description: stands in
"""
SHELL = """\
#!/bin/sh
echo "$*" >> {board}/commands
{then}
"""
HEAD = """\
#!/bin/sh
for file; do :; done
exec /usr/bin/head "$1" "$2" {board}/files"$file"
"""
DPKG_QUERY = """\
#!/bin/sh
exec /usr/bin/dpkg-query --admindir={board}/dpkg "$@"
"""


@dataclass(frozen=True)
class Board:
    """What a pretended board says of itself. `instead` is a shell command that answers in place of the login shell."""

    compatible: str = "nvidia,p3768-0000+p3767-0005-super\nnvidia,tegra234"
    release: str = "# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64"
    package: str = "36.4.7-20250918154033"
    memory_kb: int = 7802332
    instead: str = ""

    def parts(self) -> dict[str, str]:
        return {
            "compatible": self.compatible,
            "model": "NVIDIA Jetson",
            "release": self.release,
            "package": self.package,
            "memory": f"MemTotal: {self.memory_kb} kB",
            "kernel": "5.15.148-tegra",
        }

    def answer(self) -> bytes:
        """What the probe prints there."""
        parts = {**self.parts(), "end": ""}
        return "".join(f"\n@@ {name}\n{text}" for name, text in parts.items()).encode()

    def write(self, folder: Path) -> None:
        """The board's files and its login shell."""
        for part, name in FILES.items():
            path = folder / "files" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            text = self.parts()[part]
            if text:
                path.write_text(text.replace("\n", "\0") + "\0" if "device-tree" in name else f"{text}\n")
        (folder / "dpkg").mkdir()
        (folder / "dpkg/status").write_text(DPKG_STATUS.format(version=self.package) if self.package else "")
        (folder / "bin").mkdir()
        board = shlex.quote(str(folder))
        scripts = {
            "bin/head": HEAD.format(board=board),
            "bin/dpkg-query": DPKG_QUERY.format(board=board),
            "shell": SHELL.format(board=board, then=self.instead or f'PATH={board}/bin:$PATH exec /bin/sh "$@"'),
        }
        for name, text in scripts.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)


def new_key(path: Path) -> str:
    """A fresh key, written in OpenSSH's form; returns the public half as it stands in known_hosts."""
    key = Ed25519PrivateKey.generate()
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    )
    public = key.public_key()
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


@dataclass(frozen=True)
class Fleet:
    """Running boards by address. `folder` is the controller's: `user_key` and `known_hosts`."""

    folder: Path
    port: int
    servers: Mapping[str, openssh.Server]
    host_keys: Mapping[str, str]

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def know(self, wrong: frozenset[str] = frozenset(), unknown: frozenset[str] = frozenset()) -> None:
        """Write known_hosts: with another machine's key for the wrong ones, without the unknown ones."""
        other = new_key(self.folder / "other_key")
        lines = [
            f"[{address}]:{self.port} {other if address in wrong else key}\n"
            for address, key in self.host_keys.items()
            if address not in unknown
        ]
        self.known_hosts.write_text("".join(lines))

    def connections(self) -> Counter[str]:
        """How many connections each board has seen, by their servers' logs."""
        return Counter(
            {address: server.log.read_text().count("Connection from ") for address, server in self.servers.items()}
        )

    def commands(self) -> dict[str, list[str]]:
        """What each board was told to run, for those that were."""
        files = {address: server.folder / "commands" for address, server in self.servers.items()}
        return {address: path.read_text().splitlines() for address, path in files.items() if path.exists()}


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(boards: Mapping[str, Board], folder: Path) -> Iterator[Fleet]:
    """An OpenSSH server on each address until the block ends; all host keys are known."""
    port = _free_port(next(iter(boards)))
    user_key = new_key(folder / "user_key")
    with contextlib.ExitStack() as stack:
        # Not below `folder`: whom servers run as may not enter there.
        there = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edge-moe-sshfleet-")))
        program = there / "openssh"
        program.mkdir()
        openssh.unpack(program)
        servers, host_keys = {}, {}
        for address, board in boards.items():
            place = there / address
            place.mkdir()
            board.write(place)
            host_keys[address] = new_key(place / "host_key")
            # by modes that a server lets pass whatever the umask is
            (place / "home").mkdir(mode=0o700)
            (place / "home/.ssh").mkdir(mode=0o700)
            (place / "home/.ssh/authorized_keys").touch(mode=0o600)
            (place / "home/.ssh/authorized_keys").write_text(f"{user_key}\n")
            servers[address] = openssh.Server(program, place, address, port, USER, place / "shell")
            servers[address].configure()
        openssh.give_away(there)
        for server in servers.values():
            server.start()
            stack.callback(server.stop)
        openssh.wait_for(servers.values())
        fleet = Fleet(folder, port, servers, host_keys)
        fleet.know()
        yield fleet
