# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """Options of the modules that plan, measure and search how a board serves."""

    # What a plan is made from.
    FACTS = r"""
options:
  gguf:
    description:
      - RV(edge.moe.gguf_info#module:gguf) of the model.
    type: dict
    required: true
  jetson:
    description:
      - RV(edge.moe.jetson_facts#module:ansible_facts.edge_moe_jetson) of the board.
    type: dict
    required: true
  devfreq:
    description:
      - C(edge_moe_devfreq) of the board, from M(edge.moe.devfreq_facts).
    type: dict
    default: {}
"""

    # What is sent to a server.
    PROMPTS = r"""
options:
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
"""

    # Serving in the place of the served unit, for a run that goes on from a file.
    STAGE = r"""
options:
  program:
    description:
      - Path of C(llama-server).
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
  url:
    description:
      - Address that the server listens on meanwhile.
    type: str
    default: http://127.0.0.1:8080
  block_device:
    description:
      - Name under C(/sys/class/block) of the drive that holds the model. Without one its read-ahead stays as it is.
    type: str
  unit:
    description:
      - The reference unit, as which the server runs meanwhile.
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
  ready_s:
    description:
      - Seconds that a server may take to load the model.
    type: int
    default: 600
  labels:
    description:
      - What else the file shall say, such as host and board. A run with other labels begins anew.
    type: dict
    default: {}
  restart:
    description:
      - Begin anew whatever O(dest) holds.
    type: bool
    default: false
  progress_file:
    description:
      - File that gets a line about how far it is.
    type: path
"""
