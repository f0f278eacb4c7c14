# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reader of the Prometheus text format, as far as the health files under /run/edge-moe use it.

Private to this collection: it may change in any release. Pure: text in, samples out.
A line that does not parse is counted and passed over, so that one odd line never hides the others.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

MAX_SAMPLES = 10_000
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,?)')
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class Parsed(NamedTuple):
    samples: list[Sample]
    bad_lines: int


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match.group(1), match.group(0)), text)


def _parse_line(line: str) -> Sample | None:
    name = _NAME.match(line)
    if name is None:
        return None
    position = name.end()
    labels: dict[str, str] = {}
    if line[position : position + 1] == "{":
        position += 1
        while True:
            label = _LABEL.match(line, position)
            if label is None:
                break
            labels[label.group(1)] = _unescape(label.group(2))
            position = label.end()
            if not label.group(3):
                break
        close = re.compile(r"\s*\}").match(line, position)
        if close is None:
            return None
        position = close.end()
    elif not line[position : position + 1].isspace():
        return None
    fields = line[position:].split()
    # A second field would be the sample's own time stamp.
    if len(fields) not in (1, 2):
        return None
    try:
        return Sample(name.group(0), labels, float(fields[0]))
    except ValueError:
        return None


def parse(text: str) -> Parsed:
    """Every sample of the text, in order, at most MAX_SAMPLES."""
    samples: list[Sample] = []
    bad = 0
    for raw in text.split("\n"):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        sample = _parse_line(line)
        if sample is None:
            bad += 1
        elif len(samples) < MAX_SAMPLES:
            samples.append(sample)
    return Parsed(samples, bad)


def find(samples: list[Sample], name: str, **labels: str) -> Sample | None:
    """The first sample of that name that carries all those labels."""
    for sample in samples:
        if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items()):
            return sample
    return None


def value(samples: list[Sample], name: str, **labels: str) -> float | None:
    """A finite value, or None when the sample is missing or not a number."""
    sample = find(samples, name, **labels)
    return sample.value if sample is not None and math.isfinite(sample.value) else None


def whole(samples: list[Sample], name: str, **labels: str) -> int | None:
    found = value(samples, name, **labels)
    return None if found is None else int(found)
