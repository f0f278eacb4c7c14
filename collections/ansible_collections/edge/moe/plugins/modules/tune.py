#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: tune
short_description: Search the fastest way to serve one model on its board
version_added: 1.0.0
description:
  - Serves the model with one setting after another, as M(edge.moe.bench) does, and measures each. It searches whether
    experts go through the cache or the mapping, compute threads, size of the cache, lookahead, reads under way,
    largest read and the drive's read-ahead; what O(overrides), O(arguments) or O(environment) set is left as it is.
  - Begins at the plan's own setting, moves one value at a time, and repeats what is close. At the end the best runs
    against the plan's own setting in pairs, and only a gain beyond their noise is one.
  - A setting whose text is not that of the stock mmap path never wins, nor does one whose server dies.
  - The state is written to O(dest) after each trial, and a run that was cut goes on from there. A transient unit puts
    the board back when the module ends, also when it was killed.
  - Needs root.
author:
  - edge.moe contributors (@edge-moe)
attributes:
  check_mode:
    support: full
    description: Measures nothing, changes nothing and returns what would be searched in RV(space).
  diff_mode:
    support: none
    description: Measures, so there is nothing to compare.
extends_documentation_fragment: [edge.moe.board.facts, edge.moe.board.prompts, edge.moe.board.stage]
options:
  overrides:
    description:
      - As for M(edge.moe.serving_plan). What stands here is not searched.
    type: dict
    default: {}
  arguments:
    description:
      - Arguments of llama-server behind those of the plan.
    type: list
    elements: str
    default: []
  environment:
    description:
      - Environment of the server that wins over the plan's.
    type: dict
    default: {}
  start:
    description:
      - RV(tuning.setting) of an earlier search, to begin with.
    type: dict
    default: {}
  n_predict:
    description:
      - Tokens to decode for each prompt of a trial.
    type: int
    default: 32
  budget_s:
    description:
      - Seconds that the search may take. No trial is started that cannot end in them, and time for the confirmation is
        kept. A run that goes on from O(dest) has what the earlier one left.
    type: int
    default: 1200
  dest:
    description:
      - File for state and result, on the machine that the module runs on. A search with the same options goes on from
        it if it was cut.
      - A file that is complete, of other options or damaged is renamed, F(tune.json) to F(tune.previous.json).
    type: path
    default: /var/lib/edge-moe/tune.json
seealso:
  - module: edge.moe.bench
  - module: edge.moe.serving_plan
"""

EXAMPLES = r"""
- name: Search for ten minutes
  edge.moe.tune:
    program: /opt/edge-moe/llama.cpp/current/bin/llama-server
    model: /mnt/nvme/models/model.gguf
    gguf: "{{ model.gguf }}"
    jetson: "{{ ansible_facts['edge_moe_jetson'] }}"
    overrides:
      context: 8192
    prompts:
      - id: en-1
        lang: en
        text: Why does a river bend?
    block_device: nvme0n1
    budget_s: 600
  register: tuned

- name: Say what won
  ansible.builtin.debug:
    msg: "{{ tuned.tuning | edge.moe.tune_table }}"
