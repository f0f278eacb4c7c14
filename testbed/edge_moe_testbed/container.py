# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers with systemd and SSH, which the roles' scenarios reach as they reach a board.

A container is a folder below $EDGE_MOE_HOME/containers, with its host key and login key, and a container of podman or
docker. It uses the host's network, as not every machine can make one for containers: its sshd listens on a port of
127.0.0.1. Of the host's rights it has two: CAP_SYS_ADMIN, for the mounts that systemd makes around a fenced service,
and CAP_SYS_PTRACE, with which root on a board sees what another user's process listens on. /sys is read-only in it and
the host's devices are not there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from edge_moe_testbed import container_image
from edge_moe_testbed.board import NAME, check_port, port_number
from edge_moe_testbed.common import Step, TestbedError, home, locked, need_programs, refusing, say
from edge_moe_testbed.login import PROGRAMS as LOGIN_PROGRAMS
from edge_moe_testbed.login import USER, Login

DRIVERS = {"podman": "podman", "docker": "docker.io"}  # and their packages
START_LIMIT_S = 60.0
SETTLE_LIMIT_S = 60.0
# The root of a cgroup namespace is the own cgroup of the container. Mounted over whatever the driver put there, it is
# a tree that systemd may write, under the names that the kernel gives to processes.
START = "mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec /sbin/init"
# A driver's defaults may lie above what it may set itself. A scenario opens few files and starts few processes.
LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")


def driver_name() -> str:
    """What EDGE_MOE_CONTAINER_DRIVER says; otherwise the first that is installed."""
    asked = os.environ.get("EDGE_MOE_CONTAINER_DRIVER")
    if asked:
        if asked not in DRIVERS:
            raise TestbedError(f"EDGE_MOE_CONTAINER_DRIVER is {asked!r}; it accepts {' or '.join(DRIVERS)}")
        return asked
    return next((name for name in DRIVERS if shutil.which(name)), "podman")


def driver_command(driver: str, mounts: str) -> list[str]:
    """The driver's command line on a machine with this text of /proc/mounts."""
    places = [fields[1] for fields in map(str.split, mounts.splitlines()) if len(fields) > 2 and fields[2] == "cgroup2"]
    if not places:
        raise TestbedError(
            "no cgroup v2 is mounted here, and systemd in a container needs it: "
            "boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line"
        )
    # Podman's usual runtime refuses machines that mount v2 beside v1; runc does not.
    beside_v1 = driver == "podman" and "/sys/fs/cgroup" not in places
    return ["podman", "--runtime", "runc"] if beside_v1 else [driver]


