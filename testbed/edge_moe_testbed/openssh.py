# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenSSH's server for tests, without installing it: an installed one would be started and open a port.

Its packages come through apt from the machine's own distribution, with the libraries that the machine lacks, and are
only unpacked. It runs as a normal user and so needs neither the user `sshd` nor /run/sshd. Without root it can let in
nobody but the user it runs as: nss_wrapper gives that user the name, home and shell that the caller wants.
"""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edge_moe_testbed.common import TestbedError, home, locked, run_logged, tail

PACKAGES = ("openssh-server", "libnss-wrapper")
# Since OpenSSH 9.8 the server starts programs of its own by these paths.
HELPERS = {"SshdSessionPath": "usr/lib/openssh/sshd-session", "SshdAuthPath": "usr/lib/openssh/sshd-auth"}
START_LIMIT_S = 30.0


def packages() -> list[Path]:
    """The Debian packages, fetched by the first call and kept in the cache folder."""
    if shutil.which("apt-get") is None:
        raise TestbedError(
            "no apt-get here, and OpenSSH's server is taken from Debian's or Ubuntu's packages: run it there"
        )
    release = platform.freedesktop_os_release()
    folder = home() / "openssh" / f"{release['ID']}-{release.get('VERSION_ID', 'rolling')}"
    with locked(folder.parent / "fetch.lock", "fetching OpenSSH's server"):
        if not folder.is_dir():
            _fetch(folder)
    return sorted(folder.glob("*.deb"))


def _fetch(folder: Path) -> None:
    """Fetches into a folder of another name and renames it at the end: a broken download leaves nothing behind."""
    coming = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(coming, ignore_errors=True)
    (coming / "partial").mkdir(parents=True)
    argv = ["apt-get", "install", "--reinstall", "--download-only", "--yes", "--no-install-recommends"]
    # Nothing is installed, so a normal user may do it, and beside another apt.
    argv += ["-o", "Debug::NoLocking=1", "-o", f"Dir::Cache::archives={coming}", *PACKAGES]
    try:
        run_logged(argv, folder.with_name("apt.log"), "fetching OpenSSH's server")
    except TestbedError as error:
        raise TestbedError(f"{error}\nAre the lists of packages current? Try: sudo apt-get update") from error
    coming.rename(folder)


def unpack(folder: Path) -> None:
    """Puts the server and its libraries below a folder."""
    for package in packages():
        run_logged(["dpkg-deb", "--extract", str(package), str(folder)], folder / "dpkg.log", f"unpacking {package}")


def identity() -> tuple[int, int]:
    """User and group that servers run as: those of the caller, and nobody's where that is root."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def give_away(folder: Path) -> None:
    """Makes a folder and all in it the property of whom servers run as."""
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, *identity(), follow_symlinks=False)


@dataclass
class Server:
    """One sshd on one address. `folder` has its `host_key` and `home`, and gets its configuration and `log`."""

    program: Path  # where unpack() put it
    folder: Path
    address: str
    port: int
    user: str
    shell: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def configure(self) -> None:
        """Write what start() needs. What is not said stands as OpenSSH has it, StrictModes and MaxStartups as well."""
        settings = {
            "ListenAddress": f"{self.address}:{self.port}",
            "HostKey": f'"{self.folder / "host_key"}"',
            "PidFile": "none",
            "AuthenticationMethods": "publickey",
            # every connection, one that ends before its login as well
            "LogLevel": "VERBOSE",
        }
        settings |= {
            name: f'"{self.program / path}"' for name, path in HELPERS.items() if (self.program / path).exists()
        }
        (self.folder / "config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        uid, gid = identity()
        (self.folder / "passwd").write_text(f"{self.user}:x:{uid}:{gid}::{self.folder / 'home'}:{self.shell}\n")
        (self.folder / "group").write_text(f"{self.user}:x:{gid}:\n")
        self.log.touch()

    def start(self) -> None:
        (wrapper,) = self.program.glob("usr/lib/*/libnss_wrapper.so")
        uid, gid = identity()
        drop = ["--reuid", str(uid), "--regid", str(gid), "--clear-groups"] if os.geteuid() == 0 else []
        argv = [str(self.program / "usr/sbin/sshd"), "-D", "-f", str(self.folder / "config"), "-E", str(self.log)]
        with self.log.open("ab") as said:
            self.process = subprocess.Popen(
                # The server ends with this process, however that ends.
                ["setpriv", "--pdeathsig", "TERM", *drop, "--", *argv],
                env={
                    "LD_LIBRARY_PATH": str(wrapper.parent),
                    "LD_PRELOAD": str(wrapper),
                    "NSS_WRAPPER_PASSWD": str(self.folder / "passwd"),
                    "NSS_WRAPPER_GROUP": str(self.folder / "group"),
                    "PATH": os.defpath,
                },
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def listens(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise TestbedError(
                f"OpenSSH's server does not run here, on {self.address} port {self.port} it ended with code "
                f"{self.process.returncode}:\n{tail(self.log)}\n"
                f"If it is of another release than this machine, remove {home() / 'openssh'} to fetch it anew"
            )
        return b"Server listening" in self.log.read_bytes()

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def wait_for(servers: Iterable[Server]) -> None:
    """Returns when all of them listen. It asks their logs: a connection would count as one."""
    deadline = time.monotonic() + START_LIMIT_S
    for server in servers:
        while not server.listens():
            if time.monotonic() > deadline:
                raise TestbedError(f"sshd on {server.address} does not listen after {START_LIMIT_S:g} s: {server.log}")
            time.sleep(0.01)
