#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: attended
short_description: Run a module for a long time and show how far it is
version_added: 1.0.0
description:
  - Starts another module in the background of the target and prints a line about its progress from time to time,
    so that a build or a download of an hour is neither silent nor bound to the life of one SSH connection.
  - The result is that of the module. In check mode the module is not started and the task reports C(changed).
author: edge.moe contributors (@edge-moe)
options:
  module:
    description: The module to run, by its full name.
    type: str
    required: true
  args:
    description: The module's arguments.
    type: dict
    default: {}
  progress_file:
    description: A file on the target that tells about the progress.
    type: str
    required: true
  progress:
    description:
      - V(last_line) prints the last line of O(progress_file).
      - V(size) prints the file's size.
      - V(count) prints how often O(pattern) stands in the file. A file that is there at the start is removed.
    type: str
    choices: [last_line, size, count]
    default: last_line
  pattern:
    description: What V(count) counts, as C(grep) takes it.
    type: str
    default: ""
  noun:
    description: What the counted things are called.
    type: str
    default: ""
  total:
    description: What the size in bytes or the count will be at the end, where that is known.
    type: int
    default: 0
  every_s:
    description: Seconds between two lines.
    type: int
    default: 15
  timeout_s:
    description: Seconds after which the module is stopped.
    type: int
    default: 14400
attributes:
  action:
    description: Has an action plugin that runs on the controller.
    support: full
  check_mode:
    description: Reports that the module would run.
    support: partial
  diff_mode:
    description: The diff is the module's.
    support: none
"""

EXAMPLES = r"""
- name: Compile
  edge.moe.attended:
    module: ansible.builtin.shell
    args:
      cmd: exec ninja > build.log 2>&1
      chdir: /srv/build
    progress_file: /srv/build/build.log
"""

RETURN = r"""
attended_s:
  description: Seconds that the module ran.
  returned: when it ran
  type: int
"""
