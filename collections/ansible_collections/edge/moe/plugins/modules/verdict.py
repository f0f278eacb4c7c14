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
    that the cache, the
    clock floor and the swap limit did what the plan says.
  - Each failure has a class, its evidence and a remedy. The module itself does not fail on a bad verdict.
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
        Each with C(class), C(evidence) and C(remedy). Classes are V(incomplete), V(text_differs), V(cache_inert),
        V(cache_unplanned), V(read_errors), V(floor_never_raised), V(floor_left_up), V(dense_moved_floor),
        V(swap_not_off) and
        V(too_slow).
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

from ansible_collections.edge.moe.plugins.module_utils import _verdict
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
            "min_floor_share": {"type": "float", "default": 0.5},
            "floor_hz": {"type": "float", "default": 0},
            "max_bypass_share": {"type": "float", "default": 0.05},
        },
    },
}


def compute(params: dict[str, Any]) -> dict[str, Any]:
    return _verdict.judge(params["reference"], params["served"], params["plan"], params["thresholds"])


def main() -> None:
    run_computation(ARGUMENTS, "verdict", compute, _verdict.VerdictError)


if __name__ == "__main__":
    main()
