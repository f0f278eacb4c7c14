# SPDX-License-Identifier: GPL-3.0-or-later
"""The prompts that boards are verified with, as the verify role ships them."""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "collections/ansible_collections/edge/moe/roles/verify/files/prompts.json"


def prompts() -> dict[str, str]:
    """Text by id."""
    return {entry["id"]: entry["text"] for entry in json.loads(FILE.read_text(encoding="utf-8"))}
