#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: gguf_info
short_description: What a GGUF model needs, from its header
version_added: 1.0.0
description:
  - Reads the header of a model, on disk or behind an HTTP server that answers ranges, and no weights.
  - Files that are no model, and models that are broken, each get a message that says what they are.
extends_documentation_fragment: [edge.moe.attributes.reads]
options:
  path:
    description:
      - The model on the machine that the module runs on. The first shard, where there are several.
    type: path
  url:
    description:
      - Address of the model. Only its header is fetched, by range requests.
    type: str
  otherwise:
    description:
      - A path or an address (V(http://) or V(https://)) that is read where there is no file O(path).
    type: str
  timeout:
    description:
      - Seconds that one request may be silent.
    type: int
    default: 15
seealso:
  - module: edge.moe.serving_plan
"""

EXAMPLES = r"""
- name: Read a model on the board
  edge.moe.gguf_info:
    path: /var/lib/edge-moe/models/model.gguf
  register: model

- name: Read a model on the board, or where the board will fetch it from
  edge.moe.gguf_info:
    path: /var/lib/edge-moe/models/model.gguf
    otherwise: https://models.example.org/model.gguf
  register: model

- name: Look before downloading 20 GiB
  edge.moe.gguf_info:
    url: https://models.example.org/big-moe-00001-of-00003.gguf
  delegate_to: localhost
  register: model
"""

RETURN = r"""
gguf:
  description: What the header says.
  returned: success
  type: dict
  contains:
    path:
      description: The path or address that was read.
      returned: always
      type: str
    size_bytes:
      description: Size of all shards that are there.
      returned: always
      type: int
    version:
      description: GGUF version.
      returned: always
      type: int
    architecture:
      description: Name of the architecture.
      returned: always
      type: str
      sample: qwen3moe
    name:
      description: Name that the model gives itself, V(null) without one.
      returned: always
      type: str
    layers:
      description: Layers that ordinary decoding runs.
      returned: always
      type: int
    embedding:
      description: Width of the embedding.
      returned: always
      type: int
    vocabulary:
      description: Tokens in the vocabulary, V(null) if the embedding is not in the file.
      returned: always
      type: int
    experts:
      description: Experts a layer; 0 for a dense model.
      returned: always
      type: int
    experts_used:
      description: Experts a token uses in one layer.
      returned: always
      type: int
    moe_layers:
      description: Layers that have experts.
      returned: always
      type: int
    expert_bytes:
      description: The largest single expert of one layer, all its weights together.
      returned: always
      type: int
    expert_layout:
      description: >-
        Bytes of one expert by kind of weights, for runs of layers that are alike. Mixed quantisations give later layers
        other sizes.
      returned: always
      type: list
      elements: dict
      sample:
        - first_layer: 0
          last_layer: 39
          kinds: {gate: 557056, up: 557056, down: 557056}
    cycle_bytes:
      description: Bytes of experts that one token uses, over all layers.
      returned: always
      type: int
    experts_total_bytes:
      description: All experts of all layers.
      returned: always
      type: int
    dense_bytes:
      description: All other weights.
      returned: always
      type: int
    kv_bytes_per_token:
      description: >-
        Keys and values of one token in f16, over the layers that have any. An upper bound for models with sliding
        windows.
      returned: always
      type: int
    recurrent_bytes:
      description: Constant state of one slot, in layers that keep one instead of keys and values.
      returned: always
      type: int
    context_train:
      description: Context that the model was trained for.
      returned: always
      type: int
    quantisation:
      description: Name of the quantisation.
      returned: always
      type: str
      sample: Q4_K_M
    chat_template:
      description: Whether the file brings a chat template.
      returned: always
      type: bool
    fused_gate_up:
      description: Whether gate and up are one tensor.
      returned: always
      type: bool
    shards:
      description: C(count) of shards, how many are C(present), and the names of those C(missing).
      returned: always
      type: dict
      sample: {count: 1, present: 1, missing: []}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import _gguf


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path"},
            "url": {"type": "str"},
            "otherwise": {"type": "str"},
            "timeout": {"type": "int", "default": 15},
        },
        required_one_of=[("path", "url")],
        mutually_exclusive=[("path", "url")],
        required_by={"otherwise": ["path"]},
        supports_check_mode=True,
    )
    path, url, otherwise = (module.params[name] for name in ("path", "url", "otherwise"))
    if otherwise and not os.path.exists(path):
        path, url = (None, otherwise) if otherwise.startswith(("http://", "https://")) else (otherwise, None)
    try:
        gguf = _gguf.info_from_path(path) if path is not None else _gguf.info_from_url(url, module.params["timeout"])
    except _gguf.GgufError as error:
        module.fail_json(msg=str(error))
    missing = gguf["shards"]["missing"]
    if missing:
        module.warn(
            f"{len(missing)} of {gguf['shards']['count']} shards are missing, sizes are of those present: {missing}"
        )
    module.exit_json(changed=False, gguf=gguf)


if __name__ == "__main__":
    main()
