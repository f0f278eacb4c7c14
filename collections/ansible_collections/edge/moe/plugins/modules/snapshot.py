#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: snapshot
short_description: What a board was like before the roles changed it
version_added: 1.0.0
description:
  - Records once, in one file on the board, what the roles will change - packages and holds, states of units, power
    mode, swap, read-ahead of the drives, GPU clocks, users and groups, and files in the places where roles write.
  - A snapshot that is there is never overwritten, so that it also outlives a first run that failed. Only the names of
    packages that roles are about to install are added to it.
  - Later it compares the board with its snapshot, and tells what would put back the settings that are the board's own.
    It puts nothing back itself.
author:
  - edge.moe contributors (@edge-moe)
attributes:
  check_mode:
    description: Can run in check mode and say what would change.
    support: full
  diff_mode:
    description: Tells which snapshot would be written, extended or removed.
    support: full
  platform:
    description: Target operating systems.
    support: full
    platforms: posix
options:
  state:
    description:
      - V(recorded) records unless there is a snapshot.
      - V(compared) changes nothing and needs no snapshot.
      - V(forgotten) compares, and removes the snapshot and its folder, if that is empty then, unless something is left
        that could be put back.
    type: str
    choices: [recorded, compared, forgotten]
    default: recorded
  path:
    description: The snapshot's file on the board, readable by root alone.
    type: path
    default: /var/lib/edge-moe/snapshot.json
  folders:
    description: Folders to look into beside the usual ones, for roles that write elsewhere.
    type: list
    elements: path
    default: []
  adding:
    description: Packages that are about to be installed, so that it is known later who brought them.
    type: list
    elements: str
    default: []
  kept:
    description: Why a path is left, by path. It is told of all that lies below it, too.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Record what the board is like before the first change
  edge.moe.snapshot:
    adding: [libgomp1]

- name: Compare it with what it was
  edge.moe.snapshot:
    state: compared
  register: found
"""

RETURN = r"""
taken:
  description: When the snapshot was taken, in UTC. V(null) if there is none.
  returned: success
  type: str
  sample: "2026-11-29T10:00:00Z"
late:
  description: Files of the roles that were there when the snapshot was taken, so that it does not tell what was before.
  returned: success
  type: list
  elements: str
  sample: []
before:
  description: What was there before, empty without a snapshot and for a late one.
  returned: when O(state) is not V(recorded)
  type: dict
  contains:
    files: {description: "Fingerprints of files and folders, by path.", type: dict}
    accounts: {description: "C(user) and C(group), each by name.", type: dict}
units:
  description: States of the unit files that are there now, by name.
  returned: when O(state) is not V(recorded)
  type: dict
  sample: {nvzramconfig.service: disabled}
undo:
  description: What puts back the board's own settings. Each is empty, or V(null), where there is nothing to do.
  returned: when O(state) is not V(recorded)
  type: dict
  contains:
    purge: {description: Packages that roles brought and nothing needs., type: list, elements: str}
    remove: {description: Such packages of which settings were there before., type: list, elements: str}
    unhold: {description: Packages that were not on hold., type: list, elements: str}
    enable: {description: Units that were enabled., type: list, elements: str}
    start: {description: Units whose swap is missing., type: list, elements: str}
    swap_on: {description: "Priority of each swap device that is off and ready, by device.", type: dict}
    power_mode: {description: The power mode by name., type: str}
    read_ahead_kb: {description: "Read-ahead in KiB, by drive.", type: dict}
left:
  description: Whether anything in RV(undo) is not empty.
  returned: when O(state) is not V(recorded)
  type: bool
differences:
  description: One line for each thing that is not as it was, with the reason.
  returned: when O(state) is not V(recorded)
  type: list
  elements: str
  sample: ["file /opt/edge-moe: not there -> folder 0755 0:0 (changed since, and no role did it)"]
"""

import contextlib
import json
import os
import tempfile
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import _snapshot
from ansible_collections.edge.moe.plugins.module_utils._host import Host, decode, read_bounded
from ansible_collections.edge.moe.plugins.module_utils._values import line, mapping

SNAPSHOT_LIMIT = 16 * 1024**2
APT_S = 120.0


class Unreadable(Exception):
    """The snapshot's file is not what this module writes."""


def load(path: str) -> dict[str, Any] | None:
    """The snapshot, None where there is no file."""
    if not os.path.lexists(path):
        return None
    data = read_bounded(path, SNAPSHOT_LIMIT)
    if data is None:
        raise Unreadable(f"{path} is no snapshot: it is no file that this user may read")
    try:
        found = json.loads(decode(data))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path} is no snapshot: {error}") from error
    if mapping(found).get("format") != _snapshot.FORMAT or not isinstance(found.get("board"), dict):
        raise Unreadable(f"{path} is no snapshot of format {_snapshot.FORMAT}")
    return mapping(found)


def names(value: Any) -> list[str]:
    """Package names of a list; what else is in it is left out."""
    entries = value if isinstance(value, list) else []
    return sorted({name for name in entries if isinstance(name, str) and _snapshot.PACKAGE.fullmatch(name)})


