# SPDX-License-Identifier: GPL-3.0-or-later
"""The disk image that all virtual boards start from.

A Debian root file system with the stand-ins of board/ in it, Debian's own kernel beside it, and our kernel module built
for exactly that kernel. It is made once and kept by the stamp of everything it is made from, so a changed script or
package list makes a new image and an unchanged one none.

Two folders are filled side by side. `root` is the board's own. `kernel` is only unpacked, never installed: it holds the
kernel, its headers and a compiler, gives up the kernel and a few modules, and is thrown away. So neither the host's
compiler nor its kernel tools matter, and no compiler ends up on the board.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edge_moe_testbed.common import Step, TestbedError, home, locked, need_programs, need_space, run_logged, say, tail
from edge_moe_testbed.login import USER

ASSETS = Path(__file__).resolve().parent / "board"

SUITE = "trixie"
KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
ROOT_SIZE_MIB = 4096  # sparse: what is not written takes no space
ADD_USER = ("useradd", "--create-home", "--shell", "/bin/bash", "--groups", "sudo,video", "--password", "*", USER)

# What a JetPack system has and roles lean on; nothing that only our own tests would want.
ROOT_PACKAGES = (
    "acl",
    "ca-certificates",
    "dbus",
    "iproute2",
    "kmod",
    "libgomp1",
    "openssh-server",
    "procps",
    "python3",
    "python3-apt",
    "sudo",
    "systemd-sysv",
    "udev",
    "zstd",
)
# Kernel and headers come out of one transaction and therefore match. The rest is what a kernel module's build calls.
KERNEL_PACKAGES = (
    "base-files",
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "findutils",
    "grep",
    "kmod",
    "libc-bin",
    "linux-headers-amd64",
    "linux-image-amd64",
    "make",
    "mawk",
    "sed",
)
INITRAMFS_MODULES = ("crc32c_generic", "crc32c_intel", "virtio_blk", "ext4")
ROOT_MODULES = (
    *INITRAMFS_MODULES,
    "af_packet",
    "autofs4",
    "button",
    "configfs",
    "evdev",
    "fuse",
    "governor_simpleondemand",
    "loop",
    "nvme",
    "overlay",
    "qemu_fw_cfg",
    "sch_fq_codel",
    "virtio_net",
    "virtio_rng",
    "zram",
)
ENABLED_UNITS = (
    "edge-moe-seed.service",
    "nvpmodel.service",
    "nvzramconfig.service",
    "ssh.service",
    "systemd-networkd.service",
)
# Chores of a server that runs for months, and consoles that nobody sits at: on a small board that lives for an hour
# they only compete with what is measured. The host key is seeded, so none is generated.
MASKED_UNITS = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "serial-getty@ttyS0.service",
    "sshd-keygen.service",
    "systemd-networkd-wait-online.service",
)
# What needs a kernel module that the board does not carry.
UNSUPPORTED_UNITS = ("proc-sys-fs-binfmt_misc.automount", "systemd-binfmt.service")
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")
PROGRAMS = {
    "dpkg-deb": "dpkg",
    "mkfs.ext4": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
}


def asset_files(folder: Path = ASSETS) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def stamp(folder: Path = ASSETS) -> str:
    """Names an image by everything it is made from: the files of board/, and this recipe."""
    digest = hashlib.sha256()
    for path in [*asset_files(folder), Path(__file__)]:
        name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
        data = path.read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()[:16]


def folder_of(image_stamp: str) -> Path:
    return home() / "images" / image_stamp


def ensure() -> Path:
    """The folder of the current image, built now if it is not there."""
    folder = folder_of(stamp())
    if (folder / "image.json").is_file():
        return folder
    with locked(folder.parent / "build.lock", "an image build"):
        if not (folder / "image.json").is_file():
            _build_as_root(folder)
    return folder


def keyring() -> Path:
    """Debian's keys; a refusal where there are none."""
    found = next((path for path in KEYRINGS if path.is_file()), None)
    if found is None:
        raise TestbedError(
            f"no {KEYRINGS[0]}: Debian's keys are needed to check what is downloaded; "
            "try: sudo apt-get install debian-archive-keyring"
        )
    return found


def _build_as_root(folder: Path) -> None:
    need_programs(PROGRAMS)
    keyring()
    need_space(folder.parent, 3 * 2**30, "building the board image")
    started = time.monotonic()
    if os.geteuid() == 0:
        build(folder)
    else:
        _build_with_sudo(folder)
    say(f"board image {folder.name}: built in {time.monotonic() - started:.0f} s in {folder}")


