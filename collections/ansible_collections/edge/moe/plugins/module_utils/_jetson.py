# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a Jetson says about itself: pure parsers of its files and tools, and the one function that gathers them.

Private to this collection: it may change in any release.
Boards print more forms than anyone has listed, so each parser takes what it understands and returns None for the rest.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _power, _prometheus, _sensors
from ansible_collections.edge.moe.plugins.module_utils._devfreq import Node, Sysfs
from ansible_collections.edge.moe.plugins.module_utils._host import Host, decode

# The device tree's `compatible` list is the only name of a board that carriers and modules do not get wrong.
BOARDS = {
    "nvidia,p3768-0000+p3767-0005": "orin-nano-8gb",
    "nvidia,p3768-0000+p3767-0003": "orin-nano-8gb",
    "nvidia,p3768-0000+p3767-0004": "orin-nano-4gb",
    "nvidia,p3768-0000+p3767-0001": "orin-nx-8gb",
    "nvidia,p3768-0000+p3767-0000": "orin-nx-16gb",
    "nvidia,p3737-0000+p3701-0000": "agx-orin-32gb",
    "nvidia,p3737-0000+p3701-0004": "agx-orin-32gb",
    "nvidia,p3737-0000+p3701-0005": "agx-orin-64gb",
    "nvidia,p3737-0000+p3701-0008": "agx-orin-industrial",
    "nvidia,p3971-0050+p3834-0005": "thor-t4000",
    "nvidia,p3971-0089+p3834-0008": "thor-t5000",
}
# A carrier that is not NVIDIA's keeps the module's own number at the end of the entry.
MODULES = {
    "p3767-0005": "orin-nano-8gb",
    "p3767-0003": "orin-nano-8gb",
    "p3767-0004": "orin-nano-4gb",
    "p3767-0001": "orin-nx-8gb",
    "p3767-0000": "orin-nx-16gb",
    "p3701-0000": "agx-orin-32gb",
    "p3701-0004": "agx-orin-32gb",
    "p3701-0005": "agx-orin-64gb",
    "p3701-0008": "agx-orin-industrial",
    "p3834-0005": "thor-t4000",
    "p3834-0008": "thor-t5000",
}
# Public tables disagree and lag behind; a release that is not here is reported as null, never guessed.
JETPACK_BY_L4T = {
    "34.1.0": "5.0",
    "34.1.1": "5.0.1",
    "35.1.0": "5.0.2",
    "35.2.1": "5.1",
    "35.3.1": "5.1.1",
    "35.4.1": "5.1.2",
    "35.5.0": "5.1.3",
    "35.6.0": "5.1.4",
    "35.6.1": "5.1.5",
    "36.3.0": "6.0",
    "36.4.0": "6.1",
    "36.4.3": "6.2",
    "36.4.4": "6.2.1",
    "36.4.7": "6.2.1",
    "36.5.0": "6.2.2",
    "38.2.0": "7.0",
    "38.2.1": "7.0",
    "38.2.2": "7.0",
    "39.2.0": "7.2",
}
_SOC = re.compile(r"^nvidia,(tegra\d+)$")
_MODULE = re.compile(r"(p\d{4}-\d{4})(-super)?$")


def parse_compatible(data: bytes) -> list[str]:
    """The entries of a device tree string list: separated and ended by NUL."""
    return [text for text in (decode(part).strip() for part in data.split(b"\0")) if text]


def identify(compatible: list[str]) -> tuple[str | None, bool | None, str | None]:
    """Board, Super clocks offered by the firmware, and SoC, from the `compatible` list."""
    board: str | None = None
    super_clocks: bool | None = None
    soc: str | None = None
    for entry in compatible:
        name = entry.lower()
        soc_match = _SOC.match(name)
        if soc is None and soc_match:
            soc = soc_match.group(1)
        if board is None:
            is_super = name.endswith("-super")
            base = name[: -len("-super")] if is_super else name
            module = _MODULE.search(name)
            found = BOARDS.get(base) or (MODULES.get(module.group(1)) if module else None)
            if found:
                board, super_clocks = found, is_super
    return board, super_clocks, soc


