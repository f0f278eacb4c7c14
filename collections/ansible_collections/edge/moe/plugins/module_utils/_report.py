# SPDX-License-Identifier: GPL-3.0-or-later
"""Private to edge.moe, may change at any time: results and plans as text for a terminal. Pure functions."""

from __future__ import annotations

from typing import Any

HOSTS_A_BLOCK = 3
_SHOWN_APART = ("reasons", "budget", "server_args", "environment", "estimate", "would_change")
MIB = 1024**2


def _number(value: Any, pattern: str, missing: str = "-") -> str:
    return missing if value is None else pattern.format(value)


def _bytes(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1024**3:.1f} GiB" if value >= 10 * 1024**3 else f"{value / MIB:,.0f} MiB"


def _mhz(value: int | None) -> str:
    return "-" if not value else f"{value / 1e6:.0f} MHz"


def plan_line(plan: dict[str, Any]) -> str:
    """The plan in a few words."""
    parts = [str(plan.get("decision", "?"))]
    if plan.get("decision") == "cache":
        parts.append(f"{plan.get('cache_mib')} MiB")
    parts.append(f"-t {plan.get('threads')}")
    parts.append(f"-c {plan.get('context')}")
    return " ".join(parts)


def verdict_line(verdict: dict[str, Any]) -> str:
    """Passed, or the classes of what failed."""
    if verdict.get("passed"):
        return "passed"
    return "FAILED: " + ", ".join(failure["class"] for failure in verdict.get("failures") or [])


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Label and text of every row for one host's result file."""
    reference, served = result.get("reference") or {}, result.get("served") or {}
    gpu = served.get("gpu") or {}
    verdict = result.get("verdict") or {}
    requests = len(served.get("requests") or [])
    prompts = len({request["id"] for request in served.get("requests") or []})
    ratio = _number(verdict.get("ratio"), " ({:.2f}x)", "")
    swap = _number(served.get("memory_swap_max"), "memory.swap.max {}")
    equal = "yes" if verdict.get("text_equal") else "NO"
    return [
        ("board", str(result.get("board") or "-")),
        ("L4T", str(result.get("l4t") or "-")),
        ("model", str(result.get("model") or "-")),
        ("plan", plan_line(result.get("plan") or {})),
        ("text equal", f"{equal} ({prompts} prompts, {requests} requests)"),
        ("decode, stock mmap", _number(reference.get("decode_tokens_per_s"), "{:.2f} tok/s")),
        ("decode, served", _number(served.get("decode_tokens_per_s"), "{:.2f} tok/s") + ratio),
        ("NVMe read, stock mmap", _bytes(reference.get("nvme_bytes"))),
        ("NVMe read, served", _bytes(served.get("nvme_bytes"))),
        ("GPU clock, decoding", _mhz(gpu.get("max_hz_seen"))),
        ("GPU clock, after", _mhz(gpu.get("after_hold_hz"))),
        ("swap of the server", f"{swap} ({'swap is on' if served.get('swap_on') else 'no swap on'})"),
        ("measured", str(served.get("started") or "-")),
        ("verdict", verdict_line(verdict)),
    ]


def render(results: list[dict[str, Any]]) -> str:
    """One column a host, a few hosts a block, so that it fits a terminal."""
    blocks = []
    ordered = sorted(results, key=lambda result: str(result.get("host")))
    for start in range(0, len(ordered), HOSTS_A_BLOCK):
        group = ordered[start : start + HOSTS_A_BLOCK]
        table = [["", *[str(result.get("host")) for result in group]]]
        columns = [rows(result) for result in group]
        for index, (label, _text) in enumerate(columns[0]):
            table.append([label, *[column[index][1] for column in columns]])
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]

        def rule(left: str, middle: str, right: str, widths: list[int] = widths) -> str:
            return left + middle.join("─" * (width + 2) for width in widths) + right

        lines = [rule("┌", "┬", "┐")]
        for number, line in enumerate(table):
            cells = (f" {cell:<{width}} " for cell, width in zip(line, widths, strict=True))
            lines.append("│" + "│".join(cells) + "│")
            if number == 0:
                lines.append(rule("├", "┼", "┤"))
        lines.append(rule("└", "┴", "┘"))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) if blocks else "no result file yet: run edge.moe.verify"


def plan_lines(plan: dict[str, Any]) -> str:
    """The plan with the reason of every value, for a person."""
    reasons = plan.get("reasons") or {}
    shown = [key for key in plan if key not in _SHOWN_APART]
    width = max((len(key) for key in shown), default=0)
    lines = [f"{key:<{width}}  {plan[key]}" + (f": {reasons[key]}" if key in reasons else "") for key in shown]
    if plan.get("budget"):
        lines.append("memory:")
        lines += [f"  {_bytes(entry['bytes']):>12}  {entry['item']}" for entry in plan["budget"]]
    if plan.get("estimate"):
        lines.append("speed:        " + str(plan["estimate"]["sentence"]))
    lines += [f"would change: {sentence}" for sentence in plan.get("would_change") or []]
    environment = [f"{key}={value}" for key, value in (plan.get("environment") or {}).items()]
    lines += ["arguments:    " + " ".join(plan.get("server_args") or []), "environment:  " + " ".join(environment)]
    return "\n".join(lines)


PLAN_COLUMNS = ("host", "model", "file", "decision", "cache", "threads", "context", "tok/s", "range", "why")


def plan_table(entries: list[dict[str, Any]]) -> str:
    """One line for each board and model: what would be done, how fast, and why; or why it cannot be planned.

    An entry has `host`, `model`, and either `gguf` and `plan` or `error`.
    """
    lines = [list(PLAN_COLUMNS)]
    for entry in entries:
        head = [str(entry.get("host")), str(entry.get("model")).rsplit("/", 1)[-1]]
        plan = entry.get("plan")
        if not plan:
            lines.append([*head, *["-"] * 7, str(entry.get("error") or "not planned")])
            continue
        speed = plan["estimate"]
        cache = f"{plan['cache_mib']} MiB, {plan['cycles']:g} cycles" if plan["decision"] == "cache" else "-"
        lines.append(
            [
                *head,
                _bytes((entry.get("gguf") or {}).get("size_bytes")),
                plan["decision"],
                cache,
                str(plan["threads"]),
                f"{plan['context']} of {plan['context_max']}",
                f"{speed['tokens_per_s']:.1f}",
                f"{speed['low']:.1f}-{speed['high']:.1f}",
                plan["reasons"]["decision"],
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(PLAN_COLUMNS) - 1)]
    return "\n".join(
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=False)), line[-1]])
        for line in lines
    )