def _build_with_sudo(folder: Path) -> None:
    why = "building the board image makes a Debian root file system, which needs root"
    if shutil.which("sudo") is None:
        raise TestbedError(f"{why}, and there is no sudo: run this command as root once")
    interactive = sys.stdin.isatty()
    say(f"{why}: using sudo")
    argv = ["sudo", *([] if interactive else ["--non-interactive"]), "--"]
    package_root = str(Path(__file__).resolve().parent.parent)
    argv += ["env", f"PYTHONPATH={package_root}", sys.executable, "-m", "edge_moe_testbed.image"]
    argv += ["--into", str(folder), "--owner", f"{os.getuid()}:{os.getgid()}"]
    done = subprocess.run(argv, check=False)
    if done.returncode == 1 and not interactive and not (folder / "image.json").is_file():
        raise TestbedError(f"{why}, and sudo gave no permission without a password: run this command as root once")
    if done.returncode != 0:
        raise TestbedError("the image build under sudo failed, see above")


def build(folder: Path, owner: tuple[int, int] | None = None) -> None:
    """Builds into a folder of another name and renames it at the end: a broken build leaves no image behind."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The caller holds the build lock, so what is still lying here was left by a build that was killed.
    for stale in folder.parent.glob(".build-*"):
        _remove(stale)
    work = folder.parent / f".build-{os.getpid()}"
    result = work / "result"
    result.mkdir(parents=True)
    try:
        _fill(work, result)
        if owner:
            for path in [result, *result.rglob("*")]:
                os.chown(path, *owner)
        try:
            result.rename(folder)
        except OSError as error:
            raise TestbedError(f"cannot put the image in place at {folder}: {error.strerror}") from error
    except TestbedError as error:
        # The log that the message names lies in a folder that goes away: keep it beside.
        text = str(error)
        for log in work.glob("*.log"):
            if str(log) in text:
                kept = folder.parent / f"build-failed-{log.name}"
                shutil.copy(log, kept)
                text = text.replace(str(log), str(kept))
        raise TestbedError(text) from error
    finally:
        with Step("board image: clearing up"):
            _remove(work)


def _remove(folder: Path) -> None:
    """Removes a build folder: rm is several times faster than Python at the kernel headers' many files, and with this
    option it stays out of file systems that an interrupted build may have left mounted inside."""
    subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=False)


def _fill(work: Path, result: Path) -> None:
    root, kernel, log = work / "root", work / "kernel", work / "build.log"
    with Step("board image: fetching Debian packages") as step, ThreadPoolExecutor() as pool:
        jobs = {
            "root": pool.submit(mmdebstrap, "apt", ROOT_PACKAGES, root, work / "root.log"),
            "kernel": pool.submit(mmdebstrap, "extract", KERNEL_PACKAGES, kernel, work / "kernel.log"),
        }
        while not all(job.done() for job in jobs.values()):
            notes = [(name, tail(work / f"{name}.log", 1)[:50].removeprefix("I: ")) for name in jobs]
            step.note = ", ".join(f"{name}: {note}" for name, note in notes if note)
            time.sleep(1)
        for job in jobs.values():
            job.result()
    version = _kernel_version(kernel)
    with Step(f"board image: building the kernel module for {version}"):
        module = _build_module(kernel, version, log)
    with Step("board image: assembling"):
        modules = _install_kernel(kernel, root, version, module, log)
        _initramfs(kernel, modules, result / "initrd")
        shutil.copy(kernel / "boot" / f"vmlinuz-{version}", result / "vmlinuz")
        _install_assets(root, work, log)
        packages = _packages(root)
        _empty_identity(root)
    with Step("board image: writing the disk"):
        disk = result / "root.img"
        with disk.open("wb") as out:
            out.truncate(ROOT_SIZE_MIB * 2**20)
        argv = ["mkfs.ext4", "-q", "-F", "-L", "edge-moe-root", "-m", "1", "-d", str(root), str(disk)]
        run_logged(argv, log, "writing the disk image", env=_tool_env())
    info = {
        "stamp": stamp(),
        "suite": SUITE,
        "kernel": version,
        "user": USER,
        "packages": packages,
        "disk_bytes": disk.stat().st_blocks * 512,
    }
    (result / "image.json").write_text(json.dumps(info, indent=2) + "\n")


def _tool_env() -> dict[str, str]:
    # A user's PATH on Debian has no sbin, where mkfs and chroot live.
    return {**os.environ, "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}


def _host_apt_options() -> list[str]:
    """The host's own settings for reaching a mirror (proxy, clock tolerance) hold for these downloads as well."""
    try:
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return []
    wanted = ("acquire::http::proxy", "acquire::https::proxy", "acquire::check-valid-until", "acquire::check-date")
    return [line for line in dump.splitlines() if line.split(" ", 1)[0].lower() in wanted]