def store(path: str, snapshot: dict[str, Any]) -> None:
    """Write it beside and rename, so that it is whole or not there even if the board loses power."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            json.dump(snapshot, handle, indent=1)
            handle.flush()
            os.fsync(handle.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def simulation(module: AnsibleModule, host: Host) -> Any:
    """What apt-get would remove with some packages, and with those that nothing needs then."""

    def simulate(packages: list[str], unneeded: bool) -> list[str]:
        argv = ["apt-get", "--simulate", "--auto-remove" if unneeded else "--no-auto-remove"]
        # what is only suggested by another package is not needed by it
        argv += ["--option", "APT::AutoRemove::SuggestsImportant=false", "purge", *packages]
        result = host.command(argv, APT_S)
        if result.rc != 0:
            said = result.problem or (result.stderr.strip().splitlines() or ["no word"])[-1]
            module.fail_json(msg=f"apt-get cannot tell what would go with {', '.join(packages)}: {said}")
        return _snapshot.parse_simulation(result.stdout)

    return simulate


def record(module: AnsibleModule, host: Host, snapshot: dict[str, Any] | None) -> None:
    path, adding = module.params["path"], names(module.params["adding"])
    written = snapshot
    if written is None:
        written = {
            "format": _snapshot.FORMAT,
            "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "late": _snapshot.traces(host),
            "added": [],
            "board": _snapshot.gather(host, module.params["folders"]),
        }
    added = names(written.get("added"))
    new = sorted(set(adding) - set(added))
    changed = snapshot is None or bool(new)
    if changed and not module.check_mode:
        store(path, {**written, "added": sorted({*added, *new})})
    module.exit_json(
        changed=changed,
        taken=written.get("taken"),
        late=written.get("late"),
        diff={
            "before": "" if snapshot is None else f"taken: {snapshot.get('taken')}\nadded: {' '.join(added)}\n",
            "after": f"taken: {written.get('taken')}\nadded: {' '.join(sorted({*added, *new}))}\n",
            "before_header": path,
            "after_header": path,
        },
    )


def compare(module: AnsibleModule, host: Host, snapshot: dict[str, Any] | None, forget: bool) -> None:
    path = module.params["path"]
    before = mapping(mapping(snapshot).get("board"))
    accounts = mapping(before.get("accounts"))
    traces = mapping(snapshot).get("late")
    late = [line(trace) for trace in traces] if isinstance(traces, list) else []
    now = _snapshot.gather(host, module.params["folders"])
    now["files"].update(_snapshot.found_again(host, before.get("files"), now["files"]))
    goes, needed = _snapshot.removable(
        names(mapping(snapshot).get("added")),
        mapping(before.get("packages")),
        now["packages"],
        simulation(module, host),
    )
    undo = _snapshot.undo(before, now, goes)
    left = any(undo.values())
    forgets = forget and snapshot is not None and not left
    folder, kept = os.path.dirname(path), dict(module.params["kept"])
    if forgets:
        if not module.check_mode:
            os.unlink(path)
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(folder)
        now["files"] = {name: seen for name, seen in now["files"].items() if name != path and os.path.lexists(name)}
    else:
        kept[path] = "the snapshot itself, kept as long as something can be put back"
    # a snapshot that came late holds what the roles had made by then
    unknown = ("units", "accounts", "files") if late else ()
    one, other = ({key: part for key, part in look.items() if key not in unknown} for look in (before, now))
    module.exit_json(
        changed=forgets,
        taken=mapping(snapshot).get("taken"),
        late=late,
        before={
            "files": {} if late else mapping(before.get("files")),
            "accounts": {kind: {} if late else mapping(accounts.get(kind)) for kind in ("user", "group")},
        },
        units=now["units"],
        undo=undo,
        left=left,
        differences=[] if snapshot is None else [each.line for each in _snapshot.differences(one, other, needed, kept)],
        diff={
            "before": f"taken: {snapshot.get('taken')}\n" if forgets and snapshot else "",
            "after": "",
            "before_header": path,
            "after_header": path,
        },
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["recorded", "compared", "forgotten"], "default": "recorded"},
            "path": {"type": "path", "default": "/var/lib/edge-moe/snapshot.json"},
            "folders": {"type": "list", "elements": "path", "default": []},
            "adding": {"type": "list", "elements": "str", "default": []},
            "kept": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    path, state = module.params["path"], module.params["state"]
    if os.geteuid() != 0 and os.path.lexists(path) and not os.access(path, os.R_OK):
        module.fail_json(msg=f"{path} is root's alone, and this is another user: use become (ansible_become=true)")
    host = Host()
    try:
        snapshot = load(path)
        if state == "recorded":
            record(module, host, snapshot)
        else:
            compare(module, host, snapshot, forget=state == "forgotten")
    except Unreadable as error:
        module.fail_json(msg=f"{error}. Put the right file back, or remove it, and what was before is lost.")
    except OSError as error:
        module.fail_json(msg=f"cannot write {path}: {error.strerror}. Is this root, and is the file system writable?")


if __name__ == "__main__":
    main()
