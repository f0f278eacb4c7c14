# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a board is like in all that the roles change, what differs from an earlier look, and what would undo it.

Private to this collection: it may change in any release.

A look is a dict that JSON holds, as `gather` makes it. An earlier one comes from a file: its values are checked before
they become an argument of a command, and what is no such value is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ansible_collections.edge.moe.plugins.module_utils import _jetson, _power
from ansible_collections.edge.moe.plugins.module_utils._devfreq import Sysfs, same_hz
from ansible_collections.edge.moe.plugins.module_utils._host import Host, read_bounded
from ansible_collections.edge.moe.plugins.module_utils._values import line, mapping, whole

FORMAT = 1
ZRAM_UNIT = "nvzramconfig.service"
HELD = "nvidia-l4t-"
# Folders in which the roles write, and how deep a look goes.
PLACES = {
    "/etc/default": 1,
    "/etc/edge-moe": 2,
    "/etc/systemd/system": 2,
    "/etc/tmpfiles.d": 1,
    "/etc/udev/rules.d": 1,
    "/opt": 1,
    "/opt/edge-moe": 2,
    "/usr/lib/edge-moe": 2,
    "/usr/local/bin": 1,
    "/var/lib/edge-moe": 2,
}
# Where one of these is, roles were here before the look.
TRACES = (
    "/etc/systemd/system/edge-moe-clock-floor.service",
    "/etc/systemd/system/edge-moe-server.service",
    "/etc/systemd/system/edge-moe.slice",
    "/etc/udev/rules.d/99-edge-moe-nvme.rules",
    "/opt/edge-moe/llama.cpp/current",
)
STATUS_LIMIT = 32 * 1024**2  # dpkg's own list: some 4 MiB on a board with everything of JetPack
HASHED_LIMIT = 1024**2
FILES_LIMIT = 5000
COMMAND_S = 60.0  # systemctl on a board that is busy
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*(?::[a-z0-9-]+)?")
WHY = {
    "package": "changed since, and no role did it",
    "hold": "changed since, and no role did it",
    "unit": "changed since, and no role did it",
    "power mode": "takes effect after a reboot, or was refused",
    "swap": "changed since, and no role did it; the next boot sets it up",
    "read_ahead_kb": "the drive is another one, or refused the value",
    "clock": "written since by something else; a change of the power mode or a reboot sets it anew",
    "account": "changed since, and no role did it",
    "file": "changed since, and no role did it",
}


class Difference(NamedTuple):
    """One thing that is not as it was. `before` and `now` are None where there was, or is, none."""

    what: str
    name: str
    before: str | None
    now: str | None
    why: str

    @property
    def line(self) -> str:
        change = f"{line(self.before) or 'not there'} -> {line(self.now) or 'gone'}"
        return f"{' '.join([self.what, line(self.name)]).rstrip()}: {change} ({self.why})"


# ---- reading ----


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """The fields of each paragraph of dpkg's and apt's files; continued lines are of no use here and are left out."""
    for paragraph in text.split("\n\n"):
        fields = {}
        for raw in paragraph.splitlines():
            name, colon, value = raw.partition(":")
            if colon and name and not name[0].isspace():
                fields[name] = value.strip()
        yield fields


def parse_packages(text: str) -> dict[str, list[str]]:
    """Want, state and version by package. One of several architectures is `name:arch` from the second on."""
    packages: dict[str, list[str]] = {}
    for fields in paragraphs(text):
        words = fields.get("Status", "").split()
        name = fields.get("Package", "")
        if len(words) != 3 or words[2] == "not-installed" or not PACKAGE.fullmatch(name):
            continue
        key = f"{name}:{fields.get('Architecture', '')}" if name in packages else name
        packages[key] = [words[0], words[2], fields.get("Version", "")]
    return packages


def parse_units(text: str) -> dict[str, str]:
    """State by unit file, from `systemctl list-unit-files --no-legend`."""
    return {words[0]: words[1] for words in map(str.split, text.splitlines()) if len(words) >= 2}


def parse_priorities(text: str) -> dict[str, int]:
    """Priority by device of swap in use, from /proc/swaps."""
    last = {row.split()[0]: whole_text(row.split()[-1]) for row in text.splitlines() if row.split()}
    return {swap["device"]: last.get(swap["device"]) or 0 for swap in _jetson.parse_swaps(text)}


