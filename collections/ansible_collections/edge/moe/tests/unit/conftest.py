# SPDX-License-Identifier: GPL-3.0-or-later
"""A busy machine fails no test: an example of hypothesis has no time limit but one that a test gives it."""

from __future__ import annotations

from hypothesis import settings

# sysfs has links that lead back: a search for tests goes round until the kernel ends it, now and then with an error
collect_ignore = ["fixtures"]

settings.register_profile("edge_moe", settings(), deadline=None)
settings.load_profile("edge_moe")