"""

RETURN = r"""
tuning:
  description: The search, which is also in O(dest), beside O(labels). V(null) in check mode.
  returned: success
  type: dict
  contains:
    format:
      description: Of this file, V(1).
      returned: always
      type: int
    kind:
      description: V(tune).
      returned: always
      type: str
    key:
      description: Hash of all that the result depends on. Equal keys go on from one another.
      returned: always
      type: str
    when:
      description: When the search was begun, UTC.
      returned: always
      type: str
      sample: "2026-11-29T12:00:00Z"
    complete:
      description: Whether it ended. V(false) only in a file that a cut run left.
      returned: always
      type: bool
    budget_s:
      description: As asked for.
      returned: always
      type: float
    spent_s:
      description: Seconds that it took.
      returned: always
      type: float
    setting:
      description: >-
        What to serve with: C(decision), C(threads), C(read_ahead_kb) and, with a cache, C(cache_mib), C(io_depth),
        C(read_kib) and C(lookahead). The plan's own values unless the gain was confirmed.
      returned: always
      type: dict
    own:
      description: The plan's own setting.
      returned: always
      type: dict
    start:
      description: What the search began with, the plan's own setting or that of O(start).
      returned: always
      type: dict
    best_seen:
      description: The setting that went into the confirmation; the plan's own where none seemed faster.
      returned: always
      type: dict
    gain:
      description: >-
        C(confirmed), C(ratio) of the pairs over the plan's own setting between C(low) and C(high), C(pairs),
        C(tokens_per_s) and C(own_tokens_per_s) in them.
      returned: always
      type: dict
    noise:
      description: Standard deviation of one trial's speed, as a part of it.
      returned: always
      type: float
    ended:
      description: Why no further setting was tried.
      returned: always
      type: str
    discarded:
      description: C(setting) and C(why) of each that is out, since its text differed or its server failed.
      returned: always
      type: list
      elements: dict
    reference:
      description: The texts of the stock mmap path that all others were compared with.
      returned: always
      type: dict
    trials:
      description: >-
        All trials in order, each with C(setting), C(tokens_per_s), C(text_equal), C(cost_s), C(remaining_s) and
        C(evidence) against it.
      returned: always
      type: list
      elements: dict
space:
  description: C(own), C(start), C(reference), C(starts) of each path, and for each path the C(values) to try by name.
  returned: success
  type: dict
resumed:
  description: Whether an earlier run was gone on from.
  returned: success
  type: bool
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import (
    _measure,
    _module,
    _plan,
    _run_file,
    _staged,
    _tune,
    _tuner,
    _variants,
)
from ansible_collections.edge.moe.plugins.module_utils._host import Host


def work_of(params: dict[str, Any]) -> _tuner.Work:
    facts = {name: params[name] for name in ("gguf", "jetson", "devfreq", "overrides", "start", "labels")}
    return _tuner.Work(
        arguments=tuple(params["arguments"]),
        environment={str(name): str(value) for name, value in params["environment"].items()},
        prompts=tuple(params["prompts"]),
        n_predict=params["n_predict"],
        budget_s=float(params["budget_s"]),
        **facts,
    )


def run(module: AnsibleModule) -> dict[str, Any]:
    params, host = module.params, Host()
    work, base = work_of(params), _staged.base_of(params)
    try:
        space = work.space(params["block_device"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _tune.TuneError(
            f"gguf or jetson are not what gguf_info and jetson_facts return: {type(error).__name__}: {error}"
        ) from error
    dest, key = params["dest"], _tuner.key_of(work, base, params["model_sha256"])
    state, why = (None, "") if params["restart"] else _tuner.read_state(dest, work, space, key)
    resumed = state is not None
    if module.check_mode:
        return {"changed": True, "tuning": None, "space": asdict(space), "resumed": resumed}
    state = state or _tuner.new_state(work, key)
    if not resumed and (warning := _run_file.make_room(dest, why)):
        module.warn(warning)
    client = _measure.Client(params["url"], params["budget_s"])
    tuner = _tuner.Tuner(
        work,
        _variants.Stage(host, base),
        # what the clock does after the requests is of no interest here
        lambda: _measure.Session(host, client, params["unit"], params["block_device"], 0.0),
        lambda state: _measure.write_result(dest, state),
        _staged.saying(params),
        params["ready_s"],
    )
    tuner.run(state)
    return {"changed": True, "tuning": state, "space": asdict(space), "resumed": resumed}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **_staged.OPTIONS,
            **_module.FACTS,
            "overrides": {"type": "dict", "default": {}},
            "arguments": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "dict", "default": {}},
            "start": {"type": "dict", "default": {}},
            "n_predict": {"type": "int", "default": 32},
            "budget_s": {"type": "int", "default": 1200},
            "dest": {"type": "path", "default": "/var/lib/edge-moe/tune.json"},
        },
        supports_check_mode=True,
    )
    params = module.params
    for name, least in (("n_predict", 2), ("budget_s", 1), ("ready_s", 1)):
        if params[name] < least:
            module.fail_json(msg=f"{name} is {params[name]}; it must be at least {least}")
    _staged.finish(module, lambda: run(module), _plan.PlanError, _tune.TuneError)


if __name__ == "__main__":
    main()
