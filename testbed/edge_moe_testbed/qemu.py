# SPDX-License-Identifier: GPL-3.0-or-later
"""QEMU: which acceleration works here, and the command line of a board."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from edge_moe_testbed.common import Step, TestbedError, home, say

QEMU = "qemu-system-x86_64"
PROBE_LIMIT_S = 15
PROBE_ANSWER = b"edge-moe: probe ok"
NVME_SERIAL = "edge-moe-nvme"
ACCELERATORS = ("kvm", "tcg")


@dataclass(frozen=True)
class Machine:
    """What one board consists of; paths are those of the board's folder and of the shared image."""

    name: str
    folder: Path
    image: Path
    port: int
    memory_mib: int
    cpus: int
    nvme_mbps: int | None
    accelerator: str


def base_arguments(accelerator: str) -> list[str]:
    accel = "kvm" if accelerator == "kvm" else "tcg,thread=multi"
    return ["-accel", accel, "-machine", "q35,usb=off,vmport=off", "-cpu", "max", "-display", "none", "-nodefaults"]


def quoted(value: str | Path) -> str:
    """A value inside a QEMU option: a comma would start the next key."""
    return str(value).replace(",", ",,")


def command(machine: Machine) -> list[str]:
    """The whole command line. QEMU detaches itself once everything is set up, so errors still reach the caller."""
    folder = machine.folder
    throttle = f",throttling.bps-total={machine.nvme_mbps * 1_000_000}" if machine.nvme_mbps else ""
    # `quiet` keeps the serial port, slow when emulated, for what matters: the init system and errors.
    kernel = "root=/dev/vda rw console=ttyS0 quiet mitigations=off net.ifnames=0 audit=0 random.trust_cpu=on panic=-1"
    # The console is a file, not a terminal that could answer queries or show colours.
    kernel += " TERM=dumb"
    seeds = {
        "host_key": folder / "ssh_host_ed25519_key",
        "host_key.pub": folder / "ssh_host_ed25519_key.pub",
        "authorized_keys": folder / "id_ed25519.pub",
        "hostname": folder / "hostname",
    }
    argv = [QEMU, "-name", f"edge-moe-{machine.name}", *base_arguments(machine.accelerator)]
    argv += ["-smp", str(machine.cpus), "-m", str(machine.memory_mib)]
    argv += ["-kernel", str(machine.image / "vmlinuz"), "-initrd", str(machine.image / "initrd"), "-append", kernel]
    argv += ["-drive", f"if=none,id=root,format=qcow2,file={quoted(folder / 'root.qcow2')}"]
    argv += ["-device", "virtio-blk-pci,drive=root"]
    argv += ["-drive", f"if=none,id=nvme,format=raw,discard=unmap,file={quoted(folder / 'nvme.img')}{throttle}"]
    argv += ["-device", f"nvme,drive=nvme,serial={NVME_SERIAL}"]
    argv += ["-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{machine.port}-:22"]
    # Nothing boots from the network, and the boot ROM for it is a package that need not be there.
    argv += ["-device", "virtio-net-pci,netdev=net,romfile="]
    argv += ["-device", "virtio-rng-pci"]
    for key, path in seeds.items():
        argv += ["-fw_cfg", f"name=opt/edge-moe/{key},file={quoted(path)}"]
    argv += ["-chardev", f"file,id=console,path={quoted(folder / 'console.log')}", "-serial", "chardev:console"]
    argv += ["-pidfile", str(folder / "qemu.pid"), "-daemonize"]
    return argv


def probe_command(image: Path) -> list[str]:
    """Boots the real kernel far enough for the initramfs to answer and power off."""
    kernel = "console=ttyS0 quiet panic=-1 edge-moe.probe"
    argv = [QEMU, *base_arguments("kvm"), "-m", "256", "-no-reboot", "-serial", "stdio"]
    return [*argv, "-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd"), "-append", kernel]


def kvm_works(image: Path) -> tuple[bool, str]:
    """Tries KVM for real. Its device node may exist and accept a machine whose kernel then never starts."""
    if not os.path.exists("/dev/kvm"):
        return False, "there is no /dev/kvm"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False, "no permission for /dev/kvm (is this user in the group kvm?)"
    try:
        done = subprocess.run(
            probe_command(image), stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"a kernel under KVM gave no answer within {PROBE_LIMIT_S} s"
    except OSError as error:
        raise TestbedError(f"cannot run {QEMU}: {error.strerror}; try: sudo apt-get install qemu-system-x86") from error
    if PROBE_ANSWER in done.stdout:
        return True, "a kernel booted under KVM"
    last = done.stderr.decode(errors="replace").strip().splitlines()
    return False, f"a kernel under KVM did not boot ({last[-1] if last else 'no message'})"


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def accelerator(image: Path) -> str:
    """kvm or tcg. The probe's answer holds until the host boots again or the image changes."""
    forced = os.environ.get("EDGE_MOE_ACCEL")
    if forced:
        if forced not in ACCELERATORS:
            raise TestbedError(f"EDGE_MOE_ACCEL is {forced!r}; it accepts {' or '.join(ACCELERATORS)}")
        say(f"acceleration: {forced} (EDGE_MOE_ACCEL)")
        return forced
    cache = home() / "kvm-probe.json"
    key = {"boot_id": _boot_id(), "image": image.name, "user": os.geteuid()}
    try:
        known = json.loads(cache.read_text())
    except (OSError, ValueError):
        known = {}
    if not isinstance(known, dict) or any(known.get(name) != value for name, value in key.items()):
        with Step(f"trying KVM (at most {PROBE_LIMIT_S} s)"):
            works, reason = kvm_works(image)
        known = {**key, "works": works, "reason": reason}
        cache.write_text(json.dumps(known) + "\n")
    name = "kvm" if known["works"] else "tcg"
    say(f"acceleration: {'KVM' if known['works'] else 'TCG (emulation)'}, as {known['reason']}")
    return name