def mmdebstrap(variant: str, packages: Iterable[str], target: Path, log: Path, options: Iterable[str] = ()) -> None:
    """Fills a folder, or an archive if it is named so, with packages of Debian."""
    argv = ["mmdebstrap", f"--variant={variant}", "--architectures=amd64", f"--keyring={keyring()}", *options]
    argv += [f"--include={','.join(packages)}"]
    argv += [f"--aptopt={option}" for option in _host_apt_options()]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    argv += [SUITE, str(target)]
    mirror = os.environ.get("EDGE_MOE_DEBIAN_MIRROR")
    if mirror:
        argv.append(mirror)
    run_logged(argv, log, f"fetching Debian packages for {target.name}", env=_tool_env())


def _kernel_version(kernel: Path) -> str:
    versions = sorted(path.name.removeprefix("vmlinuz-") for path in (kernel / "boot").glob("vmlinuz-*"))
    if len(versions) != 1:
        raise TestbedError(f"expected one kernel in linux-image-amd64, found {versions or 'none'}")
    return versions[0]


def _chroot(folder: Path, argv: list[str], log: Path, what: str) -> None:
    run_logged(["chroot", str(folder), *argv], log, what, env={"PATH": "/usr/sbin:/usr/bin", "LC_ALL": "C.UTF-8"})


def _build_module(kernel: Path, version: str, log: Path) -> Path:
    # Unpacked packages have no alternatives set up; the build calls awk by that name.
    awk = kernel / "usr/bin/awk"
    if not awk.exists():
        awk.symlink_to("mawk")
    source = kernel / "edge-moe"
    shutil.copytree(ASSETS / "kmod", source)
    argv = ["make", "-C", f"/usr/src/linux-headers-{version}", "M=/edge-moe", "modules"]
    _chroot(kernel, argv, log, "building the kernel module")
    return source / "edge_moe_vjetson.ko"


def read_dependencies(text: str) -> dict[str, tuple[str, list[str]]]:
    """modules.dep as module name -> (file, files it needs); names have underscores, as in lsmod."""
    table = {}
    for line in text.splitlines():
        file, _, needs = line.partition(":")
        name = Path(file).name.split(".ko", 1)[0].replace("-", "_")
        table[name] = (file, needs.split())
    return table


def load_order(wanted: Iterable[str], table: dict[str, tuple[str, list[str]]], builtin: set[str]) -> list[str]:
    """The files of the wanted modules and all they need, each after what it needs."""
    order: list[str] = []
    for name in wanted:
        if name in builtin:
            continue
        if name not in table:
            raise TestbedError(f"Debian's kernel has no module {name}: the list in image.py needs an update")
        file, needs = table[name]
        # depmod lists the nearest need first, and insmod wants the farthest first.
        for each in [*reversed(needs), file]:
            if each not in order:
                order.append(each)
    return order


def _install_kernel(kernel: Path, root: Path, version: str, module: Path, log: Path) -> dict[str, bytes]:
    """Puts the needed modules on the root disk; returns those for the initramfs, in load order."""
    _chroot(kernel, ["depmod", version], log, "reading the kernel's modules")
    source = kernel / "usr/lib/modules" / version
    target = root / "usr/lib/modules" / version
    table = read_dependencies((source / "modules.dep").read_text())
    builtin = {
        Path(line).name.split(".ko", 1)[0].replace("-", "_")
        for line in (source / "modules.builtin").read_text().splitlines()
    }
    for file in load_order(ROOT_MODULES, table, builtin):
        _copy_module(source / file, target / file.removesuffix(".xz"))
    _copy_module(module, target / "extra" / module.name)
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copy(source / name, target / name)
    _chroot(root, ["depmod", version], log, "indexing the kernel modules")
    files = load_order(INITRAMFS_MODULES, table, builtin)
    return {Path(file).name.removesuffix(".xz"): (target / file.removesuffix(".xz")).read_bytes() for file in files}


def _copy_module(source: Path, target: Path) -> None:
    """Unpacked, as decompressing costs an emulated processor more than reading."""
    target.parent.mkdir(parents=True, exist_ok=True)
    data = source.read_bytes()
    target.write_bytes(lzma.decompress(data) if source.suffix == ".xz" else data)


