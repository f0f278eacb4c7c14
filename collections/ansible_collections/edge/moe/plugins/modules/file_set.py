#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: file_set
short_description: Write several text files in one task
version_added: 1.0.0
description:
  - Makes folders, writes the files that differ, and removes files of a kind that are no longer named, and paths that
    are to be gone. All others are left alone.
  - One task and one transfer, where M(ansible.builtin.template) and M(ansible.builtin.copy) take several for each
    file. On a slow board or a long line that is most of a play's time.
  - Each file is replaced atomically.
  - Folders (mode 0755) and files belong to the user that runs the module.
author:
  - edge.moe contributors (@edge-moe)
attributes:
  check_mode:
    description: Can run in check mode and say what would change.
    support: full
  diff_mode:
    description: Shows the difference of each file.
    support: full
  platform:
    description: Target operating systems.
    support: full
    platforms: posix
options:
  folders:
    description: Folders to make, outer ones first. The parent of the first must be there.
    type: list
    elements: path
    default: []
  files:
    description: The files.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where it goes, absolute. Its folder must be there or be one of O(folders).
        type: path
        required: true
      text:
        description: What it holds.
        type: str
        required: true
      mode:
        description: Its mode, octal and quoted.
        type: str
        default: "0644"
  exclusive:
    description: Folders in which O(files) name all files of a kind, so that others of that kind are removed.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The folder.
        type: path
        required: true
      suffix:
        description: Which files are of the kind.
        type: str
        required: true
  absent:
    description:
      - Files and links that are to be gone, and folders that are to be gone if nothing else is in them, inner ones
        first.
    type: list
    elements: path
    default: []
"""

EXAMPLES = r"""
- name: Install a unit and its settings
  edge.moe.file_set:
    folders: [/etc/edge-moe]
    files:
      - path: /etc/edge-moe/example.env
        text: "LEVEL=3\n"
      - path: /etc/systemd/system/example.service
        text: "{{ lookup('ansible.builtin.template', 'example.service.j2') }}"

- name: Install a Python package
  edge.moe.file_set:
    folders: [/usr/lib/edge-moe/package]
    files:
      - path: /usr/lib/edge-moe/package/__main__.py
        text: |
          print("hello")
    exclusive:
      - path: /usr/lib/edge-moe/package
        suffix: .py

- name: Remove a file, and its folder unless others have put something there
  edge.moe.file_set:
    absent: [/etc/edge-moe/example.env, /etc/edge-moe]
"""

RETURN = r"""
made:
  description: Folders that were, or in check mode would be, made or given their mode and owner.
  returned: success
  type: list
  elements: str
  sample: [/etc/edge-moe]
written:
  description: Files that were, or in check mode would be, written.
  returned: success
  type: list
  elements: str
  sample: [/etc/systemd/system/example.service]
removed:
  description: Files and folders that were, or in check mode would be, removed.
  returned: success
  type: list
  elements: str
  sample: []
"""

import os
import re
import tempfile
from dataclasses import dataclass

from ansible.module_utils.basic import AnsibleModule

FOLDER_MODE = 0o755


@dataclass(frozen=True)
class File:
    path: str
    text: str
    mode: int


def folder_is_right(path: str) -> bool:
    if not os.path.isdir(path):
        return False
    state = os.stat(path)
    return state.st_mode & 0o7777 == FOLDER_MODE and state.st_uid == os.geteuid()


def present_text(path: str) -> str | None:
    """What the file holds; None if there is no plain file."""
    if os.path.islink(path) or not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8", errors="replace", newline="") as handle:
        return handle.read()


def file_is_right(file: File) -> bool:
    if present_text(file.path) != file.text:
        return False
    state = os.lstat(file.path)
    return state.st_mode & 0o7777 == file.mode and state.st_uid == os.geteuid()


def strangers(folder: str, suffix: str, files: list[File]) -> list[str]:
    """Files and links of this kind in the folder that are not among ``files``."""
    if not os.path.isdir(folder):
        return []
    named = {file.path for file in files}
    found = (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(suffix))
    return sorted(path for path in found if path not in named and (os.path.islink(path) or not os.path.isdir(path)))


def leavers(absent: list[str]) -> list[str]:
    """Those of ``absent`` that are there and can go; a folder if all that is in it goes before it."""
    gone: list[str] = []
    for path in absent:
        if os.path.isdir(path) and not os.path.islink(path):
            if all(os.path.join(path, name) in gone for name in os.listdir(path)):
                gone.append(path)
        elif os.path.lexists(path):
            gone.append(path)
    return gone


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)
    else:
        os.unlink(path)


def replace(file: File) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(file.path), prefix=".new-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as handle:
            handle.write(file.text)
            os.fchmod(handle.fileno(), file.mode)
        os.rename(temporary, file.path)
    except BaseException:
        os.unlink(temporary)
        raise


def make_folder(path: str) -> None:
    if not os.path.isdir(path):
        os.mkdir(path)
    os.chown(path, os.geteuid(), os.getegid())
    os.chmod(path, FOLDER_MODE)


def parse_files(module: AnsibleModule) -> list[File]:
    files = []
    for entry in module.params["files"]:
        path, mode = entry["path"], entry["mode"]
        if not os.path.isabs(path) or os.path.normpath(path) != path:
            module.fail_json(msg=f"files: path {path!r} must be absolute, without . and .. in it")
        if not re.fullmatch("[0-7]{3,4}", mode):
            module.fail_json(msg=f"files: mode {mode!r} of {path} must be octal digits in quotes, such as '0644'")
        files.append(File(path, entry["text"], int(mode, 8)))
    return files


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folders": {"type": "list", "elements": "path", "default": []},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "text": {"type": "str", "required": True, "no_log": False},
                    "mode": {"type": "str", "default": "0644"},
                },
            },
            "exclusive": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "suffix": {"type": "str", "required": True},
                },
            },
            "absent": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    files = parse_files(module)
    made = [path for path in module.params["folders"] if not folder_is_right(path)]
    written = [file for file in files if not file_is_right(file)]
    removed = [path for kind in module.params["exclusive"] for path in strangers(kind["path"], kind["suffix"], files)]
    leaving = leavers(module.params["absent"])
    wanted = {file.path: file.text for file in files}
    diff = [
        {
            "before": present_text(path) or "",
            "after": wanted.get(path, ""),
            "before_header": path,
            "after_header": path,
        }
        for path in [file.path for file in written] + removed
    ]
    # by name alone: what is removed may be large, and none of our making
    diff += [{"before": f"{path}\n", "after": "", "before_header": path, "after_header": path} for path in leaving]
    removed += leaving
    if not module.check_mode:
        try:
            for path in made:
                make_folder(path)
            for file in written:
                replace(file)
            for path in removed:
                remove(path)
        except OSError as error:
            module.fail_json(msg=f"cannot write the files: {error}")
    module.exit_json(
        changed=bool(made or written or removed),
        made=made,
        written=[file.path for file in written],
        removed=removed,
        diff=diff,
    )


if __name__ == "__main__":
    main()
