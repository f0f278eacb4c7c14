#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: jetson_facts
short_description: Facts of a Jetson board
version_added: 1.0.0
description:
  - Says which Jetson a machine is, which release it runs and what it offers for serving models bigger than its
    memory.
  - A source that is missing gives V(null) and a warning, never a failure. Each command that is run has 5 seconds
    and a closed standard input.
  - On a machine that is no Jetson RV(ansible_facts.edge_moe_jetson.is_jetson) is V(false) and one warning tells what
    was
    read; memory, swap and drives are reported all the same.
extends_documentation_fragment: [edge.moe.attributes.reads]
notes:
  - Needs no privilege. As a normal user some sources may be closed, which leaves warnings.
seealso:
  - module: edge.moe.devfreq_facts
  - module: edge.moe.serving_plan
"""

EXAMPLES = r"""
- name: Read what the board is
  edge.moe.jetson_facts:

- name: Stop unless it is a Jetson with JetPack 6
  ansible.builtin.assert:
    that:
      - ansible_facts['edge_moe_jetson'].is_jetson
      - ansible_facts['edge_moe_jetson'].jetpack is version('6.0', '>=')
"""

RETURN = r"""
ansible_facts:
  description: The facts, under one key.
  returned: always
  type: dict
  contains:
    edge_moe_jetson:
      description: What the board is.
      returned: always
      type: dict
      contains:
        is_jetson:
          description: Whether the device tree names an NVIDIA Tegra SoC or a known module.
          returned: always
          type: bool
        board:
          description: >-
            Short name of the board, from the device tree's C(compatible) list: V(orin-nano-8gb), V(orin-nano-4gb),
            V(orin-nx-8gb), V(orin-nx-16gb), V(agx-orin-32gb), V(agx-orin-64gb), V(agx-orin-industrial),
            V(thor-t4000),
            V(thor-t5000). V(null) when it is not known.
          returned: always
          type: str
          sample: orin-nano-8gb
        compatible:
          description: The device tree's C(compatible) list.
          returned: always
          type: list
          elements: str
        model:
          description: The device tree's model string. Carriers and modules get it wrong, so nothing is decided by it.
          returned: always
          type: str
        super:
          description: Whether the firmware offers Super clocks. V(null) when the board is not known.
          returned: always
          type: bool
        soc:
          description: The SoC.
          returned: always
          type: str
          sample: tegra234
        l4t:
          description: The L4T release by its two sources.
          returned: always
          type: dict
          contains:
            version:
              description: The release by the installed package, else by the file.
              returned: always
              type: str
              sample: 36.4.7
            release_file:
              description: The release by C(/etc/nv_tegra_release).
              returned: always
              type: str
            package:
              description: The version of the package C(nvidia-l4t-core).
              returned: always
              type: str
            agree:
              description: Whether both name the same release. V(null) when one is missing.
              returned: always
              type: bool
        jetpack:
          description: The JetPack of that L4T, V(null) when it is not known here.
          returned: always
          type: str
          sample: 6.2.1
        kernel:
          description: Kernel release.
          returned: always
          type: str
        cgroup_version:
          description: V(2) where the unified hierarchy is mounted at C(/sys/fs/cgroup), V(1) for older and hybrid
            machines.
          returned: always
          type: int
        uprobes:
          description: Whether the kernel offers uprobes.
          returned: always
          type: bool
        btf:
          description: Whether the kernel carries BTF type information.
          returned: always
          type: bool
        power_mode:
          description: >-
            The nvpmodel mode by C(name) and C(id), V(null) when unknown. C(gpu_cap_hz) and C(emc_cap_hz) are the mode's
            caps, V(null) for none. C(label_true) says whether the GPU's clocks are those that the name stands for, and
            C(label_note) why; V(null) when there is nothing to compare with. Believe the clocks before the label.
          returned: always
          type: dict
          sample:
            name: MAXN_SUPER
            id: 2
            gpu_cap_hz: null
            emc_cap_hz: null
            label_true: true
            label_note: the GPU may run up to 1020 MHz, as MAXN_SUPER says
        memory:
          description: >-
            C(total_bytes) and C(available_bytes) as the kernel counts them; C(cma_total_bytes) and C(cma_free_bytes) of
            the area for devices that need one piece; C(nvmap_bytes) that the GPU's allocator holds, which only root may
            read; C(largest_free_block_bytes), small on a board whose memory is in pieces.
          returned: always
          type: dict
        swap:
          description: Swap areas in use, each with C(device), C(zram), C(size_bytes) and C(used_bytes).
          returned: always
          type: list
          elements: dict
        nvme:
          description: >-
            NVMe drives, each with C(name), C(model), C(size_bytes), C(read_ahead_kb), C(scheduler) and C(health), which
            holds C(state) and C(celsius) from the kernel, and C(critical_warning), C(percent_used) and C(media_errors)
            where nvme-cli is installed and the user is root.
          returned: always
          type: list
          elements: dict
        thermal:
          description: >-
            Thermal zones with C(name), C(celsius), V(null) for a sensor that is off, and C(hot_celsius), the lowest
            temperature at which the zone throttles hard or stops the board.
          returned: always
          type: list
          elements: dict
        cuda:
          description: C(version) of CUDA and absolute path of C(nvcc). V(null) when there is no compiler.
          returned: always
          type: dict
        jetson_clocks:
          description: Whether the GPU clock is pinned by something other than our floor. V(null) without a GPU clock.
          returned: always
          type: bool
        cores:
          description: CPU cores that are online.
          returned: always
          type: int
        held_packages:
          description: Packages that apt holds back.
          returned: always
          type: list
          elements: str
        warnings:
          description: One sentence for each source that was missing or disagreed.
          returned: always
          type: list
          elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import _jetson
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from ansible_collections.edge.moe.plugins.module_utils._module import exit_facts


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    exit_facts(module, "edge_moe_jetson", _jetson.gather(Host()))


if __name__ == "__main__":
    main()
