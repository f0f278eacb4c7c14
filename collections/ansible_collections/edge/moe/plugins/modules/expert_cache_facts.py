#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: expert_cache_facts
short_description: State of the expert cache of each running server
version_added: 1.0.0
description:
  - Reads the health files that the patched llama.cpp writes to C(/run/edge-moe/cache-PID.prom), and judges each
    server.
  - A cache is judged by what it did, not by how it was configured.
extends_documentation_fragment: [edge.moe.attributes.reads]
options:
  earlier:
    description:
      - RV(ansible_facts.edge_moe_expert_cache) of an earlier call. Each server that is still the same process then says
        in C(since_earlier) what it did in between.
    type: dict
    default: {}
seealso:
  - module: edge.moe.verdict
"""

EXAMPLES = r"""
- name: Read what the cache does
  edge.moe.expert_cache_facts:

- name: Read it again and say what happened in between
  edge.moe.expert_cache_facts:
    earlier: "{{ ansible_facts['edge_moe_expert_cache'] }}"

- name: Fail on a cache that does nothing
  ansible.builtin.assert:
    that: ansible_facts['edge_moe_expert_cache'].verdict == 'healthy'
    fail_msg: "{{ ansible_facts['edge_moe_expert_cache'].explanation }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts, under one key.
  returned: always
  type: dict
  contains:
    edge_moe_expert_cache:
      description: The servers and the verdict of the machine.
      returned: always
      type: dict
      contains:
        servers:
          description: One entry for each health file. A counter that the file lacks is V(null).
          returned: always
          type: list
          elements: dict
          contains:
            pid:
              description: Process id of the server.
              returned: always
              type: int
            running:
              description: Whether that process is there.
              returned: always
              type: bool
            mode:
              description: V(cache), or V(mmap) when experts are read through the page cache.
              returned: always
              type: str
            reason:
              description: Why the mode is not V(cache).
              returned: always
              type: str
            policy:
              description: The eviction policy.
              returned: always
              type: str
            engine:
              description: What reads the experts.
              returned: always
              type: str
            direct:
              description: Whether reads pass by the page cache.
              returned: always
              type: bool
            asked_bytes:
              description: Size asked for.
              returned: always
              type: int
            delivered_bytes:
              description: Size in use.
              returned: always
              type: int
            slots:
              description: Experts that fit.
              returned: always
              type: int
            cycle_bytes:
              description: Bytes of all experts that one token uses, over all layers.
              returned: always
              type: int
            cycles:
              description: Token cycles that fit.
              returned: always
              type: float
            hits:
              description: Lookups that found their expert, by phase.
              returned: always
              type: dict
              sample: {decode: 26123, prefill: 0}
            misses:
              description: Lookups that had to read, by phase.
              returned: always
              type: dict
            bypass:
              description: Products that took the page cache's path although the cache is on, by phase.
              returned: always
              type: dict
            decode_tokens:
              description: Tokens decoded.
              returned: always
              type: int
            read_bytes:
              description: Bytes of experts read.
              returned: always
              type: int
            read_seconds:
              description: Time that reads took, summed over readers.
              returned: always
              type: float
            stall_seconds:
              description: Time that compute threads waited for reads.
              returned: always
              type: float
            evictions:
              description: Experts thrown out.
              returned: always
              type: int
            errors:
              description: Reads that failed.
              returned: always
              type: int
            updated_s_ago:
              description: Age of the file in seconds. It is written about once a second while the server works.
              returned: always
              type: float
            updated:
              description: When the file was written, in seconds since 1970.
              returned: always
              type: float
            hit_share:
              description: Part of the decode lookups that found their expert; V(null) before the first.
              returned: always
              type: float
            bytes_per_token:
              description: Bytes of experts read for each decoded token, prompts included.
              returned: always
              type: float
            since_earlier:
              description: >-
                What happened since O(earlier). C(seconds) passed, and in them C(decode_tokens), C(hits), C(misses),
                C(read_bytes), C(errors), C(hit_share), C(bytes_per_token) and C(stall_share), which is 1 when a compute
                thread waited for reads all the time. V(null) without an earlier call, and for another process.
              returned: always
              type: dict
            verdict:
              description: >-
                V(healthy); V(off), V(inert) for a cache that is on and is not used, V(below_cycle) for one that is
                too small,
                V(thrashing) for one that misses nearly always, V(stale) for the file of a process that is gone.
              returned: always
              type: str
            explanation:
              description: The sentence that explains the verdict.
              returned: always
              type: str
        verdict:
          description: Verdict of the worst running server; V(off) when there is none.
          returned: always
          type: str
        explanation:
          description: The sentence that explains it.
          returned: always
          type: str
        warnings:
          description: Files that could not be read, and failed reads.
          returned: always
          type: list
          elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import _expert_cache
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from ansible_collections.edge.moe.plugins.module_utils._module import exit_facts


def main() -> None:
    module = AnsibleModule(argument_spec={"earlier": {"type": "dict", "default": {}}}, supports_check_mode=True)
    exit_facts(module, "edge_moe_expert_cache", _expert_cache.gather(Host(), earlier=module.params["earlier"]))


if __name__ == "__main__":
    main()
