# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Results of the search as files, and as text for a person. Pure.

Private to this collection: it may change in any release.
"""

from __future__ import annotations

import json
import math
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _tune

RESULT_LIMIT = 1 << 20


def parse_result(text: str) -> dict[str, Any]:
    """A result from a file's text, as the plan takes it. One that is none gives its `problem` and nothing else."""
    if len(text) > RESULT_LIMIT:
        return {"problem": f"the tuned file has more than {RESULT_LIMIT >> 20} MiB: remove it and run edge.moe.tune"}
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # bytes that are no text cannot be handed on
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return {"problem": "the tuned file is no JSON of edge.moe.tune: remove it, or run edge.moe.tune"}
    # the plan reads nothing of the trials, and Ansible shows every argument
    return {key: value for key, value in found.items() if key not in ("trials", "reference")}


def _difference(setting: _tune.Setting, own: _tune.Setting) -> str:
    """What of a setting is not the plan's own."""
    if setting == own:
        return "the plan's own"
    if setting["decision"] != own["decision"]:
        return _tune.name_of(setting)
    return ", ".join(f"{name} {setting[name]}" for name in _tune.VALUES[own["decision"]] if setting[name] != own[name])


def summary(result: dict[str, Any]) -> str:
    """One sentence: what won by how much, or that nothing did."""
    own, start, gain = result["own"], result["start"], result["gain"]
    tail = f"{len(result['trials'])} trials, {result['ended']}, noise {result['noise']:.1%} a trial."
    begun = "" if start == own else "Began at the tuned setting of an earlier search. "
    if gain["confirmed"]:
        return (
            f"{begun}{_difference(result['setting'], own)} is {gain['ratio'] - 1:.1%} faster than the plan's own "
            f"setting ({gain['low'] - 1:+.1%} to {gain['high'] - 1:+.1%}, {gain['pairs']} pairs): "
            f"{gain['tokens_per_s']:.2f} against {gain['own_tokens_per_s']:.2f} tokens a second; {tail}"
        )
    if gain["pairs"]:
        return (
            f"{begun}The plan's own setting stays: the best seen, {_difference(result['best_seen'], own)}, is "
            f"{gain['ratio'] - 1:+.1%} in {gain['pairs']} pairs, which is within their noise; {tail}"
        )
    return f"{begun}The plan's own setting stays: no other was seen to be faster; {tail}"


def table(result: dict[str, Any]) -> str:
    """All settings that were tried, the fastest first, below the sentence that says what won."""
    own = result["own"]
    seen: dict[str, list[dict[str, Any]]] = {}
    for trial in result["trials"]:
        seen.setdefault(_tune.name_of(trial["setting"]), []).append(trial)
    lines = []
    for name, trials in seen.items():
        speeds = [trial["tokens_per_s"] for trial in trials if trial["tokens_per_s"]]
        mean = math.exp(sum(map(math.log, speeds)) / len(speeds)) if speeds else 0.0
        why = next((entry["why"] for entry in result["discarded"] if entry["setting"] == name), "")
        notes = [
            note
            for note, holds in (
                ("served from now on", trials[0]["setting"] == result["setting"]),
                (f"discarded: {why[:100]}", bool(why)),
            )
            if holds
        ]
        lines.append(
            (mean, f"{mean:9.2f}", f"{len(trials):6}", _difference(trials[0]["setting"], own), "; ".join(notes))
        )
    lines.sort(key=lambda line: (bool(line[4].startswith("discarded")), -line[0]))
    width = max((len(line[3]) for line in lines), default=0)
    head = f"{'tokens/s':>9} {'trials':>6}  {'setting':<{width}}"
    return "\n".join(
        [
            summary(result),
            head,
            *(f"{speed} {count}  {text:<{width}}  {note}".rstrip() for _m, speed, count, text, note in lines),
        ]
    )
