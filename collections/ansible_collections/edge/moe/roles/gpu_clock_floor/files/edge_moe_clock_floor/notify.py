# SPDX-License-Identifier: GPL-3.0-or-later
"""sd_notify without a library: one datagram to the socket that systemd names. Silent when there is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        if environment is None:
            environment = os.environ
        address = environment.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the NUL of the abstract namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status = ""
        usec = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Half of the limit, so that one late beat is not the end.
        self.watchdog_s = int(usec) / 2e6 if usec.isdigit() and int(usec) and mine else None

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.sendto(message.encode(), self._address)
        except OSError:
            # A manager that went away is no reason to let go of the clock; its watchdog decides.
            pass

    def ready(self, status: str) -> None:
        self._status = status
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        if status != self._status:
            self._status = status
            self._send(f"STATUS={status}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")