def whole_text(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d{1,6}", text) else None


def parse_accounts(text: str) -> dict[str, str]:
    """What follows the name in each line of /etc/passwd or /etc/group, by name."""
    return {row.split(":")[0]: ":".join(row.split(":")[1:]) for row in text.splitlines() if ":" in row}


def fingerprint(path: str) -> str | None:
    """What an entry of a folder is, in a few words that differ when it does; None when it is gone."""
    try:
        state = os.lstat(path)
        if stat.S_ISLNK(state.st_mode):
            return f"link to {os.readlink(path)}"
        owned = f"{state.st_mode & 0o7777:04o} {state.st_uid}:{state.st_gid}"
        if stat.S_ISDIR(state.st_mode):
            return f"folder {owned}"
        if not stat.S_ISREG(state.st_mode):
            return f"special file {owned}"
        if state.st_size > HASHED_LIMIT:
            return f"file {owned} {state.st_size} bytes"
    except OSError:
        return None
    data = read_bounded(path, HASHED_LIMIT)
    return f"file {owned} sha256 {hashlib.sha256(data or b'').hexdigest()[:16]}"


def list_files(host: Host, places: Mapping[str, int]) -> dict[str, str]:
    """A fingerprint of each place and of what lies in it, as many levels deep as its number says."""
    found: dict[str, str] = {}
    pending = list(places.items())
    while pending and len(found) < FILES_LIMIT:
        path, depth = pending.pop()
        seen = fingerprint(host.path(path))
        if seen is None:
            continue
        found[path] = seen
        if depth > 0 and seen.startswith("folder "):
            pending += [(f"{path}/{name}", depth - 1) for name in host.entries(path)]
    return dict(sorted(found.items()))


def found_again(host: Host, before: Any, now: Mapping[str, str]) -> dict[str, str]:
    """What still lies where an earlier look has found something and `now` has not looked, as folders have other names.

    `before` comes from a file: a name that no path can have is of nothing.
    """
    names = [name for name in mapping(before) if os.path.isabs(name) and name not in now][:FILES_LIMIT]
    found: dict[str, str] = {}
    for name in names:
        with contextlib.suppress(ValueError):
            if (seen := fingerprint(host.path(name))) is not None:
                found[name] = seen
    return found


def places_of(folders: Iterable[str]) -> dict[str, int]:
    """The roles' usual places, and folders that an inventory names instead, with all that lead to them."""
    places = dict.fromkeys((parent for folder in folders for parent in parents(folder)), 0)
    return {**places, **dict.fromkeys(folders, 1), **PLACES}


def parents(path: str) -> list[str]:
    found = []
    while (path := os.path.dirname(path)) not in ("", "/"):
        found.append(path)
    return found


def gather(host: Host, folders: Iterable[str] = ()) -> dict[str, Any]:
    """One look at a board: `packages`, `units`, `power_mode`, `swap`, `read_ahead_kb`, `clocks`, `accounts`, `files`.

    What cannot be read is empty or None: then nothing is known of it, and nothing will be undone.
    """
    nodes = Sysfs(host.root).gpu_nodes()
    mode = _power.power_mode(host, None, nodes, [])
    units = host.command(["systemctl", "list-unit-files", "--no-legend", "--no-pager", "--full"], COMMAND_S)
    drives = [name for name in host.entries("/sys/block") if re.fullmatch(r"nvme\d+n\d+", name)]
    zrams = [name for name in host.entries("/sys/block") if re.fullmatch(r"zram\d+", name)]
    ahead = {name: host.read_int(f"/sys/block/{name}/queue/read_ahead_kb") for name in drives}
    return {
        "packages": parse_packages(host.read_text("/var/lib/dpkg/status", STATUS_LIMIT) or ""),
        "units": parse_units(units.stdout),
        "power_mode": mode["name"] if mode else None,
        "swap": parse_priorities(host.read_text("/proc/swaps") or ""),
        "zram_ready": [f"/dev/{name}" for name in zrams if host.read_int(f"/sys/block/{name}/disksize")],
        "read_ahead_kb": {name: kib for name, kib in ahead.items() if kib is not None},
        "clocks": {node.path: [node.min_hz, node.max_hz] for node in nodes},
        "accounts": {
            kind: parse_accounts(host.read_text(f"/etc/{file}", HASHED_LIMIT) or "")
            for kind, file in (("user", "passwd"), ("group", "group"))
        },
        "files": list_files(host, places_of(folders)),
    }


def traces(host: Host) -> list[str]:
    """Files of the roles that are there already: what was before them is not known any more."""
    return [path for path in TRACES if host.exists(path) or host.link_target(path) is not None]


# ---- undoing ----


def parse_simulation(text: str) -> list[str]:
    """Packages that a simulated apt-get would remove."""
    return [name for name in re.findall(r"^(?:Remv|Purg) (\S+)", text, re.MULTILINE) if PACKAGE.fullmatch(name)]


def installed(packages: Mapping[str, Any]) -> set[str]:
    """Names of those that are not just settings left behind."""
    return {
        name
        for name, entry in packages.items()
        if isinstance(entry, list) and len(entry) == 3 and entry[1] != "config-files"
    }


def removable(
    added: Iterable[str],
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    simulate: Callable[[list[str], bool], list[str]],
) -> tuple[list[str], dict[str, list[str]]]:
    """Packages to remove, and those that stay with the ones that need them.

    `added` are the packages that roles installed. One that something else has come to need stays. What came along with
    those that go, goes with them once nothing needs it; what was there before never does. `simulate(names, unneeded)`
    tells all that apt would remove with `names`, and with `unneeded` also what nothing needs then.
    """
    ours = sorted(set(added) & installed(now) - installed(before))
    kept: dict[str, list[str]] = {}
    for name in ours:
        if others := sorted(set(simulate([name], False)) - set(ours)):
            kept[name] = others
    goes = [name for name in ours if name not in kept]
    # two that each may go can be the two that one other accepts
    if goes and (others := sorted(set(simulate(goes, False)) - set(ours))):
        kept.update(dict.fromkeys(goes, others))
        goes = []
    if goes:
        goes += sorted(set(simulate(goes, True)) - set(goes) - installed(before))
    return goes, kept


def undo(before: Mapping[str, Any], now: Mapping[str, Any], goes: Iterable[str]) -> dict[str, Any]:
    """What puts back the board's own settings, each empty or None where nothing is to be done.

    `purge` and `remove` are packages (the latter had settings before), `unhold` packages, `enable` and `start` units,
    `swap_on` priorities by device, `power_mode` a name, `read_ahead_kb` KiB by drive.
    """
    was, present = mapping(before.get("packages")), mapping(now.get("packages"))
    swap_off = {
        device: priority
        for device, value in mapping(before.get("swap")).items()
        if re.fullmatch(r"/dev/zram\d{1,4}", device)
        and device not in now["swap"]
        and (priority := whole(value)) is not None
    }
    # of those that the kernel numbers by itself, below 0, swapon takes -1
    ready = {device: max(-1, priority) for device, priority in swap_off.items() if device in now["zram_ready"]}
    zram = mapping(before.get("units")).get(ZRAM_UNIT)
    mode = before.get("power_mode")
    ahead = {name: whole(kib) for name, kib in mapping(before.get("read_ahead_kb")).items()}
    return {
        "purge": [name for name in goes if name not in was],
        "remove": [name for name in goes if name in was],
        "unhold": sorted(
            name
            for name, entry in present.items()
            if name.startswith(HELD) and entry[0] == "hold" and want(was.get(name)) == "install"
        ),
        "enable": [ZRAM_UNIT] if zram == "enabled" and now["units"].get(ZRAM_UNIT) == "disabled" else [],
        "start": [ZRAM_UNIT] if swap_off and not ready and zram == "enabled" else [],
        "swap_on": ready,
        "power_mode": mode if isinstance(mode, str) and now["power_mode"] and mode != now["power_mode"] else None,
        "read_ahead_kb": {
            name: ahead[name]
            for name, kib in now["read_ahead_kb"].items()
            if ahead.get(name) is not None and ahead[name] != kib
        },
    }


def want(entry: Any) -> str | None:
    return entry[0] if isinstance(entry, list) and len(entry) == 3 else None


# ---- comparing ----


def as_text(value: Any) -> str | None:
    if value is None:
        return None
    return " ".join(str(part) for part in value) if isinstance(value, list) else str(value)


def changes(before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, value before and value now of each entry of two dicts that is not the same in both."""
    was, present = mapping(before), mapping(now)
    for name in sorted({*was, *present}):
        if was.get(name) != present.get(name):
            yield name, was.get(name), present.get(name)


def _clock_changes(before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    for name, was, present in changes(before, now):
        pairs = isinstance(was, list) and isinstance(present, list) and len(was) == len(present)
        if not pairs or not all(same_hz(whole(one), whole(other)) for one, other in zip(was, present, strict=True)):
            yield name, was, present


def differences(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    needed: Mapping[str, list[str]],
    kept: Mapping[str, str],
) -> list[Difference]:
    """All in which two looks differ, each with the reason why it is left so.

    `needed` names those that need a package of ours; `kept` says why a path was left, and all below and above it.
    """
    found = []
    for name, was, present in changes(before.get("packages"), now.get("packages")):
        holds = want(was) and want(present) and was[1:] == present[1:]
        why = "needed by " + ", ".join(needed[name]) if name in needed else WHY["package"]
        found.append(Difference("hold" if holds else "package", name, as_text(was), as_text(present), why))
    for what, entries in (
        ("unit", changes(before.get("units"), now.get("units"))),
        ("power mode", changes({"": before.get("power_mode")}, {"": now.get("power_mode")})),
        ("swap", changes(before.get("swap"), now.get("swap"))),
        ("read_ahead_kb", changes(before.get("read_ahead_kb"), now.get("read_ahead_kb"))),
        ("clock", _clock_changes(before.get("clocks"), now.get("clocks"))),
    ):
        found += [Difference(what, name, as_text(was), as_text(present), WHY[what]) for name, was, present in entries]
    was_accounts = mapping(before.get("accounts"))
    for kind, present_accounts in mapping(now.get("accounts")).items():
        found += [
            Difference(kind, name, as_text(was), as_text(present), WHY["account"])
            for name, was, present in changes(was_accounts.get(kind), present_accounts)
        ]
    found += [
        Difference("file", name, as_text(was), as_text(present), reason_for(name, kept))
        for name, was, present in changes(before.get("files"), now.get("files"))
    ]
    return found


def reason_for(path: str, kept: Mapping[str, str]) -> str:
    for place, why in kept.items():
        if f"{path}/".startswith(f"{place}/") or place.startswith(f"{path}/"):
            return why
    return WHY["file"]
