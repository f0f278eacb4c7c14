# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual boards: start, wait, stop, forget.

A board is a folder below $EDGE_MOE_HOME/boards: an overlay on the shared image, a disk that plays the NVMe, its own
host key and login key, and the console's log. QEMU outlives the command that started it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_moe_testbed import image, qemu
from edge_moe_testbed.common import Step, TestbedError, home, locked, need_programs, need_space, refusing, say, tail
from edge_moe_testbed.login import PROGRAMS as LOGIN_PROGRAMS
from edge_moe_testbed.login import Login, run_quietly

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
MEMORY_MIB = 768
CPUS = 2
NVME_GIB = 8
NVME_MOUNT = "/mnt/nvme"
BOOT_LIMIT_S = 300.0  # a loaded two-core machine without KVM takes about one minute
SETTLE_LIMIT_S = 180.0
POWEROFF_LIMIT_S = 60.0
PROGRAMS = {
    qemu.QEMU: "qemu-system-x86",
    "mkfs.ext4": "e2fsprogs",
    "qemu-img": "qemu-utils",
    **LOGIN_PROGRAMS,
}


@dataclass
class Settings:
    """What `up` was asked for; kept in board.json."""

    port: int
    memory_mib: int = MEMORY_MIB
    cpus: int = CPUS
    nvme_gib: int = NVME_GIB
    nvme_mbps: int | None = None
    image: str = ""
    accelerator: str = ""


