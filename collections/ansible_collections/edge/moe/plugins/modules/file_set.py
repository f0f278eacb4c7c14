#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: file_set
short_description: Make a folder hold exactly the given text files of one kind
version_added: 1.0.0
description:
  - Writes the files that differ, removes those of the same suffix that are not named, and leaves all others alone.
  - One task and one transfer for a whole package, where a copy task takes several for each file.
  - Each file is replaced atomically.
  - Folder and files belong to the user that runs the module, with modes 0755 and 0644.
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
  path:
    description: The folder. It is made if it is not there, but its parent must be.
    type: path
    required: true
  files:
    description: Names (without a folder) and texts.
    type: dict
    required: true
  suffix:
    description: Which files belong to the set; every name must end with it.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Install a Python package
  edge.moe.file_set:
    path: /usr/lib/edge-moe/package
    suffix: .py
    files:
      __init__.py: ""
      __main__.py: |
        print("hello")
"""

RETURN = r"""
written:
  description: Files that were, or in check mode would be, written.
  returned: success
  type: list
  elements: str
  sample: [__main__.py]
removed:
  description: Files that were, or in check mode would be, removed.
  returned: success
  type: list
  elements: str
  sample: []
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule

DIR_MODE, FILE_MODE = 0o755, 0o644


def present(path: str, suffix: str) -> dict[str, str | None]:
    """Texts of the files that are there; None for one whose owner or mode is not ours to leave."""
    found: dict[str, str | None] = {}
    if not os.path.isdir(path):
        return found
    for name in os.listdir(path):
        whole = os.path.join(path, name)
        if not name.endswith(suffix) or (os.path.isdir(whole) and not os.path.islink(whole)):
            continue
        state = os.lstat(whole)
        right = not os.path.islink(whole) and state.st_mode & 0o7777 == FILE_MODE and state.st_uid == os.geteuid()
        found[name] = None
        if right:
            with open(whole, encoding="utf-8", errors="replace", newline="") as handle:
                found[name] = handle.read()
    return found


def replace(path: str, name: str, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path, prefix=".new-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as handle:
            handle.write(text)
            os.fchmod(handle.fileno(), FILE_MODE)
        os.rename(temporary, os.path.join(path, name))
    except BaseException:
        os.unlink(temporary)
        raise


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "files": {"type": "dict", "required": True},
            "suffix": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    path, suffix = module.params["path"], module.params["suffix"]
    files: dict[str, str] = module.params["files"]
    for name, text in files.items():
        if os.path.basename(name) != name or not name.endswith(suffix) or not isinstance(text, str):
            module.fail_json(
                msg=f"files: {name!r} must be a plain name that ends with {suffix!r}, with a text as value"
            )
    before = present(path, suffix)
    written = sorted(name for name, text in files.items() if before.get(name) != text)
    removed = sorted(before.keys() - files.keys())
    made = not os.path.isdir(path)
    owned = made or (os.stat(path).st_mode & 0o7777 == DIR_MODE and os.stat(path).st_uid == os.geteuid())
    if not module.check_mode:
        try:
            if made:
                os.mkdir(path)
            if made or not owned:
                os.chown(path, os.geteuid(), os.getegid())
                os.chmod(path, DIR_MODE)
            for name in written:
                replace(path, name, files[name])
            for name in removed:
                os.unlink(os.path.join(path, name))
        except OSError as error:
            module.fail_json(msg=f"{path} cannot take its files: {error}")
    diff = [
        {
            "before": before.get(name) or "",
            "after": files.get(name, ""),
            "before_header": os.path.join(path, name),
            "after_header": os.path.join(path, name),
        }
        for name in written + removed
    ]
    module.exit_json(changed=bool(written or removed or made or not owned), written=written, removed=removed, diff=diff)


if __name__ == "__main__":
    main()
