# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of a result file, which may be old, cut short or changed by hand: what is no such value is none.

Private to this collection: it may change in any release.
"""

from __future__ import annotations

import math
from typing import Any

LINE_CHARACTERS = 200


def number(value: Any) -> float | None:
    """A finite number, or None. JSON may also spell infinity, and whole numbers that no float holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def count(value: Any) -> float:
    """A number, 0 where there is none."""
    return number(value) or 0.0


def whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def entries(value: Any) -> list[dict[str, Any]]:
    """Those entries of a list that are mappings."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def line(value: Any, limit: int = LINE_CHARACTERS) -> str:
    """A value as one line that a terminal takes, however it was written; empty for None."""
    text = "" if value is None else " ".join(str(value).split())
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= limit else text[: limit - 3] + "..."
