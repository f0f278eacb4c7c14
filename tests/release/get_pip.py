# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings the pip that is asked for into an environment without one, from where pip is set up to look.

It stands in for a script that ansible-test would download from one address of its own, which no mirror of packages has:
Python's own copy of pip makes the beginning. The arguments are those of that script.
"""

from __future__ import annotations

import subprocess
import sys

wanted = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
# in a process of its own, as it makes pip blind for its settings from there on
for words in (["ensurepip"], ["pip", "install", "--quiet", *wanted]):
    done = subprocess.run([sys.executable, "-m", *words], stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
