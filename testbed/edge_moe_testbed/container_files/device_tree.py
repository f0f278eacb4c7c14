# SPDX-License-Identifier: GPL-3.0-or-later
"""A device tree for a container: Python programs in it find /proc/device-tree in a folder that a scenario fills.

A PC's kernel has none, and nothing can be mounted where there is no folder; a kernel that has one shows that of its own
machine, which is not what a scenario is about. So the stand-in is where the programs open files.
"""

import os
from typing import Any

REAL, STAND_IN = "/proc/device-tree/", "/usr/share/edge-moe-testbed/device-tree/"
_open = os.open


def open_here(path: Any, *arguments: Any, **options: Any) -> int:
    if isinstance(path, str) and path.startswith(REAL):
        path = STAND_IN + path[len(REAL) :]
    return _open(path, *arguments, **options)


os.open = open_here
# shutil asks by this set whether it may work with folder descriptors
os.supports_dir_fd.add(open_here)
