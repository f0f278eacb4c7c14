# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Are two measurements' answers the same, character by character and token by token? Pure.

Private to this collection: it may change in any release.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.edge.moe.plugins.module_utils._values import entries, line

CONTEXT_CHARACTERS = 24


def first_difference(reference: str, served: str) -> dict[str, Any] | None:
    """Where two texts part, with what stands around it; None when they are equal."""
    if reference == served:
        return None
    place = 0
    for place in range(min(len(reference), len(served)) + 1):
        if reference[place : place + 1] != served[place : place + 1]:
            break
    start, end = max(0, place - CONTEXT_CHARACTERS), place + CONTEXT_CHARACTERS
    return {"character": place, "reference": reference[start:end], "served": served[start:end], "context_from": start}


def by_prompt(measurement: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The requests of a measurement by their prompt's id, in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for request in entries(measurement.get("requests")):
        found.setdefault(line(request.get("id")), []).append(request)
    return found


def _known(first: dict[str, Any], other: dict[str, Any], key: str, kind: type) -> tuple[Any, Any] | None:
    """A value of both requests; None where one has none to compare."""
    pair = (first.get(key), other.get(key))
    return pair if all(isinstance(value, kind) for value in pair) else None


def _describe_difference(
    prompt: str, first: dict[str, Any], other: dict[str, Any], names: tuple[str, str]
) -> str | None:
    where = (
        f"prompt {prompt}: {names[0]} round {line(first.get('round'))} against "
        f"{names[1]} round {line(other.get('round'))}"
    )
    difference = first_difference(str(first.get("text", "")), str(other.get("text", "")))
    if difference is not None:
        return (
            f"{where}: character {difference['character']}: ...{difference['reference']!r} against "
            f"...{difference['served']!r}"
        )
    first_tokens, other_tokens = _known(first, other, "tokens", list) or ([], [])
    if first_tokens != other_tokens:
        place = next(
            (index for index, pair in enumerate(zip(first_tokens, other_tokens, strict=False)) if pair[0] != pair[1]),
            min(len(first_tokens), len(other_tokens)),
        )
        return (
            f"{where}: the texts look alike and token {place} differs: {line(first_tokens[place : place + 3])} against "
            f"{line(other_tokens[place : place + 3])}"
        )
    hashes = _known(first, other, "text_sha256", str)
    if hashes and hashes[0] != hashes[1]:
        return f"{where}: the texts look alike and their bytes differ"
    return None


def compare_texts(reference: dict[str, Any], served: dict[str, Any]) -> tuple[int, list[str]]:
    """How many requests were compared, and a line for each that differs from the reference's first round."""
    compared, differences = 0, []
    served_by_prompt = by_prompt(served)
    for prompt, reference_requests in by_prompt(reference).items():
        anchor = reference_requests[0]
        for other in reference_requests[1:]:
            said = _describe_difference(prompt, anchor, other, ("reference", "reference"))
            if said:
                differences.append(said + " (the reference itself does not repeat)")
        requests = served_by_prompt.pop(prompt, [])
        if not requests:
            differences.append(f"prompt {prompt}: the served path gave no answer to it")
        for other in requests:
            compared += 1
            if not anchor.get("n_decoded") or not other.get("n_decoded"):
                differences.append(f"prompt {prompt}: nothing was decoded, so nothing could be compared")
                continue
            said = _describe_difference(prompt, anchor, other, ("reference", "served"))
            if said:
                differences.append(said)
    differences += [f"prompt {prompt}: the reference has no answer to it" for prompt in served_by_prompt]
    return compared, differences


def shared_prompts(one: dict[str, Any], other: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both measurements with the requests of those prompts alone that both have: a cut run is judged by its answers."""
    shared = by_prompt(one).keys() & by_prompt(other).keys()

    def kept(measurement: dict[str, Any]) -> dict[str, Any]:
        requests = entries(measurement.get("requests"))
        return {**measurement, "requests": [entry for entry in requests if line(entry.get("id")) in shared]}

    return kept(one), kept(other)
