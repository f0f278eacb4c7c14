# SPDX-License-Identifier: GPL-3.0-or-later
"""Pretended boards on loopback addresses: real SSH, and an answer to the inventory's probe that the test chooses.

Each board has an address of its own in 127.0.0.0/8 and all have the same port, as in a real network.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def board_answer(
    compatible: str = "nvidia,p3768-0000+p3767-0005-super\nnvidia,tegra234",
    release: str = "# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64",
    package: str = "36.4.7-20250918154033",
    memory_kb: int = 7802332,
) -> bytes:
    """What the probe would print on a board."""
    parts = {
        "compatible": compatible,
        "model": "NVIDIA Jetson",
        "release": release,
        "package": package,
        "memory": f"MemTotal: {memory_kb} kB",
        "kernel": "5.15.148-tegra",
        "end": "",
    }
    return "".join(f"\n@@ {name}\n{text}" for name, text in parts.items()).encode()


def new_key(path: Path) -> paramiko.Ed25519Key:
    """A fresh key, written in OpenSSH's form."""
    text = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    path.touch(mode=0o600)
    path.write_bytes(text)
    return paramiko.Ed25519Key.from_private_key_file(str(path))


class _Board(paramiko.ServerInterface):
    def __init__(self, fleet: Fleet, address: str) -> None:
        self.fleet = fleet
        self.address = address

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        allowed = key.asbytes() == self.fleet.user_key.asbytes()
        return paramiko.AUTH_SUCCESSFUL if allowed else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED if kind == "session" else paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.fleet.commands.append((self.address, command.decode()))
        threading.Thread(target=self._answer, args=(channel,), daemon=True).start()
        return True

    def _answer(self, channel: paramiko.Channel) -> None:
        with contextlib.suppress(OSError, EOFError):
            while channel.recv(65536):
                pass
            time.sleep(self.fleet.delay_s)
            channel.sendall(self.fleet.answers[self.address])
            channel.send_exit_status(0)
            channel.close()


@dataclass
class Fleet:
    """Running boards. `answers` is by address; `mute` addresses accept and say nothing."""

    folder: Path
    answers: dict[str, bytes]
    mute: frozenset[str] = frozenset()
    delay_s: float = 0.0
    commands: list[tuple[str, str]] = field(default_factory=list)
    contacted: list[str] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self.host_key = new_key(self.folder / "host_key")
        self.user_key = new_key(self.folder / "user_key")
        self.known_hosts = self.folder / "known_hosts"

    def write_known_hosts(self, wrong: frozenset[str] = frozenset(), unknown: frozenset[str] = frozenset()) -> None:
        other = new_key(self.folder / "other_key")
        lines = [
            f"[{address}]:{self.port} {key.get_name()} {key.get_base64()}"
            for address in self.answers
            if address not in unknown
            for key in [other if address in wrong else self.host_key]
        ]
        self.known_hosts.write_text("\n".join(lines) + "\n")

    def serve(self, connection: socket.socket, address: str) -> None:
        try:
            if address in self.mute:
                while connection.recv(4096):
                    pass
                return
            transport = paramiko.Transport(connection)
            transport.set_log_channel("edge_moe.boards")
            transport.add_server_key(self.host_key)
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                transport.start_server(server=_Board(self, address))
                transport.join(30)
        finally:
            connection.close()


@contextlib.contextmanager
def running(fleet: Fleet) -> Iterator[Fleet]:
    """Listen on every address of the fleet until the block ends."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for address in fleet.answers:
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, fleet.port))
            fleet.port = listener.getsockname()[1]
            listener.listen(16)
            selector.register(listener, selectors.EVENT_READ, address)
        stop = threading.Event()

        def accept() -> None:
            while not stop.is_set():
                for ready, _events in selector.select(0.1):
                    listener = ready.fileobj
                    if isinstance(listener, socket.socket):
                        connection, _peer = listener.accept()
                        fleet.contacted.append(ready.data)
                        threading.Thread(target=fleet.serve, args=(connection, ready.data), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield fleet
        finally:
            stop.set()
            thread.join()
