# SPDX-License-Identifier: GPL-3.0-or-later
"""The image that all containers start from: what a virtual board has, without the kernel.

It is pulled if EDGE_MOE_CONTAINER_IMAGE names one that can be, and otherwise made from Debian packages. A made one is
kept by the stamp of everything it is made from, as an archive beside the boards' images and in the driver's own store.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from edge_moe_testbed import image
from edge_moe_testbed.common import Step, home, locked, need_programs, need_space, run_logged, say

FILES = Path(__file__).resolve().parent / "container_files"
PROGRAMS = {"dpkg-deb": "dpkg", "mmdebstrap": "mmdebstrap"}
PULL_LIMIT_S = 600
PYTHON = "usr/lib/python3/dist-packages"
# Where each file of the image comes from. The settings of sudo and SSH are those of the virtual board.
OVERLAY = {
    "etc/sudoers.d/jetson": image.ASSETS / "rootfs/etc/sudoers.d/jetson",
    "etc/ssh/sshd_config.d/virtual-jetson.conf": image.ASSETS / "rootfs/etc/ssh/sshd_config.d/virtual-jetson.conf",
    f"{PYTHON}/edge_moe_device_tree.py": FILES / "device_tree.py",
}
# What belongs to a kernel of one's own. The board's zram script would load a module of the host.
MASKED_UNITS = (
    *image.MASKED_UNITS,
    *image.UNSUPPORTED_UNITS,
    "console-getty.service",
    "dev-hugepages.mount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-udev-trigger.service",
    "systemd-udevd.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
)


def stamp() -> str:
    """Names an image by everything it is made from: its files, the stand-ins for L4T, and both recipes."""
    digest = hashlib.sha256(image.stamp(image.ASSETS / "l4t").encode())
    for path in [*sorted(FILES.iterdir()), *OVERLAY.values(), Path(__file__)]:
        if path.is_file():
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def pack(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of root's files by path. Keys and rules of sudo are root's alone, as their readers demand."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o600 if name.endswith("_key") else 0o440 if "sudoers.d" in name else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def commands() -> list[list[str]]:
    """What is run inside the new root, in order."""
    return [
        ["dpkg", "--install", "/l4t.deb"],
        list(image.ADD_USER),
        ["systemctl", "enable", "ssh.service"],
        ["systemctl", "disable", "ssh.socket", "nvpmodel.service", "nvzramconfig.service"],
        ["systemctl", "mask", *MASKED_UNITS],
        ["systemctl", "set-default", "multi-user.target"],
        ["sh", "-c", "rm /l4t.deb /etc/ssh/ssh_host_*"],
    ]


def ensure(driver: list[str]) -> str:
    """The name by which the driver knows the image, pulled or made now if need be."""
    wanted = os.environ.get("EDGE_MOE_CONTAINER_IMAGE")
    if wanted and (_has(driver, wanted) or _pulled(driver, wanted)):
        return wanted
    name = f"edge-moe-container:{stamp()}"
    with locked(home() / "images" / "container.lock", "a container image"):
        if not _has(driver, name):
            archive = home() / "images" / f"container-{stamp()}.tar"
            if not archive.is_file():
                _build(archive)
            with Step(f"container image: importing it into {driver[0]}"):
                argv = [*driver, "import", "--change", 'CMD ["/sbin/init"]', str(archive), name]
                run_logged(argv, home() / "images" / "container.log", f"importing {archive} into {driver[0]}")
    return name


def _has(driver: list[str], name: str) -> bool:
    argv = [*driver, "image", "inspect", name]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def _pulled(driver: list[str], name: str) -> bool:
    with Step(f"container image: pulling {name}"):
        try:
            done = subprocess.run(
                [*driver, "pull", name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PULL_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            why = f"no end within {PULL_LIMIT_S} s"
        else:
            if done.returncode == 0:
                return True
            why = (done.stderr.strip().splitlines() or ["no message"])[-1]
    say(f"container image: {name} cannot be pulled ({why}); it is made from Debian packages instead")
    return False


def _build(archive: Path) -> None:
    """Builds under another name and renames at the end: a broken build leaves no image behind."""
    need_programs(PROGRAMS)
    image.keyring()
    archive.parent.mkdir(parents=True, exist_ok=True)
    need_space(archive.parent, 2**30, "making the container image")
    log = archive.with_name("container.log")
    log.unlink(missing_ok=True)
    with (
        Step("container image: making it from Debian packages"),
        tempfile.TemporaryDirectory(dir=archive.parent, prefix=".container-") as folder,
    ):
        work = Path(folder)
        files = {name: path.read_bytes() for name, path in OVERLAY.items()}
        files[f"{PYTHON}/edge_moe_device_tree.pth"] = b"import edge_moe_device_tree\n"
        files["l4t.deb"] = image.pack_stand_ins(work, log).read_bytes()
        (work / "overlay.tar").write_bytes(pack(files))
        hooks = [f"tar-in {shlex.quote(str(work / 'overlay.tar'))} /"]
        hooks += [f'chroot "$1" {shlex.join(command)}' for command in commands()]
        options = [f"--customize-hook={hook}" for hook in hooks]
        made = work / "root.tar"
        image.mmdebstrap("apt", image.ROOT_PACKAGES, made, log, options)
        made.rename(archive)
