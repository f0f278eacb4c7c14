#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: bench
short_description: Measure ways of serving one model against each other on its board
version_added: 1.0.0
description:
  - Serves one variant after another as the reference unit, each started cold, sends the same prompts to all of them
    and keeps what M(edge.moe.measure) measures. The served unit is stopped meanwhile.
  - The variant is a drop-in of the reference unit under C(/run), so user, slice, swap limit and sandbox are the
    unit's own. A transient unit puts the board back when the module ends, also when it was killed.
  - The result is written to O(dest) after each step. A run that was cut goes on from there.
  - A variant that does not start, dies or runs out of memory is recorded with the reason, and the others are measured.
  - Needs root.
author:
  - edge.moe contributors (@edge-moe)
attributes:
  check_mode:
    support: full
    description: Measures nothing, changes nothing and tells in RV(left) how many steps there would be.
  diff_mode:
    support: none
    description: Measures, so there is nothing to compare.
extends_documentation_fragment: [edge.moe.board.prompts, edge.moe.board.stage]
options:
  variants:
    description:
      - What is measured against each other.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description:
          - Name, in lower-case letters, digits, dots, hyphens and underscores.
        type: str
        required: true
      title:
        description:
          - What it is, for a person. The name unless set.
        type: str
      args:
        description:
          - Arguments of llama-server after C(--model), C(--host) and C(--port).
        type: list
        elements: str
        default: []
      environment:
        description:
          - Environment of the server. C(EDGE_MOE_STATS_DIR) is set where measuring looks for it.
        type: dict
        default: {}
      floor:
        description:
          - Whether the clock-floor service runs meanwhile.
        type: bool
        default: false
      read_ahead_kb:
        description:
          - Read-ahead of O(block_device) meanwhile; as it was found unless set.
        type: int
  reference:
    description:
      - Name of the variant that the others are compared with. The first unless set.
    type: str
  n_predict:
    description:
      - Tokens to decode for each prompt.
    type: int
    default: 128
  rounds:
    description:
      - How often each variant is started and gets all prompts.
    type: int
    default: 3
  order:
    description:
      - V(interleaved) measures each variant once in each round, every second round backwards, so that what drifts
        slowly falls on all alike. V(blocks) measures all rounds of a variant in a row.
    type: str
    choices: [interleaved, blocks]
    default: interleaved
  load:
    description:
      - Numbers of requests at once. For each of them each variant is served with so many slots, each with a context as
        long as the variant's own.
    type: list
    elements: int
    default: []
  depths:
    description:
      - Prompt lengths in tokens. For each of them each variant decodes once behind a prompt of that length, which is
        made of the texts of O(prompts) over and over. A context that is too short is made longer.
    type: list
    elements: int
    default: []
  perplexity:
    description:
      - If set, the perplexity of each variant is computed as well, by C(llama-perplexity) in the server's place.
    type: dict
    suboptions:
      file:
        description:
          - A text on the board, of at least two contexts, that the reference unit's user can read.
        type: path
        required: true
      chunks:
        description:
          - Parts of the text to compute, at most.
        type: int
        default: 4
      context:
        description:
          - Tokens of a part.
        type: int
        default: 512
      limit_s:
        description:
          - Seconds that it may take for one variant.
        type: int
        default: 7200
  settle_s:
    description:
      - Seconds to wait after the last request of a step before the clock is read once more.
    type: float
    default: 3.0
  request_timeout_s:
    description:
      - Seconds that one request may take.
    type: int
    default: 1800
  dest:
    description:
      - File for the result, on the machine that the module runs on. A run with the same options goes on from it if it
        was cut.
      - A file that is complete, of other options or damaged is renamed, F(bench.json) to F(bench.previous.json).
    type: path
    default: /var/lib/edge-moe/bench.json
seealso:
  - module: edge.moe.measure
  - module: edge.moe.serving_plan
"""

EXAMPLES = r"""
- name: Measure two numbers of threads
  edge.moe.bench:
    program: /opt/edge-moe/llama.cpp/current/bin/llama-server
    model: /mnt/nvme/models/model.gguf
    variants:
      - name: four
        args: [--load-mode, mmap, --cpu-moe, -t, "4", -c, "4096"]
        environment: {EDGE_MOE_CACHE_MIB: "2048"}
        floor: true
      - name: six
        args: [--load-mode, mmap, --cpu-moe, -t, "6", -c, "4096"]
        environment: {EDGE_MOE_CACHE_MIB: "2048"}
        floor: true
    prompts:
      - id: en-1
        lang: en
        text: Why does a river bend?
    block_device: nvme0n1
    load: [1, 2]
  register: threads
