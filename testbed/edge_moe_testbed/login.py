# SPDX-License-Identifier: GPL-3.0-or-later
"""How the test bed logs in to the machines that it starts on this one: with keys of each machine alone.

The host key is made beforehand as well, so that the first connection already knows whom it talks to.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from edge_moe_testbed.common import TestbedError

USER = "jetson"
PROGRAMS = {"ssh": "openssh-client", "ssh-keygen": "openssh-client"}


@dataclass(frozen=True)
class Login:
    """A user of a machine whose SSH is a port of 127.0.0.1. `folder` holds the keys and known_hosts."""

    folder: Path
    port: int

    @property
    def key(self) -> Path:
        return self.folder / "id_ed25519"

    @property
    def host_key(self) -> Path:
        return self.folder / "ssh_host_ed25519_key"

    def make_keys(self, name: str) -> None:
        """Keys that are there are kept; known_hosts follows the port."""
        for key, comment in ((self.key, f"login to {name}"), (self.host_key, f"host {name}")):
            if not key.exists():
                argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(key)]
                run_quietly(argv, f"making the keys of {name}")
        kind, public = self.host_key.with_suffix(".pub").read_text().split()[:2]
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {kind} {public}\n")

    def command(self, *remote: str) -> list[str]:
        options = {
            "UserKnownHostsFile": f'"{self.folder / "known_hosts"}"',
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": "5",
            "LogLevel": "ERROR",
        }
        argv = ["ssh", "-F", "none", "-i", str(self.key), "-p", str(self.port)]
        for name, value in options.items():
            argv += ["-o", f"{name}={value}"]
        return [*argv, f"{USER}@127.0.0.1", *remote]

    def run(self, *remote: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Runs a command there; a time-out gives exit code 255, as a lost connection does."""
        argv = self.command(*remote)
        try:
            return subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 255, "", f"no answer within {timeout_s:.0f} s")

    def hint(self) -> str:
        """What a person types."""
        return f"ssh -i {self.key} -o UserKnownHostsFile={self.folder}/known_hosts -p {self.port} {USER}@127.0.0.1"


def run_quietly(argv: list[str], what: str) -> None:
    """Runs a program of the host; a failure shows the last line that it said."""
    env = {**os.environ, "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"}
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise TestbedError(f"{what} failed: {said[-1] if said else f'exit code {done.returncode}'}")
