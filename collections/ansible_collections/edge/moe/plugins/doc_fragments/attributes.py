# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """What several modules have in common, so that it is said once."""

    # Modules that look at a machine or compute, and change nothing.
    READS = r"""
author:
  - edge.moe contributors (@edge-moe)
attributes:
  check_mode:
    support: full
    description: Changes nothing, so check mode does the same.
  diff_mode:
    support: none
    description: Changes nothing, so there is nothing to compare.
"""