class Board:
    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise TestbedError(
                f"{name!r} is no name for a board: use lower-case letters, digits and inner hyphens, at most 42 of them"
            )
        self.name = name
        self.folder = home() / "boards" / name

    # ---- state ----

    @property
    def console(self) -> Path:
        return self.folder / "console.log"

    def settings(self) -> Settings | None:
        try:
            return Settings(**json.loads((self.folder / "board.json").read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise TestbedError(
                f"{self.folder}/board.json is damaged ({error}); remove the board with: board destroy {self.name}"
            ) from error

    def pid(self) -> int | None:
        """The process of this board if it runs: the id alone could by now belong to another program."""
        try:
            pid = int((self.folder / "qemu.pid").read_text())
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, ValueError, IndexError):
            return None
        ours = f"file={qemu.quoted(self.folder / 'root.qcow2')}".encode()
        return pid if state != "Z" and any(part.endswith(ours) for part in argv) else None

    # ---- ssh ----

    def login(self) -> Login:
        settings = self.settings()
        if settings is None:
            raise TestbedError(f"there is no board {self.name}; start it with: board up {self.name} --port PORT")
        return Login(self.folder, settings.port)

    def ssh_command(self, *remote: str) -> list[str]:
        return self.login().command(*remote)

    def ssh(self, *remote: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        return self.login().run(*remote, timeout_s=timeout_s)

    # ---- commands ----

    def up(self, wanted: Settings) -> bool:
        """Starts the board and waits for it; False if it was running already."""
        need_programs(PROGRAMS)
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".lock", f"another command works on board {self.name}"):
            known = self.settings()
            if self.pid() is not None:
                self._same_or_refuse(known, wanted)
                say(f"board {self.name} runs already on port {wanted.port}")
                self.wait()
                return False
            check_port(wanted.port, self.name)
            image_folder = image.ensure()
            if known is not None and known.image and known.image != image_folder.name:
                say(f"board {self.name} was made from another image ({known.image}): starting it afresh")
                self._discard()
            wanted.image = image_folder.name
            wanted.accelerator = qemu.accelerator(image_folder)
            self._prepare(wanted, image_folder)
            self._start(wanted, image_folder)
        self.wait()
        return True

    def _same_or_refuse(self, known: Settings | None, wanted: Settings) -> None:
        keys = ("port", "memory_mib", "cpus", "nvme_gib", "nvme_mbps")
        for key in keys:
            has, asked = getattr(known, key, None), getattr(wanted, key)
            if has != asked:
                raise TestbedError(
                    f"board {self.name} runs with {key} {has}, and {asked} was asked for; "
                    f"stop it first: board down {self.name}"
                )

    def _prepare(self, wanted: Settings, image_folder: Path) -> None:
        folder = self.folder
        folder.chmod(0o700)
        if not (folder / "root.qcow2").exists():
            argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(image_folder / "root.img")]
            run_quietly([*argv, str(folder / "root.qcow2")], "making the board's disk")
        nvme = folder / "nvme.img"
        size = wanted.nvme_gib * 2**30
        if nvme.exists() and nvme.stat().st_size != size:
            raise TestbedError(
                f"the NVMe disk of board {self.name} has {nvme.stat().st_size / 2**30:.0f} GiB, and {wanted.nvme_gib} "
                f"GiB was asked for; to lose what is on it: board destroy {self.name}"
            )
        if not nvme.exists():
            need_space(folder, 2 * 2**30, f"board {self.name}")
            new = folder / "nvme.img.new"
            with new.open("wb") as out:
                out.truncate(size)
            run_quietly(
                ["mkfs.ext4", "-q", "-F", "-L", "edge-moe-nvme", "-m", "0", str(new)], "formatting the NVMe disk"
            )
            new.rename(nvme)
        Login(folder, wanted.port).make_keys(self.name)
        (folder / "hostname").write_text(f"{self.name}\n")
        (folder / "board.json").write_text(json.dumps(asdict(wanted), indent=2) + "\n")

    def _start(self, wanted: Settings, image_folder: Path) -> None:
        (self.folder / "qemu.pid").unlink(missing_ok=True)
        if self.console.exists():
            self.console.replace(self.folder / "console.previous.log")
        machine = qemu.Machine(
            name=self.name,
            folder=self.folder,
            image=image_folder,
            port=wanted.port,
            memory_mib=wanted.memory_mib,
            cpus=wanted.cpus,
            nvme_mbps=wanted.nvme_mbps,
            accelerator=wanted.accelerator,
        )
        done = subprocess.run(qemu.command(machine), stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise TestbedError(f"QEMU did not start board {self.name}: {said[-1] if said else 'no message'}")

    def wait(self, limit_s: float = BOOT_LIMIT_S) -> None:
        """Returns when SSH answers and the board's units have started."""
        with Step(f"board {self.name}: booting") as step:
            deadline = time.monotonic() + limit_s
            while True:
                if self.pid() is None:
                    raise TestbedError(self._with_console(f"board {self.name} is not running"))
                answer = self.ssh("true", timeout_s=20)
                if answer.returncode == 0:
                    break
                if time.monotonic() > deadline:
                    why = answer.stderr.strip().splitlines()
                    raise TestbedError(
                        self._with_console(
                            f"board {self.name}: no SSH within {limit_s:.0f} s ({why[-1] if why else 'no message'})"
                        )
                    )
                step.note = tail(self.console, 1)[:70]
                time.sleep(1)
            step.note = "SSH answers, units are starting"
            state = self.ssh("systemctl is-system-running --wait", timeout_s=SETTLE_LIMIT_S).stdout.strip()
            # The mount may fail without failing the system, as it may on a real board.
            mounted = self.ssh(f"mountpoint --quiet {NVME_MOUNT}").returncode == 0
        if state != "running" or not mounted:
            failed = self.ssh("systemctl --failed --plain --no-legend").stdout.splitlines()
            units = " ".join(line.split()[0] for line in failed if line.strip()) or "none"
            raise TestbedError(
                self._with_console(
                    f"board {self.name}: system state is {state or 'unknown'}, failed units: {units}, "
                    f"{NVME_MOUNT} is {'mounted' if mounted else 'not mounted'}"
                )
            )
        say(f"board {self.name} is up; log in with: {self.login().hint()}")

    def _with_console(self, text: str) -> str:
        return f"{text}; console log: {self.console}\n{tail(self.console)}"

    def down(self) -> bool:
        """Powers the board off; what does not go in time is killed. False if it was not running."""
        pid = self.pid()
        if pid is None:
            say(f"board {self.name} is not running")
            return False
        with Step(f"board {self.name}: powering off") as step:
            self.ssh("sudo systemctl poweroff", timeout_s=15)
            if not _gone(self.pid, POWEROFF_LIMIT_S):
                step.note = "it did not go by itself: ending QEMU"
                for how, limit_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
                    current = self.pid()
                    if current is None:
                        break
                    os.kill(current, how)
                    if _gone(self.pid, limit_s):
                        break
        if self.pid() is not None:
            raise TestbedError(f"board {self.name}: QEMU (process {pid}) cannot be ended")
        (self.folder / "qemu.pid").unlink(missing_ok=True)
        return True

    def _discard(self) -> None:
        for path in self.folder.iterdir():
            if path.name != ".lock":
                path.unlink()

    def destroy(self) -> bool:
        """Ends the board at once, as nothing on it is wanted any more, and removes its folder."""
        if not self.folder.exists():
            say(f"there is no board {self.name}")
            return False
        for how in (signal.SIGTERM, signal.SIGKILL):
            pid = self.pid()
            if pid is None:
                break
            os.kill(pid, how)
            _gone(self.pid, 10.0)
        if self.pid() is not None:
            raise TestbedError(f"board {self.name}: QEMU (process {self.pid()}) cannot be ended")
        shutil.rmtree(self.folder)
        say(f"board {self.name}: destroyed")
        return True


def boards() -> list[Board]:
    folder = home() / "boards"
    if not folder.is_dir():
        return []
    return [Board(path.name) for path in sorted(folder.iterdir()) if NAME.fullmatch(path.name) and path.is_dir()]


def check_port(port: int, name: str = "") -> None:
    """Refuses a port that another program holds, naming the board if it is one of ours."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As QEMU does: a connection of the last run that is still closing does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError as error:
            raise TestbedError(f"port {port} needs root; choose one above 1023") from error
        except OSError as error:
            holder = next((other.name for other in boards() if other.name != name and _holds(other, port)), None)
            who = f"board {holder}" if holder else "another program"
            raise TestbedError(f"port {port} of 127.0.0.1 is taken by {who}; choose another with --port") from error


def _holds(board: Board, port: int) -> bool:
    settings = board.settings()
    return settings is not None and settings.port == port and board.pid() is not None


def _gone(pid: Callable[[], int | None], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while pid() is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def port_number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1 to 65535)")
    return int(text)


def at_least(lowest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {lowest}")
        return int(text)

    return parse


def add_arguments(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("board", help="start, stop and list virtual boards, and build their image")
    commands = parser.add_subparsers(dest="board_command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start a board (and build the image if needed) and wait for SSH")
    up.add_argument("name")
    up.add_argument("--port", type=port_number, required=True, help="port of 127.0.0.1 that leads to the board's SSH")
    up.add_argument("--memory", type=at_least(512), default=MEMORY_MIB, metavar="MIB", help="default %(default)s")
    up.add_argument("--cpus", type=at_least(1), default=CPUS, help="default %(default)s")
    up.add_argument("--nvme-size", type=at_least(1), default=NVME_GIB, metavar="GIB", help="default %(default)s")
    up.add_argument(
        "--nvme-mbps", type=at_least(1), metavar="N", help="limit the NVMe disk to N MB/s (default: no limit)"
    )
    for name, text in (
        ("wait", "wait until a started board answers"),
        ("down", "power a board off and keep its disks"),
        ("destroy", "end a board and remove all of it"),
    ):
        commands.add_parser(name, help=text).add_argument("name")
    ssh = commands.add_parser("ssh", help="log in, or run a command on a board")
    ssh.add_argument("name")
    ssh.add_argument("remote", nargs=argparse.REMAINDER, metavar="COMMAND")
    commands.add_parser("list", help="list the boards")
    commands.add_parser("image", help="build the image now and print its folder")


def run(args: argparse.Namespace) -> int:
    return refusing(_run_command, args)


def _run_command(args: argparse.Namespace) -> int:
    command = args.board_command
    if command == "list":
        for each in boards():
            settings = each.settings()
            if settings is not None:
                state = "running" if each.pid() is not None else "stopped"
                print(
                    f"{each.name:30} {state:8} port {settings.port:5} {settings.memory_mib} MiB {settings.accelerator}"
                )
        return 0
    if command == "image":
        print(image.ensure())
        return 0
    board = Board(args.name)
    if command == "up":
        wanted = Settings(args.port, args.memory, args.cpus, args.nvme_size, args.nvme_mbps)
        say(f"board {board.name}: {'started' if board.up(wanted) else 'unchanged'}")
    elif command == "wait":
        board.wait()
    elif command == "down":
        say(f"board {board.name}: {'stopped' if board.down() else 'unchanged'}")
    elif command == "ssh":
        argv = board.ssh_command(*args.remote)
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
    else:
        board.destroy()
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="edge_moe_testbed.board")
    add_arguments(parser.add_subparsers(required=True, metavar="COMMAND"))
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] != ["board"]:
        arguments = ["board", *arguments]
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
