#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One sysfs attribute, written only when it differs and read back afterwards."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sysfs_attribute
short_description: Set one sysfs attribute
version_added: 1.0.0
description:
  - Writes a value to a file under C(/sys) when it differs, and reads it back, as a kernel may apply another.
  - The file module family cannot do this, as it replaces files and sysfs allows only writing in place.
  - The value lasts until the next boot or until someone else writes.
author: edge.moe contributors (@edge-moe)
options:
  path:
    description: The attribute's file.
    type: path
    required: true
  value:
    description: The value to be read from it afterwards.
    type: str
    required: true
attributes:
  check_mode:
    description: Can run in check mode and tell whether it would write.
    support: full
  diff_mode:
    description: Tells the value before and after.
    support: full
"""

EXAMPLES = r"""
- name: Read ahead little, as expert reads are random
  edge.moe.sysfs_attribute:
    path: /sys/block/nvme0n1/queue/read_ahead_kb
    value: "32"
"""

RETURN = r"""
before:
  description: The value that was found.
  returned: success
  type: str
after:
  description: The value in effect at the end (in check mode, the value that would be written).
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "value": {"type": "str", "required": True}},
        supports_check_mode=True,
    )
    path, value = module.params["path"], module.params["value"].strip()
    try:
        with open(path, errors="replace") as file:
            before = file.read().strip()
        after = before
        if before != value:
            after = value
            if not module.check_mode:
                # unbuffered, so that the kernel's refusal is raised here and not when the file object is dropped
                with open(path, "wb", buffering=0) as file_out:
                    file_out.write(value.encode())
                with open(path, errors="replace") as file:
                    after = file.read().strip()
    except OSError as error:
        module.fail_json(msg=f"{path}: {error.strerror} (wanted {value!r}). Is the attribute there, and is this root?")
    if after != value:
        module.fail_json(msg=f"{path}: wrote {value!r}, the kernel applied {after!r}.", before=before, after=after)
    module.exit_json(
        changed=before != value,
        before=before,
        after=after,
        diff={"before": f"{before}\n", "after": f"{after}\n", "before_header": path, "after_header": path},
    )


if __name__ == "__main__":
    main()