def cpio_entry(name: str, mode: int, data: bytes, inode: int) -> bytes:
    """One entry of an initramfs archive (the kernel's `newc` form)."""
    encoded = name.encode() + b"\0"
    numbers = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
    head = b"070701" + "".join(f"{number:08X}" for number in numbers).encode() + encoded
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def _initramfs(kernel: Path, modules: dict[str, bytes], target: Path) -> None:
    busybox = (kernel / "usr/bin/busybox").read_bytes()
    applets = ("grep", "insmod", "mount", "poweroff", "sh", "sleep", "switch_root", "umount")
    entries: list[tuple[str, int, bytes]] = [
        (name, stat.S_IFDIR | 0o755, b"") for name in ("bin", "dev", "lib", "proc", "root", "sys")
    ]
    entries.append(("bin/busybox", stat.S_IFREG | 0o755, busybox))
    entries += [(f"bin/{name}", stat.S_IFLNK | 0o777, b"busybox") for name in applets]
    entries += [(f"lib/{name}", stat.S_IFREG | 0o644, data) for name, data in modules.items()]
    entries.append(("modules", stat.S_IFREG | 0o644, "".join(f"{name}\n" for name in modules).encode()))
    entries.append(("init", stat.S_IFREG | 0o755, (ASSETS / "initramfs/init").read_bytes()))
    archive = b"".join(cpio_entry(*entry, inode) for inode, entry in enumerate(entries, start=1))
    target.write_bytes(archive + cpio_entry("TRAILER!!!", 0, b"", 0))


def _copy_tree(source: Path, target: Path) -> None:
    """Copies assets as root's files; scripts become executable by their first line, as archives may lose the bit."""
    for path in asset_files(source):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            place.unlink()
        data = path.read_bytes()
        place.write_bytes(data)
        place.chmod(0o755 if data.startswith(b"#!") else 0o644)


def pack_stand_ins(work: Path, log: Path) -> Path:
    """The Debian package of all that stands in for L4T."""
    package = work / "l4t"
    _copy_tree(ASSETS / "l4t", package)
    for path in [package, *package.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    made = work / "l4t.deb"
    run_logged(["dpkg-deb", "--root-owner-group", "--build", str(package), str(made)], log, "packing the stand-ins")
    return made


def _install_assets(root: Path, work: Path, log: Path) -> None:
    _copy_tree(ASSETS / "rootfs", root)
    (root / "etc/sudoers.d/jetson").chmod(0o440)
    shutil.move(pack_stand_ins(work, log), root / "l4t.deb")
    _chroot(root, ["dpkg", "--install", "/l4t.deb"], log, "installing the stand-ins")
    (root / "l4t.deb").unlink()
    (root / "mnt/nvme").mkdir()
    _chroot(root, [*ADD_USER], log, "adding the board's user")
    _chroot(root, ["systemctl", "enable", *ENABLED_UNITS], log, "enabling units")
    _chroot(root, ["systemctl", "disable", "ssh.socket"], log, "disabling the SSH socket")
    _chroot(root, ["systemctl", "mask", *MASKED_UNITS, *UNSUPPORTED_UNITS], log, "masking units")
    _chroot(root, ["systemctl", "set-default", "multi-user.target"], log, "choosing the boot target")


def _packages(root: Path) -> dict[str, str]:
    """Version of each installed package, for whoever wonders what a board was made of."""
    found: dict[str, str] = {}
    for block in (root / "var/lib/dpkg/status").read_text(encoding="utf-8").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(" "))
        if "Package" in fields and "Version" in fields:
            found[fields["Package"]] = fields["Version"]
    return found


def _empty_identity(root: Path) -> None:
    """Removes what must differ between boards, and what only the build needed."""
    for path in (root / "etc/ssh").glob("ssh_host_*"):
        path.unlink()
    (root / "etc/machine-id").write_text("uninitialized\n")
    (root / "var/lib/dbus/machine-id").unlink(missing_ok=True)
    (root / "etc/hostname").write_text("virtual-jetson\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    for folder in ("var/cache/apt", "var/lib/apt/lists", "var/log/apt"):
        for path in (root / folder).rglob("*"):
            if path.is_file():
                path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the virtual board's image (started with sudo by the test bed)")
    parser.add_argument("--into", type=Path, required=True, help="folder the finished image gets")
    parser.add_argument("--owner", required=True, help="UID:GID that shall own it")
    args = parser.parse_args()
    user, _, group = args.owner.partition(":")
    try:
        build(args.into, (int(user), int(group)))
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
