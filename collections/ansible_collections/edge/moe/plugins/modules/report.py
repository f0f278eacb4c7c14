#!/usr/bin/python
# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write what a fleet's result files say as one page
version_added: 1.0.0
description:
  - Reads the result files that the verify role and benchmark runs leave on the controller, and writes C(report.html)
    and C(report.md). The page is one file without scripts that needs no network, in light and dark, and fit for print;
    Markdown holds the same tables.
  - For each board it shows the verdict and what failed, each stage with its ratio to the reference, where the time of
    a token goes, clocks, power, load, history, and what changed since the verification before.
  - The same files give the same report, so a second run changes nothing.
  - Runs on the controller, once for all hosts. The page needs matplotlib in the Python that runs C(ansible-playbook);
    without it Markdown is written, and RV(left_out) says what to install.
author:
  - edge.moe contributors (@edge-moe)
attributes:
  action:
    description: Is an action plugin that runs on the controller.
    support: full
  check_mode:
    description: Can run in check mode and say what would change.
    support: full
  diff_mode:
    description: Shows the difference of the Markdown, and the size of the page.
    support: full
options:
  results:
    description:
      - Folder of results. C(HOST.json) is the latest of a host, C(history/HOST/) holds it and earlier ones,
        C(bench/HOST/) the runs of its stages. The newest 60 of a host's history are read.
    type: path
    required: true
  dest:
    description: Folder for the report. It is made if it is not there.
    type: path
    required: true
  hosts:
    description: Show these alone. All that have results where it is empty.
    type: list
    elements: str
    default: []
  compare:
    description: Two result or run files to compare, the earlier one first.
    type: list
    elements: path
    default: []
seealso:
  - module: edge.moe.verdict
  - module: edge.moe.measure
"""

EXAMPLES = r"""
- name: Write the report
  edge.moe.report:
    results: ~/.cache/edge-moe/results
    dest: ~/.cache/edge-moe/results/report
  run_once: true
  register: report

- name: Compare two verifications
  edge.moe.report:
    results: ~/.cache/edge-moe/results
    dest: /srv/reports
    compare:
      - ~/.cache/edge-moe/results/history/kitchen/20261126T120000Z.json
      - ~/.cache/edge-moe/results/history/kitchen/20261129T120000Z.json
  run_once: true
"""

RETURN = r"""
page:
  description: Path of the page. V(null) where none was written.
  returned: always
  type: str
markdown:
  description: Path of the Markdown. V(null) where there is no result yet.
  returned: always
  type: str
hosts:
  description: The hosts shown.
  returned: always
  type: list
  elements: str
left_out:
  description: Why there is no page, and what to do. V(null) where there is one.
  returned: always
  type: str
"""