class Container:
    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise TestbedError(
                f"{name!r} is no name for a container: use lower-case letters, digits and inner hyphens, at most 42 of "
                "them"
            )
        self.name = name
        self.id = f"edge-moe-{name}"
        self.folder = home() / "containers" / name
        self.driver = driver_name()
        self.command = driver_command(self.driver, Path("/proc/mounts").read_text())

    def login(self) -> Login:
        try:
            return Login(self.folder, int((self.folder / "port").read_text()))
        except (OSError, ValueError) as error:
            raise TestbedError(
                f"there is no container {self.name}; start it with: container up {self.name} --port PORT"
            ) from error

    def state(self) -> str:
        """What the driver calls it, such as `running`; empty if there is no such container."""
        done = self._ask("inspect", "--type=container", "--format={{.State.Status}}", self.id)
        return done.stdout.strip() if done.returncode == 0 else ""

    def up(self, port: int) -> bool:
        """Starts the container and waits for it; False if it was running already."""
        self.need_driver()
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".lock", f"another command works on container {self.name}"):
            if self.state() == "running":
                if not (self.folder / "port").exists():
                    raise TestbedError(
                        f"{self.driver} runs a container {self.id} that was not started from {home()} (EDGE_MOE_HOME); "
                        f"if nobody needs it, end it with: {' '.join(self.command)} rm --force {self.id}"
                    )
                known = self.login().port
                if known != port:
                    raise TestbedError(
                        f"container {self.name} runs with port {known}, and {port} was asked for; "
                        f"remove it first: container down {self.name}"
                    )
                say(f"container {self.name} runs already on port {port}")
                self.wait()
                return False
            check_port(port)
            image = container_image.ensure(self.command)
            self._remove()
            self._start(port, image)
        self.wait()
        return True

    def need_driver(self) -> None:
        programs = {self.driver: DRIVERS[self.driver], **LOGIN_PROGRAMS}
        if "runc" in self.command:
            programs["runc"] = "runc"
        need_programs(programs)

    def _start(self, port: int, image: str) -> None:
        self.folder.chmod(0o700)
        login = Login(self.folder, port)
        login.make_keys(self.name)
        (self.folder / "port").write_text(f"{port}\n")
        # With a terminal, a plain one, the driver keeps what systemd says while it starts.
        argv = ["create", "--tty", "--env", "TERM=dumb", "--name", self.id, "--hostname", self.name]
        # sudo asks for the machine's own name.
        argv += ["--network", "host", "--add-host", f"{self.name}:127.0.0.1", "--cap-add", "SYS_ADMIN"]
        argv += ["--cap-add", "SYS_PTRACE"]
        # The profiles of AppArmor and SELinux for containers forbid the mounts that the capability is there for.
        argv += ["--security-opt", "apparmor=unconfined", "--security-opt", "label=disable", *LIMITS]
        argv += ["--cgroupns", "private", "--tmpfs", "/run", "--tmpfs", "/tmp:exec"]  # noqa: S108 - in there
        argv += ["--env", f"container={self.driver}", *(["--systemd=false"] if self.driver == "podman" else [])]
        argv += [image, "sh", "-c", START]
        self._do("making it", *argv)
        self._do("giving it its keys", "cp", "-", f"{self.id}:/", given=container_image.pack(seed(login)))
        self._do("starting it", "start", self.id)

    def wait(self) -> None:
        """Returns when SSH answers and the units have started."""
        login = self.login()
        with Step(f"container {self.name}: starting"):
            deadline = time.monotonic() + START_LIMIT_S
            while (answer := login.run("true", timeout_s=10)).returncode != 0:
                state = self.state()
                if state != "running":
                    raise TestbedError(self._with_log(f"it is {state or 'gone'} instead of running"))
                if time.monotonic() > deadline:
                    why = (answer.stderr.strip().splitlines() or ["no message"])[-1]
                    raise TestbedError(self._with_log(f"no SSH within {START_LIMIT_S:.0f} s ({why})"))
                time.sleep(0.2)
            state = login.run("systemctl is-system-running --wait", timeout_s=SETTLE_LIMIT_S).stdout.strip()
        if state not in ("running", "degraded"):
            raise TestbedError(self._with_log(f"systemd in it is {state or 'not there'} instead of running"))
        if state == "degraded":
            failed = login.run("systemctl --failed --plain --no-legend").stdout.splitlines()
            say(f"container {self.name}: units that failed: {' '.join(line.split()[0] for line in failed)}")
        say(f"container {self.name} is up; log in with: {login.hint()}")

    def _with_log(self, problem: str) -> str:
        log = self._ask("logs", "--tail", "12", self.id)
        said = "\n".join(line.strip() for line in (log.stdout + log.stderr).splitlines() if line.strip()) or "nothing"
        return (
            f"container {self.name}: {problem}. Its systemd said:\n{said}\n"
            f"It is left as it is; look into it with: {' '.join(self.command)} exec -it {self.id} bash"
        )

    def down(self) -> bool:
        """Ends the container at once, as nothing in it is wanted any more, and removes all of it."""
        if not self.folder.exists():
            say(f"there is no container {self.name}")
            return False
        self.need_driver()
        self._remove()
        shutil.rmtree(self.folder)
        say(f"container {self.name}: destroyed")
        return True

    def _remove(self) -> None:
        if self.state():
            self._ask("kill", self.id)  # instead of the seconds that rm would wait for
            self._do("removing it", "rm", "--force", self.id)

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [*self.command, *arguments]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def _do(self, what: str, *arguments: str, given: bytes = b"") -> None:
        done = subprocess.run([*self.command, *arguments], input=given, capture_output=True, check=False)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise TestbedError(
                f"container {self.name}: {what} with {self.driver} failed: {said[-1] if said else 'no message'}"
            )


def seed(login: Login) -> dict[str, bytes]:
    """What makes a container this one, by path: its host key, who may log in, and where its sshd listens."""
    return {
        "etc/ssh/ssh_host_ed25519_key": login.host_key.read_bytes(),
        "etc/ssh/sshd_config.d/edge-moe-address.conf": f"ListenAddress 127.0.0.1:{login.port}\n".encode(),
        f"home/{USER}/.ssh/authorized_keys": login.key.with_suffix(".pub").read_bytes(),
    }


def add_arguments(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("container", help="start and remove containers with systemd, and make their image")
    commands = parser.add_subparsers(dest="container_command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start a container (and make the image if needed) and wait for SSH")
    up.add_argument("name")
    up.add_argument("--port", type=port_number, required=True, help="port of 127.0.0.1 that its SSH listens on")
    commands.add_parser("down", help="end a container and remove all of it").add_argument("name")
    ssh = commands.add_parser("ssh", help="log in, or run a command in a container")
    ssh.add_argument("name")
    ssh.add_argument("remote", nargs=argparse.REMAINDER, metavar="COMMAND")
    commands.add_parser("image", help="make the image now and print its name")


def run(args: argparse.Namespace) -> int:
    return refusing(_run_command, args)


def _run_command(args: argparse.Namespace) -> int:
    command = args.container_command
    if command == "image":
        container = Container("image")
        container.need_driver()
        print(container_image.ensure(container.command))
        return 0
    container = Container(args.name)
    if command == "up":
        say(f"container {container.name}: {'started' if container.up(args.port) else 'unchanged'}")
    elif command == "down":
        container.down()
    else:
        argv = container.login().command(*args.remote)
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
    return 0
