# SPDX-License-Identifier: GPL-3.0-or-later
"""Does this command line, or this environment, place experts on the CPU? Pure, but for the alarm around patterns.

Flags are read as llama.cpp reads them: `--n_cpu_moe` is `--n-cpu-moe`, a value is the next argument. `--flag=value`
is taken too. Overrides (`-ot PATTERN=BUFFER,...`) count if the first pattern that matches some expert tensor names a
CPU buffer.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence

from .config import Config

_COUNTED = ("--n-cpu-moe", "-ncmoe")
_OVERRIDE = ("--override-tensor", "-ot")
_TRUE = ("1", "on", "true", "enabled")
_KINDS = ("up", "down", "gate", "gate_up")
_LAYERS = 256
# A pattern comes from any user's command line: it is not allowed to keep us from the clock.
_PATTERN_LIMIT_S = 0.05
_PATTERN_LENGTH = 1024


def _number(text: str) -> int | None:
    """As std::stoi would: leading digits; None if there are none."""
    match = re.match(r"\s*\+?(\d+)", text)
    return int(match.group(1)) if match else None


def _expert_tensors() -> Iterable[str]:
    for layer in range(_LAYERS):
        for kind in _KINDS:
            yield f"blk.{layer}.ffn_{kind}_exps.weight"
            yield f"blk.{layer}.ffn_{kind}_chexps.weight"


class _TooSlow(Exception):
    pass


def _alarm(_number: int, _frame: object) -> None:
    raise _TooSlow


def _any_expert_on_cpu(overrides: list[tuple[re.Pattern[str], bool]]) -> bool:
    for name in _expert_tensors():
        for pattern, on_cpu in overrides:
            if pattern.search(name):
                if on_cpu:
                    return True
                break
    return False


def overrides_place_experts(values: Iterable[str]) -> bool:
    """`values`: what each -ot was given. A pattern that cannot be judged counts if it speaks of experts."""
    parts = [part.partition("=") for value in values for part in value[:_PATTERN_LENGTH].split(",") if "=" in part]
    if not any(buffer.startswith("CPU") for _pattern, _equals, buffer in parts):
        return False
    mentions = any("exps" in pattern and buffer.startswith("CPU") for pattern, _equals, buffer in parts)
    previous = signal.signal(signal.SIGALRM, _alarm)
    try:
        # The matcher looks for pending signals, so that a pattern that explodes is cut off.
        signal.setitimer(signal.ITIMER_REAL, _PATTERN_LIMIT_S)
        try:
            compiled = [(re.compile(pattern), buffer.startswith("CPU")) for pattern, _equals, buffer in parts]
            result = _any_expert_on_cpu(compiled)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (_TooSlow, re.error, RecursionError, OverflowError):
        result = mentions
    finally:
        signal.signal(signal.SIGALRM, previous)
    return result


def _placed_layers(text: str, config: Config) -> bool:
    layers = _number(text)
    return layers is not None and (layers > 0 or config.count_zero_n_cpu_moe)


def argv_places_experts(argv: Sequence[str], config: Config) -> bool:
    overrides = []
    for index, argument in enumerate(argv[1:], 1):
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
        if not equals:
            value = argv[index + 1] if index + 1 < len(argv) else ""
        if flag in _COUNTED and flag in config.moe_flags:
            if _placed_layers(value, config):
                return True
        elif flag in config.moe_flags:
            return True
        elif flag in _OVERRIDE:
            overrides.append(value)
    return overrides_place_experts(overrides)


def environment_places_experts(environment: Mapping[str, str], config: Config) -> bool:
    if environment.get("LLAMA_ARG_CPU_MOE", "").lower() in _TRUE:
        return True
    layers = environment.get("LLAMA_ARG_N_CPU_MOE")
    if layers is not None and _placed_layers(layers, config):
        return True
    override = environment.get("LLAMA_ARG_OVERRIDE_TENSOR")
    return override is not None and overrides_place_experts([override])
