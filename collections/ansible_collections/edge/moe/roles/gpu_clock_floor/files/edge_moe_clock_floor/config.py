# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings: one frozen dataclass, which is the only place with defaults, and the reader of /etc/default/..."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace
from typing import Any

PATH = "/etc/default/edge-moe-clock-floor"


@dataclass(frozen=True)
class Config:
    """Each field is set in the file by its name in capitals (FLOOR_HZ=...)."""

    floor_hz: int = 0
    hold_s: float = 1.0
    libraries: tuple[str, ...] = ("/opt/edge-moe/llama.cpp/current/lib/libllama.so*",)
    functions: tuple[str, ...] = ("llama_decode", "llama_process", "llama_synchronize")
    moe_flags: tuple[str, ...] = ("--cpu-moe", "-cmoe", "--n-cpu-moe", "-ncmoe")
    count_zero_n_cpu_moe: bool = False
    rescan_s: float = 5.0
    watch_running: bool = True


class ConfigError(Exception):
    """One line for each bad setting: its name, the value seen and what it accepts."""


_BOOLEANS = {"1": True, "yes": True, "true": True, "on": True, "0": False, "no": False, "false": False, "off": False}


def _integer(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    value = int(text)
    # 1020 instead of 1020000000 is the likely mistake, and it would silently mean the lowest clock.
    if 0 < value < 1_000_000:
        raise ValueError
    return value


def _seconds(low: float, high: float, text: str) -> float:
    value = float(text)
    if not low <= value <= high:  # also false for nan
        raise ValueError
    return value


def _boolean(text: str) -> bool:
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise ValueError from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def _some(text: str) -> tuple[str, ...]:
    words = _words(text)
    if not words:
        raise ValueError
    return words


def _globs(text: str) -> tuple[str, ...]:
    words = _some(text)
    if any(not word.startswith("/") for word in words):
        raise ValueError
    return words


def _functions(text: str) -> tuple[str, ...]:
    words = _some(text)
    if any(not (word.isascii() and word.isidentifier()) for word in words):
        raise ValueError
    return words


def _flags(text: str) -> tuple[str, ...]:
    words = _words(text)
    if any(not word.startswith("-") for word in words):
        raise ValueError
    return words


_READERS = {
    "floor_hz": (_integer, "a frequency in Hz such as 918000000, or 0 for the highest"),
    "hold_s": (lambda text: _seconds(0.0, 60.0, text), "seconds from 0 to 60"),
    "libraries": (_globs, "absolute paths or globs, separated by blanks, at least one"),
    "functions": (_functions, "names of C functions, separated by blanks, at least one"),
    "moe_flags": (_flags, "command-line flags that start with -, separated by blanks"),
    "count_zero_n_cpu_moe": (_boolean, "yes or no"),
    "rescan_s": (lambda text: _seconds(0.1, 300.0, text), "seconds from 0.1 to 300"),
    "watch_running": (_boolean, "yes or no"),
}


def parse(text: str) -> Config:
    """KEY=value lines as a shell would read them: blank lines, # comments and quotes allowed."""
    known = {field.name.upper(): field.name for field in fields(Config)}
    values: dict[str, Any] = {}  # each reader gives its field's type
    errors = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, raw = line.partition("=")
        key = key.strip()
        if not equals:
            errors.append(f"line {number}: {line!r} is not KEY=value")
            continue
        if key not in known:
            errors.append(f"line {number}: {key} is not a setting; there are {', '.join(sorted(known))}")
            continue
        reader, accepts = _READERS[known[key]]
        try:
            values[known[key]] = reader(" ".join(shlex.split(raw, comments=True)))
        except ValueError:  # shlex raises it too, for an open quote
            errors.append(f"line {number}: {key}={raw.strip()} is not accepted: it takes {accepts}")
    if errors:
        raise ConfigError("\n".join(errors))
    return replace(Config(), **values)


def load(path: str = PATH) -> Config:
    """A file that is not there means the defaults; one that cannot be read or parsed is an error."""
    try:
        with open(path, encoding="utf-8") as handle:
            return parse(handle.read())
    except FileNotFoundError:
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except ConfigError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error