"""

RETURN = r"""
run:
  description: The run, which is also in O(dest), beside O(labels). V(null) in check mode.
  returned: success
  type: dict
  contains:
    format:
      description: Of this file, V(1).
      returned: always
      type: int
    kind:
      description: V(bench).
      returned: always
      type: str
    key:
      description: Hash of all that the result depends on. Equal keys go on from one another.
      returned: always
      type: str
    started:
      description: When the run was begun, UTC.
      returned: always
      type: str
      sample: "2026-11-29T12:00:00Z"
    complete:
      description: Whether all steps were tried. V(false) only in a file that a cut run left.
      returned: always
      type: bool
    variants:
      description: O(variants), as they were read.
      returned: always
      type: list
      elements: dict
    reference:
      description: Name of the variant that the others are compared with.
      returned: always
      type: str
    legs:
      description: >-
        One entry for each variant and round, in the order of measuring, with C(variant), C(round) and
        C(measurement), which is RV(edge.moe.measure#module:measurement) of one round, or C(error).
      returned: always
      type: list
      elements: dict
    load:
      description: >-
        One entry for each variant and number of O(load), with C(variant), C(at_once), the C(args) of the server and
        C(measurement), or C(error).
      returned: always
      type: list
      elements: dict
    depth:
      description: >-
        One entry for each variant and number of O(depths), with C(variant), C(depth), the C(args) of the server and
        C(measurement), or C(error). The prompt's exact length is C(n_prompt) of its request.
      returned: always
      type: list
      elements: dict
    perplexity:
      description: One entry for each variant, with C(variant), C(value) and C(error_margin), or C(error).
      returned: always
      type: list
      elements: dict
left:
  description: Steps that were left to measure when the module was called.
  returned: success
  type: int
resumed:
  description: Whether an earlier run was gone on from.
  returned: success
  type: bool
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import _bench, _measure, _run_file, _staged, _variants
from ansible_collections.edge.moe.plugins.module_utils._host import Host

VARIANT = {
    "name": {"type": "str", "required": True},
    "title": {"type": "str"},
    "args": {"type": "list", "elements": "str", "default": []},
    "environment": {"type": "dict", "default": {}},
    "floor": {"type": "bool", "default": False},
    "read_ahead_kb": {"type": "int"},
}
PERPLEXITY = {
    "file": {"type": "path", "required": True},
    "chunks": {"type": "int", "default": 4},
    "context": {"type": "int", "default": 512},
    "limit_s": {"type": "int", "default": 7200},
}


def work_of(params: dict[str, Any]) -> _bench.Work:
    variants = tuple(_variants.parse_variant(given) for given in params["variants"])
    asked = params["perplexity"]
    work = _bench.Work(
        variants,
        params["reference"] or (variants[0].name if variants else ""),
        tuple(params["prompts"]),
        params["n_predict"],
        params["rounds"],
        params["order"],
        tuple(params["load"]),
        tuple(params["depths"]),
        asked and _bench.Perplexity(asked["file"], asked["chunks"], asked["context"]),
        params["labels"],
    )
    work.check()
    return work


def run(module: AnsibleModule) -> dict[str, Any]:
    params, host = module.params, Host()
    work, base = work_of(params), _staged.base_of(params)
    dest, key = params["dest"], _bench.key_of(work, base, params["model_sha256"])
    state, why = (None, "") if params["restart"] else _bench.read_state(dest, work, key)
    resumed = state is not None
    state = state or _bench.new_state(work, key)
    left = len(_bench.steps_left(work, state))
    if module.check_mode:
        return {"changed": left > 0, "run": None, "left": left, "resumed": resumed}
    if not resumed and (warning := _run_file.make_room(dest, why)):
        module.warn(warning)
    client = _measure.Client(params["url"], params["request_timeout_s"])
    bench = _bench.Bench(
        work,
        _variants.Stage(host, base),
        lambda save: _measure.Session(host, client, params["unit"], params["block_device"], params["settle_s"], save),
        lambda state: _measure.write_result(dest, state),
        _staged.saying(params),
        params["ready_s"],
        params["perplexity"]["limit_s"] if params["perplexity"] else 0.0,
    )
    bench.run(state)
    return {"changed": left > 0, "run": state, "left": left, "resumed": resumed}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **_staged.OPTIONS,
            "variants": {"type": "list", "elements": "dict", "required": True, "options": VARIANT},
            "reference": {"type": "str"},
            "n_predict": {"type": "int", "default": 128},
            "rounds": {"type": "int", "default": 3},
            "order": {"type": "str", "choices": list(_bench.ORDERS), "default": "interleaved"},
            "load": {"type": "list", "elements": "int", "default": []},
            "depths": {"type": "list", "elements": "int", "default": []},
            "perplexity": {"type": "dict", "options": PERPLEXITY},
            "settle_s": {"type": "float", "default": 3.0},
            "request_timeout_s": {"type": "int", "default": 1800},
            "dest": {"type": "path", "default": "/var/lib/edge-moe/bench.json"},
        },
        supports_check_mode=True,
    )
    params = module.params
    for name in ("n_predict", "rounds", "ready_s", "request_timeout_s"):
        if params[name] < 1:
            module.fail_json(msg=f"{name} is {params[name]}; it must be at least 1")
    for name in ("chunks", "context", "limit_s"):
        if params["perplexity"] and params["perplexity"][name] < 1:
            module.fail_json(msg=f"perplexity.{name} is {params['perplexity'][name]}; it must be at least 1")
    if not 0 <= params["settle_s"] <= 3600:
        module.fail_json(msg=f"settle_s is {params['settle_s']}; it must be between 0 and 3600")
    _staged.finish(module, lambda: run(module))


if __name__ == "__main__":
    main()
