#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: measure
short_description: Measure a llama-server on its board
version_added: 1.0.0
description:
  - Sends prompts to a llama-server, greedily and without its prompt cache, and records for each request the server's
    own speeds, the time to the first token by this side's clock, the text and its tokens, the bytes read from the
    drive and the major page faults.
  - Samples the GPU clock every 20 ms while requests run, and once more after O(settle_s) without any. The GPU's load
    is sampled every 0.1 s, the CPUs' clocks and caps every 0.2 s, the board's power every 0.25 s (by C(tegrastats)
    every 0.5 s), cooling devices and the server's swap every 0.5 s, and temperatures every second.
  - Records what the expert cache and the clock-floor service did meanwhile, the swap limit of the server's
    control group, and what the server's journal says of the GPU.
author:
  - edge.moe contributors (@edge-moe)
attributes:
  check_mode:
    support: full
    description: Changes nothing on the board, so check mode does the same.
  diff_mode:
    support: none
    description: Changes nothing, so there is nothing to compare.
extends_documentation_fragment: [edge.moe.board.prompts]
options:
  url:
    description:
      - Address of the server.
    type: str
    default: http://127.0.0.1:8080
  n_predict:
    description:
      - Tokens to decode for each prompt. The end-of-text token is ignored, so that all requests decode as many.
    type: int
    default: 256
  rounds:
    description:
      - How often the whole list is sent.
    type: int
    default: 1
  at_once:
    description:
      - How many requests are under way at any time, 1 to 64. The server needs as many slots (C(--parallel)).
    type: int
    default: 1
  block_device:
    description:
      - Name under C(/sys/class/block) of the device that holds the model.
    type: str
  unit:
    description:
      - systemd unit of the server.
    type: str
  settle_s:
    description:
      - Seconds to wait after the last request before the clock is read once more.
    type: float
    default: 3.0
  ready_s:
    description:
      - Seconds that the server may take to load its model.
    type: int
    default: 300
  request_timeout_s:
    description:
      - Seconds that one request may take.
    type: int
    default: 1800
  dest:
    description:
      - File for the result, on the machine that the module runs on. It is written after each request, so a run that
        is cut loses nothing that it measured.
    type: path
seealso:
  - module: edge.moe.verdict
"""

EXAMPLES = r"""
- name: Measure the served path
  edge.moe.measure:
    prompts:
      - id: en-1
        lang: en
        text: Why does a river bend?
    n_predict: 64
    rounds: 2
    block_device: nvme0n1
    unit: edge-moe-server.service
  register: served
