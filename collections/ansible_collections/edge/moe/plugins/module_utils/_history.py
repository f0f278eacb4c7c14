# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A board's earlier results on the controller, and which of them a new one can be compared with.

Private to this collection: it may change in any release.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils._host import read_bounded
from ansible_collections.edge.moe.plugins.module_utils._texts import by_prompt
from ansible_collections.edge.moe.plugins.module_utils._values import mapping

FILES = 100
FILE_LIMIT = 32 * 1024 * 1024


def earlier_results(folder: str) -> Iterator[dict[str, Any]]:
    """The result files of a folder, newest first, at most 100 of them; what is no result is passed over.

    Their names begin with the time at which they were begun, so their order is that of time.
    """
    try:
        names = sorted((name for name in os.listdir(folder) if name.endswith(".json")), reverse=True)
    except OSError:
        return
    for name in names[:FILES]:
        data = read_bounded(os.path.join(folder, name), FILE_LIMIT)
        try:
            result = json.loads(data or b"")
        except (ValueError, RecursionError):
            continue
        if isinstance(result, dict):
            yield result


def _conditions(result: dict[str, Any]) -> tuple[Any, ...]:
    """What a speed depends on that nobody calls a fault: another release, model, decision, mode or question."""
    served, mode = mapping(result.get("served")), mapping(result.get("power_mode"))
    return (
        result.get("release"),
        result.get("model_sha256"),
        mapping(result.get("plan")).get("decision"),
        mode.get("name"),
        served.get("n_predict"),
        served.get("at_once", 1),
        sorted(by_prompt(served)),
    )


def last_passed(results: Iterable[dict[str, Any]], now: dict[str, Any]) -> dict[str, Any] | None:
    """The first of `results` (newest first) that passed, was begun before `now` and under the same conditions."""
    started = str(mapping(now.get("served")).get("started") or "")
    for result in results:
        begun = str(mapping(result.get("served")).get("started") or "")
        if (
            mapping(result.get("verdict")).get("passed") is True
            and _conditions(result) == _conditions(now)
            and (begun < started or not started)
        ):
            return result
    return None