def parse_nv_tegra_release(text: str) -> str | None:
    """`36.4.7` from the first line of /etc/nv_tegra_release."""
    match = re.search(r"#?\s*R(\d+)\s*\(release\)\s*,\s*REVISION:\s*(\d+(?:\.\d+)*)", text)
    if match is None:
        return None
    revision = match.group(2).split(".")
    # A revision of one number stands for X.0: every release has three parts.
    return ".".join([match.group(1), *revision, "0"] if len(revision) == 1 else [match.group(1), *revision])


def parse_l4t_package(version: str) -> str | None:
    """`36.4.3` from the package version `36.4.3-20250107174145`."""
    match = re.match(r"\s*(\d+\.\d+(?:\.\d+)?)(?=[-+~\s]|$)", version)
    if match is None:
        return None
    release = match.group(1)
    return release if release.count(".") == 2 else release + ".0"


def parse_packages(text: str) -> dict[str, tuple[str, str]]:
    """Package to (status, version), from dpkg-query lines `status<TAB>package<TAB>version`."""
    packages: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == 3 and fields[1]:
            packages[fields[1].strip()] = (fields[0].strip(), fields[2].strip())
    return packages


def parse_meminfo(text: str) -> dict[str, int]:
    """Bytes by name, from /proc/meminfo."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        match = re.match(r"\s*([A-Za-z0-9_()]+):\s+(\d{1,18})(\s+kB)?\s*$", line)
        if match:
            values[match.group(1)] = int(match.group(2)) * (1024 if match.group(3) else 1)
    return values


def parse_swaps(text: str) -> list[dict[str, Any]]:
    """Swap areas in use, from /proc/swaps (sizes there are KiB)."""
    swaps: list[dict[str, Any]] = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 5 or fields[0] == "Filename":
            continue
        # A path may hold spaces; the four fields after it never do.
        device, size, used = " ".join(fields[:-4]), fields[-3], fields[-2]
        if not (size.isdigit() and used.isdigit()):
            continue
        device = device.replace("\\040", " ")
        swaps.append(
            {
                "device": device,
                "zram": os.path.basename(device).startswith("zram"),
                "size_bytes": int(size) * 1024,
                "used_bytes": int(used) * 1024,
            }
        )
    return swaps


def parse_cpu_list(text: str) -> int | None:
    """How many CPUs a kernel list like `0-3,6` names."""
    total = 0
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())
        if match is None:
            return None
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if last < first:
            return None
        total += last - first + 1
    return total


def parse_scheduler(text: str) -> str | None:
    """The chosen one of `none [mq-deadline] kyber`."""
    match = re.search(r"\[([\w.-]+)\]", text)
    if match:
        return match.group(1)
    words = text.split()
    return words[0] if len(words) == 1 else None


def parse_cuda_version_json(text: str) -> str | None:
    match = re.search(r'"cuda"\s*:\s*\{[^{}]*"version"\s*:\s*"([^"]{1,32})"', text)
    return match.group(1) if match else None


def parse_nvcc_version(text: str) -> str | None:
    match = re.search(r"\brelease\s+(\d+(?:\.\d+)*)", text)
    return match.group(1) if match else None


def parse_cgroup_version(mounts: str) -> int | None:
    """2 only where the unified hierarchy is mounted at /sys/fs/cgroup itself.

    Hybrid machines mount it one directory below; there the memory limits of a unit are those of version 1.
    """
    version: int | None = None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[1].startswith("/sys/fs/cgroup"):
            if fields[2] == "cgroup2" and fields[1] == "/sys/fs/cgroup":
                return 2
            if fields[2] == "cgroup":
                version = 1
    return version


def _nvme_devices(host: Host, warnings: list[str]) -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = []
    for name in host.entries("/sys/block"):
        # nvme0c0n1 is one path of a multipath device, which is listed under its own name.
        if not re.fullmatch(r"nvme\d+n\d+", name):
            continue
        base = f"/sys/block/{name}"
        sectors = host.read_int(f"{base}/size")
        scheduler = host.read_text(f"{base}/queue/scheduler", 1024)
        controller = name[: name.rindex("n")]
        devices.append(
            {
                "name": name,
                "model": host.read_text(f"{base}/device/model", 1024),
                # The kernel counts sectors of 512 bytes whatever the device's own block size is.
                "size_bytes": None if sectors is None else sectors * 512,
                "read_ahead_kb": host.read_int(f"{base}/queue/read_ahead_kb"),
                "scheduler": None if scheduler is None else parse_scheduler(scheduler),
                "health": _sensors.nvme_health(host, controller, warnings),
            }
        )
    return devices


def _jetson_clocks(host: Host, gpu_nodes: list[Node]) -> bool | None:
    """Whether someone pinned the GPU clock. Our own floor also lifts the minimum, and is no pin."""
    nodes = [node for node in gpu_nodes if node.min_hz is not None and node.max_hz is not None]
    if not nodes:
        return None
    if not any(node.pinned for node in nodes):
        return False
    floor = _prometheus.parse(host.read_text("/run/edge-moe/clock-floor.prom") or "")
    return _prometheus.value(floor.samples, "edge_moe_clock_floor_raised") != 1


def _l4t(host: Host, packages: dict[str, tuple[str, str]], is_jetson: bool, warnings: list[str]) -> dict[str, Any]:
    release_text = host.read_text("/etc/nv_tegra_release", 8192)
    release = parse_nv_tegra_release(release_text) if release_text is not None else None
    core = packages.get("nvidia-l4t-core")
    package = core[1] if core and core[1] else None
    package_release = parse_l4t_package(package) if package else None
    agree = None if release is None or package_release is None else release == package_release
    if is_jetson:
        if release_text is None:
            warnings.append("/etc/nv_tegra_release is missing")
        elif release is None:
            warnings.append(f"/etc/nv_tegra_release does not name a release: {release_text[:80]!r}")
        if package_release is None:
            warnings.append("no version of the package nvidia-l4t-core from dpkg-query")
        if agree is False:
            warnings.append(
                f"L4T is {release} by /etc/nv_tegra_release and {package_release} by the package nvidia-l4t-core: "
                "a half-finished upgrade; finish it before you rely on this board"
            )
        versions = sorted(
            {
                found
                for name, (status, version) in packages.items()
                if name.startswith("nvidia-l4t-")
                and version
                # A removed package that left its settings behind is not part of the release.
                and status[1:2] == "i"
                and (found := parse_l4t_package(version))
            }
        )
        if len(versions) > 1:
            warnings.append("packages nvidia-l4t-* of several releases are installed: " + ", ".join(versions))
    return {
        # The package is what is installed; the file may be left over from before an upgrade.
        "version": package_release or release,
        "release_file": release,
        "package": package,
        "agree": agree,
    }


def _memory(host: Host, is_jetson: bool, warnings: list[str]) -> dict[str, Any]:
    """What the kernel counts. A large GPU allocation can fail while much is free: CMA, NvMap and blocks tell why."""
    meminfo = parse_meminfo(host.read_text("/proc/meminfo") or "")
    if not meminfo.get("MemTotal"):
        warnings.append("/proc/meminfo gives no MemTotal")
    nvmap = _sensors.parse_nvmap_clients(host.read_text("/sys/kernel/debug/nvmap/iovmm/clients") or "")
    if is_jetson and nvmap is None:
        warnings.append("what NvMap holds is not known: /sys/kernel/debug/nvmap/iovmm/clients is missing or closed")
    largest = _sensors.parse_largest_free_block(host.read_text("/proc/buddyinfo") or "", host.page_bytes())
    if is_jetson and largest is None:
        warnings.append("the largest free block is not known: /proc/buddyinfo is missing, closed or empty")
    return {
        "total_bytes": meminfo.get("MemTotal"),
        "available_bytes": meminfo.get("MemAvailable"),
        "cma_total_bytes": meminfo.get("CmaTotal"),
        "cma_free_bytes": meminfo.get("CmaFree"),
        "nvmap_bytes": nvmap,
        "largest_free_block_bytes": largest,
    }


def gather(host: Host) -> dict[str, Any]:
    """The whole fact set. What cannot be read is None and leaves a warning."""
    warnings: list[str] = []
    compatible_data = host.read_bytes("/proc/device-tree/compatible", 4096)
    compatible = parse_compatible(compatible_data) if compatible_data else []
    board, super_clocks, soc = identify(compatible)
    is_jetson = board is not None or soc is not None
    model = host.read_text("/proc/device-tree/model", 4096) or None

    if not is_jetson:
        if compatible:
            read = "/proc/device-tree/compatible says " + ", ".join(compatible[:4])
        elif compatible_data is not None:
            read = "/proc/device-tree/compatible is empty"
        else:
            read = "there is no readable /proc/device-tree/compatible"
        product = host.read_text("/sys/class/dmi/id/product_name", 256)
        if product:
            read += f", /sys/class/dmi/id/product_name says {product}"
        warnings.append(f"this machine is no Jetson: {read}")
    elif board is None:
        warnings.append(f"a {soc} of a board that is not known here: {', '.join(compatible[:4])}")

    dpkg = host.command(["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}\\t${Package}\\t${Version}\\n"])
    packages = parse_packages(dpkg.stdout)
    if is_jetson and not packages:
        warnings.append(f"no package list: dpkg-query: {dpkg.problem or dpkg.stderr.strip() or 'printed nothing'}")

    l4t = _l4t(host, packages, is_jetson, warnings)
    jetpack = JETPACK_BY_L4T.get(l4t["version"] or "")
    if is_jetson and l4t["version"] and jetpack is None:
        warnings.append(f"no JetPack is known here for L4T {l4t['version']}")

    nodes = Sysfs(host.root).gpu_nodes()
    zones = _sensors.thermal_zones(host)
    if is_jetson and not zones:
        warnings.append("no thermal zone in /sys/class/thermal")

    cuda: dict[str, Any] | None = None
    nvcc = "/usr/local/cuda/bin/nvcc"
    if host.exists(nvcc):
        version = parse_cuda_version_json(host.read_text("/usr/local/cuda/version.json") or "")
        if version is None:
            version = parse_nvcc_version(host.command([host.path(nvcc), "--version"]).stdout)
        cuda = {"version": version, "nvcc": nvcc}
    elif is_jetson:
        warnings.append(f"no CUDA compiler: {nvcc} does not exist")

    mounts = host.read_text("/proc/self/mounts") or host.read_text("/proc/mounts") or ""
    return {
        "is_jetson": is_jetson,
        "board": board,
        "compatible": compatible,
        "model": model,
        "super": super_clocks,
        "soc": soc,
        "l4t": l4t,
        "jetpack": jetpack,
        "kernel": host.read_text("/proc/sys/kernel/osrelease", 256) or os.uname().release,
        "cgroup_version": parse_cgroup_version(mounts),
        "uprobes": host.exists("/sys/bus/event_source/devices/uprobe/type")
        or host.exists("/sys/kernel/tracing/uprobe_events"),
        "btf": host.exists("/sys/kernel/btf/vmlinux"),
        "power_mode": _power.power_mode(host, super_clocks, nodes, warnings) if is_jetson else None,
        "memory": _memory(host, is_jetson, warnings),
        "swap": parse_swaps(host.read_text("/proc/swaps") or ""),
        "nvme": _nvme_devices(host, warnings if is_jetson else []),
        "thermal": zones,
        "cuda": cuda,
        "jetson_clocks": _jetson_clocks(host, nodes),
        "cores": parse_cpu_list(host.read_text("/sys/devices/system/cpu/online", 1024) or "") or host.cpu_count(),
        "held_packages": sorted(name for name, (status, _version) in packages.items() if status.startswith("h")),
        "warnings": warnings,
    }
