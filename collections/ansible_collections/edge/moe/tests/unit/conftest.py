# SPDX-License-Identifier: GPL-3.0-or-later
"""A busy machine fails no test: an example of hypothesis has no time limit but one that a test gives it."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("edge_moe", settings(), deadline=None)
settings.load_profile("edge_moe")
