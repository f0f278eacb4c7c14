# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file of a long run on a board, written after each step: a run that was cut goes on from it.

Private to this collection: it may change in any release.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils._host import read_bounded
from ansible_collections.edge.moe.plugins.module_utils._variants import Base

FORMAT = 1
COMPLETE = "it is complete"
LIMIT = 256 << 20


def key_of(inputs: dict[str, Any], base: Base, model_sha256: str) -> str:
    """The same for the same inputs, whatever the address and the link by which the program is reached."""
    whole = inputs | {
        "base": asdict(base) | {"url": None, "program": os.path.realpath(base.program)},
        "model_sha256": model_sha256,
    }
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def new_state(kind: str, key: str, labels: dict[str, Any], begun: str) -> dict[str, Any]:
    """What each such file begins with. `begun` is the name under which it says when."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {**labels, "format": FORMAT, "kind": kind, "key": key, begun: now, "complete": False}


def read(
    path: str, kind: str, key: str, restore: Callable[[dict[str, Any]], dict[str, Any]]
) -> tuple[dict[str, Any] | None, str]:
    """The state to go on from, or None and why there is none: empty where there is no file at all.

    `restore` takes what the file holds and returns what of it is this program's, or raises ValueError, KeyError,
    TypeError or AttributeError where it is no state.
    """
    if not os.path.lexists(path):
        return None, ""
    content = read_bounded(path, LIMIT + 1)
    if content is None or len(content) > LIMIT:
        return None, f"it is no file of a {kind}"
    try:
        found = json.loads(content)
        if found["format"] != FORMAT or found["kind"] != kind:
            raise ValueError("format")
        if found["key"] != key:
            return None, "it was measured with other settings"
        if found["complete"] is not False:
            return None, COMPLETE
        state = restore(found)
        json.dumps(state, ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, "it is damaged"
    return state, ""


def previous(path: str) -> str:
    """Where a file goes that a new run does not go on from: one is kept."""
    root, extension = os.path.splitext(path)
    return f"{root}.previous{extension}"


def make_room(path: str, why: str) -> str:
    """Put aside what is not gone on from, and return a warning: empty where it was a complete run or nothing."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    if not os.path.lexists(path):
        return ""
    os.replace(path, previous(path))
    return f"{path} was not gone on from, since {why}; it is {previous(path)} now" if why not in ("", COMPLETE) else ""
