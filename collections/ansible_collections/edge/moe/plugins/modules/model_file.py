#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: model_file
short_description: A model file on the board with one exact hash
version_added: 1.0.0
description:
  - Brings a model to the board from a URL or from a file that is there already, checks its SHA-256, and puts it in
    place in one step.
  - A download that was cut goes on from where it stopped, in this run or in the next. Its bytes are in C(DEST.part)
    beside O(dest).
  - An existing file is replaced only by one with the right hash. The disk's free space is checked before the first
    byte.
  - The hash of a checked file is kept in C(DEST.edge-moe.json), so that later runs need not read it again while its
    size and
    time of change are the same.
author:
  - edge.moe contributors (@edge-moe)
attributes:
  check_mode:
    support: full
    description: Says whether the file would be fetched; fetches nothing.
  diff_mode:
    support: none
    description: A model is no text to compare.
options:
  url:
    description:
      - Where to fetch the file from, by HTTP or HTTPS.
    type: str
  src_path:
    description:
      - A file on the board to copy from.
    type: path
  sha256:
    description:
      - The hash that the file must have, 64 hexadecimal digits.
    type: str
    required: true
  dest:
    description:
      - Full path of the model. Its folder must exist.
    type: path
    required: true
  timeout:
    description:
      - Seconds without a byte after which a connection counts as stalled.
    type: int
    default: 30
extends_documentation_fragment:
  - ansible.builtin.files
notes:
  - A download of many GiB outlasts an SSH session; call the module with C(async) and C(poll).
seealso:
  - module: edge.moe.gguf_info
"""

EXAMPLES = r"""
- name: Fetch the model
  edge.moe.model_file:
    url: https://models.example.org/model.gguf
    sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
    dest: /var/lib/edge-moe/models/model.gguf
    owner: root
    group: edge-moe
    mode: "0640"
  async: 86400
  poll: 15
"""

RETURN = r"""
dest:
  description: The file.
  returned: success
  type: str
sha256:
  description: Its hash.
  returned: success
  type: str
size_bytes:
  description: Its size; V(null) in check mode while it is absent.
  returned: success
  type: int
found:
  description: What was there before, V(present), V(wrong) or V(absent).
  returned: success
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import _download, _http


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str"},
            "src_path": {"type": "path"},
            "sha256": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
            "timeout": {"type": "int", "default": 30},
        },
        required_one_of=[("url", "src_path")],
        mutually_exclusive=[("url", "src_path")],
        add_file_common_args=True,
        supports_check_mode=True,
    )
    dest = module.params["dest"]
    try:
        sha256 = _download.check_sha256(module.params["sha256"])
        found = _download.state(dest, sha256)
        changed = found != "present"
        if changed and not module.check_mode:
            _download.fetch(dest, sha256, module.params["url"], module.params["src_path"], module.params["timeout"])
    except (_download.DownloadError, _http.HttpError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or dest}: {error.strerror}")
    size = os.stat(dest).st_size if os.path.exists(dest) else None
    if size is not None:
        file_args = module.load_file_common_arguments(module.params)
        attributes_changed = module.set_fs_attributes_if_different(file_args, False)
        if changed and not module.check_mode:
            _download.remember_hash(dest, sha256)
        changed = changed or attributes_changed
    module.exit_json(changed=changed, dest=dest, sha256=sha256, size_bytes=size, found=found)


if __name__ == "__main__":
    main()
