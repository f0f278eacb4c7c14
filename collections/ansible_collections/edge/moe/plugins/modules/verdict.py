#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: verdict
short_description: Judge two measurements of one board against its plan
version_added: 1.0.0
description:
  - Compares the served path with the reference, character by character and token by token, and checks from counters
    that the cache, the clock floor and the swap limit did what the plan says, that the GPU computed what the plan gave
    it, that no clock was throttled, and that the board is no slower than when it last passed.
  - Each failure has a class, its evidence and a remedy. A cause stands before its symptoms, and a symptom names the
    causes that were found. The module itself does not fail on a bad verdict.
extends_documentation_fragment: [edge.moe.attributes.reads]
options:
  reference:
    description:
      - Measurement of the stock path of the same build, from M(edge.moe.measure).
    type: dict
    required: true
  served:
    description:
      - Measurement of the path that is served.
    type: dict
    required: true
  plan:
    description:
      - RV(edge.moe.serving_plan#module:plan) that the server was started from.
    type: dict
    required: true
  thresholds:
    description:
      - Limits that differ from the defaults.
    type: dict
    default: {}
    suboptions:
      min_decode_ratio:
        description:
          - Least decode speed as a part of the reference's.
        type: float
        default: 0.95
      min_previous_ratio:
        description:
          - Least decode speed as a part of what it was when the board last passed.
        type: float
        default: 0.85
      min_floor_share:
        description:
          - Least part of the clock samples at the highest clock.
        type: float
        default: 0.5
      floor_hz:
        description:
          - The clock that the floor is set to; 0 stands for the highest.
        type: float
        default: 0
      max_bypass_share:
        description:
          - Greatest part of decode lookups that may go past the cache.
        type: float
        default: 0.05
  history:
    description:
      - Folder of the board's earlier result files, on the machine that the module runs on. Of those that passed with
        the same O(release), O(model_sha256), power mode, decision of the plan, prompts and C(n_predict) the last is
        what the speed is held against. Without the folder, or such a file in it, nothing is.
    type: path
  release:
    description:
      - Release that was measured.
    type: str
  model_sha256:
    description:
      - Hash of the model that was measured.
    type: str
  power_mode:
    description:
      - C(power_mode) of M(edge.moe.jetson_facts), of which the name is compared.
    type: dict
seealso:
  - module: edge.moe.measure
"""

EXAMPLES = r"""
- name: Judge
  edge.moe.verdict:
    reference: "{{ reference.measurement }}"
    served: "{{ served.measurement }}"
    plan: "{{ edge_moe_plan }}"
    thresholds:
      min_decode_ratio: 0.9
    history: results/history/kitchen
    release: "{{ release }}"
    model_sha256: "{{ moe_model_sha256 }}"
    power_mode: "{{ ansible_facts['edge_moe_jetson'].power_mode }}"
  delegate_to: localhost
  register: judged

- name: Fail with every reason
  ansible.builtin.assert:
    that: judged.verdict.passed
    fail_msg: "{{ judged.verdict.failures }}"
"""

RETURN = r"""
verdict:
  description: The verdict and the figures of its table row.
  returned: success
  type: dict
  contains:
    passed:
      description: Whether nothing failed.
      returned: always
      type: bool
    failures:
      description: >-
        Each with C(class), C(evidence), C(remedy) and C(because), the classes of causes that were found as well. In
        their order classes are V(nvmap_error), V(out_of_memory), V(read_errors), V(incomplete), V(text_differs),
        V(cpu_fallback), V(cache_unplanned), V(cache_inert), V(throttled), V(dense_moved_floor), V(floor_never_raised),
        V(floor_left_up), V(swap_not_off), V(swap_in_use), V(too_slow) and V(slower_than_before).
      returned: always
      type: list
      elements: dict
    text_equal:
      description: Whether every text and every token is that of the reference. V(null) when nothing could be
        compared.
      returned: always
      type: bool
    ratio:
      description: Decode speed over that of the reference.
      returned: always
      type: float
    previous_ratio:
      description: Decode speed over that of the earlier result. V(null) without one.
      returned: always
      type: float
    previous_started:
      description: When the earlier result was measured.
      returned: always
      type: str
    requests:
      description: Requests on the served path.
      returned: always
      type: int
    prompts:
      description: Different prompts among them.
      returned: always
      type: int
    reference_decode_tokens_per_s:
      description: Decode speed of the reference.
      returned: always
      type: float
    served_decode_tokens_per_s:
      description: Decode speed of the served path.
      returned: always
      type: float
    reference_nvme_bytes:
      description: Bytes that the reference read.
      returned: always
      type: int
    served_nvme_bytes:
      description: Bytes that the served path read.
      returned: always
      type: int
    hit_share:
      description: Part of the decode lookups that the cache held.
      returned: always
      type: float
    gpu_decode_hz:
      description: Highest GPU clock seen during requests.
      returned: always
      type: int
    gpu_after_hz:
      description: GPU clock after the hold time.
      returned: always
      type: int
    memory_swap_max:
      description: Swap limit of the server's control group.
      returned: always
      type: str
    swap_on:
      description: Whether the machine has swap on.
      returned: always
      type: bool
"""

from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _history, _verdict
from ansible_collections.edge.moe.plugins.module_utils._module import run_computation

ARGUMENTS = {
    "reference": {"type": "dict", "required": True},
    "served": {"type": "dict", "required": True},
    "plan": {"type": "dict", "required": True},
    "thresholds": {
        "type": "dict",
        "default": {},
        "options": {
            "min_decode_ratio": {"type": "float", "default": 0.95},
            "min_previous_ratio": {"type": "float", "default": 0.85},
            "min_floor_share": {"type": "float", "default": 0.5},
            "floor_hz": {"type": "float", "default": 0},
            "max_bypass_share": {"type": "float", "default": 0.05, "no_log": False},
        },
    },
    "history": {"type": "path"},
    "release": {"type": "str"},
    "model_sha256": {"type": "str"},
    "power_mode": {"type": "dict"},
}


def compute(params: dict[str, Any]) -> dict[str, Any]:
    previous = None
    if params["history"]:
        # an earlier result file has these keys, so that both are read alike
        now = {key: params[key] for key in ("release", "model_sha256", "power_mode", "plan", "served")}
        previous = _history.last_passed(_history.earlier_results(params["history"]), now)
    return _verdict.judge(params["reference"], params["served"], params["plan"], params["thresholds"], previous)


def main() -> None:
    run_computation(ARGUMENTS, "verdict", compute, _verdict.VerdictError)


if __name__ == "__main__":
    main()
