#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: serving_plan
short_description: How to serve one model on one board
version_added: 1.0.0
description:
  - Decides from a model's header and a board's facts whether the model is kept in memory, streamed through the
    expert cache, or streamed through the page cache, and sets every size and argument that follows, each with a reason
    that a person can read.
  - The same arguments always give the same plan. Nothing is read from the machine that the module runs on.
  - Memory is planned from what the board has in total, so that a plan does not change while its own server is
    running.
extends_documentation_fragment: [edge.moe.attributes.reads, edge.moe.board.facts]
options:
  overrides:
    description:
      - >-
        Values that win over the plan's own: C(decision) (V(resident), V(cache) or V(mmap)), C(cache_mib), C(threads),
        C(io_depth), C(read_kib), C(lookahead), C(read_ahead_kb), C(context), C(parallel), C(floor), C(n_gpu_layers),
        C(extra_args).
      - Each is honoured and its consequence stated in RV(plan.reasons); one that cannot work is refused with the
        arithmetic.
      - An empty value leaves the plan's own.
    type: dict
    default: {}
  measurements:
    description:
      - >-
        What this board has measured with this model, each with C(decode_tokens_per_s), C(mib_per_token) read,
        C(path) (V(cache) or V(mmap)) and, if known, C(cache_mib). With any, the estimate is made from them and not from
        the published line.
    type: list
    elements: dict
    default: []
  tuned:
    description:
      - What M(edge.moe.tune) found, as the playbook C(edge.moe.tune) writes it. Where O(model_sha256), the board, its
        power mode and O(release_kind) are those that it was found with and the gain was confirmed, its setting stands
        above the plan's own values and below O(overrides), and RV(plan.reasons) say by how much it won and when.
      - One that does not fit, or that is not what it should be, is ignored; C(reasons.tuned) says why.
    type: dict
    default: {}
  model_sha256:
    description:
      - Hash of the model's file, to tell whether O(tuned) was found with it.
    type: str
    default: ""
  release_kind:
    description:
      - Kind of llama.cpp's build, to tell whether O(tuned) was found with one of that kind.
    type: str
    default: ""
seealso:
  - module: edge.moe.gguf_info
  - module: edge.moe.jetson_facts
  - module: edge.moe.tune
"""

EXAMPLES = r"""
- name: Plan from what was found
  edge.moe.serving_plan:
    gguf: "{{ model.gguf }}"
    jetson: "{{ ansible_facts['edge_moe_jetson'] }}"
    devfreq: "{{ ansible_facts['edge_moe_devfreq'] }}"
    overrides: "{{ llama_server_overrides }}"
  register: planned

- name: Say why
  ansible.builtin.debug:
    var: planned.plan.reasons
"""

RETURN = r"""
plan:
  description: The plan.
  returned: success
  type: dict
  contains:
    decision:
      description: V(resident), V(cache) or V(mmap).
      returned: always
      type: str
    cache_mib:
      description: Size of the expert cache; 0 without one.
      returned: always
      type: int
    cycles:
      description: Token cycles that the cache holds.
      returned: always
      type: float
    threads:
      description: Compute threads.
      returned: always
      type: int
    io_depth:
      description: Reads of the cache that are under way at the same time.
      returned: always
      type: int
    read_kib:
      description: Largest single read of the cache.
      returned: always
      type: int
    lookahead:
      description: Whether the cache reads what the next layer will probably choose, V(0), V(1) or V(auto).
      returned: when an override or a search has set it
      type: str
    read_ahead_kb:
      description: Read-ahead of the drive that holds the model.
      returned: always
      type: int
    context:
      description: Tokens of context.
      returned: always
      type: int
    parallel:
      description: Slots of the server.
      returned: always
      type: int
    floor:
      description: Whether the GPU clock floor shall be used.
      returned: always
      type: bool
    n_gpu_layers:
      description: Layers on the GPU.
      returned: always
      type: int
    server_args:
      description: Arguments of llama-server after C(--model), C(--host) and C(--port).
      returned: always
      type: list
      elements: str
    environment:
      description: Environment of the patched llama-server.
      returned: always
      type: dict
      sample: {EDGE_MOE_CACHE_MIB: "2268", EDGE_MOE_IO_DEPTH: "16", EDGE_MOE_READ_KIB: "1024"}
    context_max:
      description: Longest context with which the decision stays as it is.
      returned: always
      type: int
    estimate:
      description: >-
        Decode speed as C(tokens_per_s) between C(low) and C(high), from C(fixed_ms) and C(ms_per_mib) for each of
        C(mib_per_token). C(basis) is V(published), V(measured), or V(bandwidth) for a resident model that has not been
        measured. C(without_overrides) is the speed of the plan's own choice, and C(sentence) says it all.
      returned: always
      type: dict
    would_change:
      description: What would have to be different for another decision, with the figures.
      returned: always
      type: list
      elements: str
    budget:
      description: The board's memory line by line; what is taken is negative, and the last line is what is left.
      returned: always
      type: list
      elements: dict
    reasons:
      description: A sentence for each value.
      returned: always
      type: dict
    overridden:
      description: Names of the values that were set by overrides.
      returned: always
      type: list
      elements: str
    tuned:
      description: Names of the values that a search on the board has set.
      returned: always
      type: list
      elements: str
"""

from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _plan
from ansible_collections.edge.moe.plugins.module_utils._module import FACTS, run_computation

ARGUMENTS = {
    **FACTS,
    "overrides": {"type": "dict", "default": {}},
    "measurements": {"type": "list", "elements": "dict", "default": []},
    "tuned": {"type": "dict", "default": {}},
    "model_sha256": {"type": "str", "default": ""},
    "release_kind": {"type": "str", "default": ""},
}


def compute(params: dict[str, Any]) -> dict[str, Any]:
    try:
        return _plan.make_plan(**{name: params[name] for name in ARGUMENTS})
    except (KeyError, TypeError, ValueError) as error:
        raise _plan.PlanError(
            f"gguf or jetson are not what gguf_info and jetson_facts return: {type(error).__name__}: {error}"
        ) from error


def main() -> None:
    run_computation(ARGUMENTS, "plan", compute, _plan.PlanError)


if __name__ == "__main__":
    main()