"""

RETURN = r"""
measurement:
  description: What was measured. A source that is missing gives V(null).
  returned: success
  type: dict
  contains:
    started:
      description: When the first request was sent, UTC.
      returned: always
      type: str
    complete:
      description: Whether all requests were answered. V(false) only in a file that a cut run left.
      returned: always
      type: bool
    requests:
      description: >-
        One entry for each request, in the order in which they ended, with C(id), C(lang), C(round), C(at_once),
        C(started_s) (since the first was sent), C(text), C(text_sha256), C(tokens), C(n_prompt), C(n_decoded),
        C(decode_tokens_per_s), C(prefill_tokens_per_s), C(prefill_ms), C(decode_ms), and by this side's clock
        C(ttft_ms) until the first text arrived (V(null) where the answer came in one piece) and C(latency_ms) of the
        whole; C(nvme_bytes) and C(major_faults), V(null) where several requests run at once. Of a character that takes
        several tokens C(tokens) has the last, as a server streams no other.
      returned: always
      type: list
      elements: dict
    decode_tokens_per_s:
      description: Median over the requests.
      returned: always
      type: float
    prefill_tokens_per_s:
      description: Median over the requests.
      returned: always
      type: float
    prefill_ms:
      description: Median over the requests.
      returned: always
      type: float
    ttft_ms:
      description: Median over the requests.
      returned: always
      type: float
    at_once:
      description: As asked for.
      returned: always
      type: int
    wall_s:
      description: Seconds from the first request to the end of the last.
      returned: always
      type: float
    total_decoded:
      description: Tokens decoded in all requests.
      returned: always
      type: int
    nvme_bytes:
      description: Bytes read from the drive during the requests.
      returned: always
      type: int
    major_faults:
      description: Major page faults of the server during the requests.
      returned: always
      type: int
    gpu:
      description: >-
        The GPU clock during requests, with C(max_hz_seen), C(min_hz_seen), C(share_at_max), C(shares) (part of the
        samples by clock in Hz), C(samples), the table's C(lowest_hz) and C(highest_hz), C(load) (C(mean) and C(max),
        0 to 1, or V(null)), and C(after_hold_hz) and C(after_hold_min_freq_hz) after the wait. V(null) without a GPU
        node.
      returned: always
      type: dict
    cpu:
      description: >-
        The CPUs during requests, with C(clocks_khz) (part of the samples by clock in kHz), C(allowed_khz) (the lowest
        cap of any CPU), C(full_khz) (what the fastest CPU is made for) and C(lowest_allowed_share) (part of the samples
        with a CPU capped below that, or below its first cap). V(null) without cpufreq.
      returned: always
      type: dict
    power:
      description: >-
        The board's input power during requests, with C(source) (V(hwmon) or V(tegrastats)), C(rail), C(mean_w),
        C(max_w), C(samples) and C(joules) (the mean times the seconds during which requests ran). V(null) where no
        source has the rail VDD_IN.
      returned: always
      type: dict
    heat:
      description: >-
        The hottest reading during requests, with C(max_celsius), its C(zone), and C(hot_celsius) at which that zone
        throttles or stops the board. V(null) without a thermal zone.
      returned: always
      type: dict
    throttle:
      description: >-
        C(events), how often the kernel counted an over-current or thermal event meanwhile, by the counter's name, and
        C(cooling), the highest state by type of each cooling device that acts on clocks. Both hold what was above 0.
      returned: always
      type: dict
    memory:
      description: >-
        Of the unit's control group, each V(null) where the kernel does not tell: C(oom_kills), processes killed for
        want of memory meanwhile, C(swap_bytes), the most that was in swap during requests, and C(peak_bytes), the most
        memory since the unit was started.
      returned: always
      type: dict
    cache:
      description: What the cache's counters grew by. V(null) without a health file.
      returned: always
      type: dict
    cache_info:
      description: Mode and reason of the cache, and its sizes.
      returned: always
      type: dict
    floor:
      description: >-
        C(transitions_delta), C(raised_seconds_delta), C(raised_after) and C(baseline_hz) of the clock-floor service.
        V(null) without its health file.
      returned: always
      type: dict
    memory_swap_max:
      description: C(memory.swap.max) of the unit's control group, as the kernel holds it now.
      returned: always
      type: str
      sample: "0"
    swap_on:
      description: Whether the machine has any swap on.
      returned: always
      type: bool
    log:
      description: >-
        What the unit's journal says since its start, with the number of C(lines) read, C(nvmap_errors), C(cuda_errors),
        C(gpu_layers) (layers on the GPU, of how many; or V(null), as of a server that does not log that: it takes
        C(--log-verbosity 4)), C(no_gpu) (it says that no usable GPU was found, which a build for the CPU always does)
        and C(first), the first line of each kind of error. V(null) without a journal.
      returned: always
      type: dict
    unit:
      description: The unit that was measured.
      returned: always
      type: str
    n_predict:
      description: As asked for.
      returned: always
      type: int
    rounds:
      description: As asked for.
      returned: always
      type: int
    warnings:
      description: Sources that were missing.
      returned: always
      type: list
      elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import _measure, _module
from ansible_collections.edge.moe.plugins.module_utils._host import Host


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "default": "http://127.0.0.1:8080"},
            **_module.PROMPTS,
            "n_predict": {"type": "int", "default": 256},
            "rounds": {"type": "int", "default": 1},
            "at_once": {"type": "int", "default": 1},
            "block_device": {"type": "str"},
            "unit": {"type": "str"},
            "settle_s": {"type": "float", "default": 3.0},
            "ready_s": {"type": "int", "default": 300},
            "request_timeout_s": {"type": "int", "default": 1800},
            "dest": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    for name in ("n_predict", "rounds", "ready_s", "request_timeout_s"):
        if params[name] < 1:
            module.fail_json(msg=f"{name} is {params[name]}; it must be at least 1")
    if not 0 <= params["settle_s"] <= 3600:
        module.fail_json(msg=f"settle_s is {params['settle_s']}; it must be between 0 and 3600")
    if params["block_device"] and not _measure.valid_device(params["block_device"]):
        module.fail_json(msg=f"block_device is {params['block_device']!r}; it must be a name such as nvme0n1")
    dest = params["dest"]
    try:
        session = _measure.Session(
            Host(),
            _measure.Client(params["url"], params["request_timeout_s"]),
            params["unit"],
            params["block_device"],
            params["settle_s"],
            (lambda result: _measure.write_result(dest, result)) if dest else None,
        )
        measurement = session.run(
            params["prompts"], params["n_predict"], params["rounds"], params["ready_s"], params["at_once"]
        )
    except _measure.MeasureError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or dest}: {error.strerror}")
    for warning in measurement["warnings"]:
        module.warn(warning)
    module.exit_json(changed=False, measurement=measurement)


if __name__ == "__main__":
    main()
