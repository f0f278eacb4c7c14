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
options:
  program:
    description:
      - Path of C(llama-server). For O(perplexity), C(llama-perplexity) lies beside it.
    type: path
    required: true
  model:
    description:
      - Path of the model, the first of its shards.
    type: path
    required: true
  model_sha256:
    description:
      - Hash of the model's file. It is not computed here; a run with another one begins anew.
    type: str
    default: ""
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
  prompts:
    description:
      - The prompts, in order.
    type: list
    elements: dict
    required: true
    suboptions:
      id:
        description:
          - Name of the prompt.
        type: str
        required: true
      lang:
        description:
          - Its language.
        type: str
      text:
        description:
          - The prompt itself.
        type: str
        required: true
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
  url:
    description:
      - Address that the variants listen on.
    type: str
    default: http://127.0.0.1:8080
  block_device:
    description:
      - Name under C(/sys/class/block) of the drive that holds the model.
    type: str
  unit:
    description:
      - The reference unit, as which the variants run.
    type: str
    default: edge-moe-reference.service
  served_unit:
    description:
      - The unit that serves otherwise. It is stopped, and started again if it ran.
    type: str
    default: edge-moe-server.service
  floor_unit:
    description:
      - The clock-floor service.
    type: str
    default: edge-moe-clock-floor.service
  settle_s:
    description:
      - Seconds to wait after the last request of a step before the clock is read once more.
    type: float
    default: 3.0
  ready_s:
    description:
      - Seconds that a variant may take to load the model.
    type: int
    default: 600
  request_timeout_s:
    description:
      - Seconds that one request may take.
    type: int
    default: 1800
  labels:
    description:
      - What else the file shall say, such as host and board. A run with other labels begins anew.
    type: dict
    default: {}
  dest:
    description:
      - File for the result, on the machine that the module runs on. A run with the same options goes on from it if it
        was cut.
      - A file that is complete, of other options or damaged is renamed, F(bench.json) to F(bench.previous.json).
    type: path
    default: /var/lib/edge-moe/bench.json
  restart:
    description:
      - Begin anew whatever O(dest) holds.
    type: bool
    default: false
  progress_file:
    description:
      - File that gets a line about how far it is.
    type: path
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

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import _bench, _measure, _variants
from ansible_collections.edge.moe.plugins.module_utils._host import Host

VARIANT = {
    "name": {"type": "str", "required": True},
    "title": {"type": "str"},
    "args": {"type": "list", "elements": "str", "default": []},
    "environment": {"type": "dict", "default": {}},
    "floor": {"type": "bool", "default": False},
    "read_ahead_kb": {"type": "int"},
}
PROMPT = {
    "id": {"type": "str", "required": True},
    "lang": {"type": "str"},
    "text": {"type": "str", "required": True},
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
    work = work_of(params)
    # A link to the current release may be changed while this runs.
    program = os.path.realpath(params["program"])
    for path in (program, params["model"]):
        if not os.path.isfile(path):
            raise _variants.StageError(f"{path} is no file on this board; ansible-playbook site.yml puts it there")
    places = {name: params[name] for name in ("url", "block_device", "unit", "served_unit", "floor_unit")}
    base = _variants.Base(program, params["model"], **places)
    dest, key = params["dest"], _bench.key_of(work, base, params["model_sha256"])
    state, why = (None, "") if params["restart"] else _bench.read_state(dest, work, key)
    resumed = state is not None
    state = state or _bench.new_state(work, key)
    left = len(_bench.steps_left(work, state))
    if module.check_mode:
        return {"changed": left > 0, "run": None, "left": left, "resumed": resumed}
    os.makedirs(os.path.dirname(dest), mode=0o755, exist_ok=True)
    if not resumed and os.path.lexists(dest):
        os.replace(dest, _bench.previous(dest))
        if why and why != _bench.COMPLETE:
            module.warn(f"{dest} was not gone on from, since {why}; it is {_bench.previous(dest)} now")
    client = _measure.Client(params["url"], params["request_timeout_s"])

    def say(line: str) -> None:
        if params["progress_file"]:
            with open(params["progress_file"], "w", encoding="utf-8") as stream:
                stream.write(line + "\n")

    bench = _bench.Bench(
        work,
        _variants.Stage(host, base),
        lambda save: _measure.Session(host, client, params["unit"], params["block_device"], params["settle_s"], save),
        lambda state: _measure.write_result(dest, state),
        say,
        params["ready_s"],
        params["perplexity"]["limit_s"] if params["perplexity"] else 0.0,
    )
    bench.run(state)
    return {"changed": left > 0, "run": state, "left": left, "resumed": resumed}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "program": {"type": "path", "required": True},
            "model": {"type": "path", "required": True},
            "model_sha256": {"type": "str", "default": ""},
            "variants": {"type": "list", "elements": "dict", "required": True, "options": VARIANT},
            "reference": {"type": "str"},
            "prompts": {"type": "list", "elements": "dict", "required": True, "options": PROMPT},
            "n_predict": {"type": "int", "default": 128},
            "rounds": {"type": "int", "default": 3},
            "order": {"type": "str", "choices": list(_bench.ORDERS), "default": "interleaved"},
            "load": {"type": "list", "elements": "int", "default": []},
            "depths": {"type": "list", "elements": "int", "default": []},
            "perplexity": {"type": "dict", "options": PERPLEXITY},
            "url": {"type": "str", "default": "http://127.0.0.1:8080"},
            "block_device": {"type": "str"},
            "unit": {"type": "str", "default": _variants.Base.unit},
            "served_unit": {"type": "str", "default": _variants.Base.served_unit},
            "floor_unit": {"type": "str", "default": _variants.Base.floor_unit},
            "settle_s": {"type": "float", "default": 3.0},
            "ready_s": {"type": "int", "default": 600},
            "request_timeout_s": {"type": "int", "default": 1800},
            "labels": {"type": "dict", "default": {}},
            "dest": {"type": "path", "default": "/var/lib/edge-moe/bench.json"},
            "restart": {"type": "bool", "default": False},
            "progress_file": {"type": "path"},
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
    try:
        result = run(module)
    except (
        _measure.MeasureError,
        _variants.VariantError,
        _variants.StageError,
        _variants.StageLost,
    ) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or params['dest']}: {error.strerror}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
