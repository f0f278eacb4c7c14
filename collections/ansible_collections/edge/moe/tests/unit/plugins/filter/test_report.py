# SPDX-License-Identifier: GPL-3.0-or-later
"""The table at the end of a run, the plan as text, and words of a unit's command line."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.edge.moe.plugins.filter.report import systemd_quote
from ansible_collections.edge.moe.plugins.module_utils import _report


def result(host: str, **verdict: Any) -> dict[str, Any]:
    return {
        "host": host,
        "board": "orin-nano-8gb",
        "l4t": "36.4.7",
        "model": "m.gguf",
        "plan": {"decision": "cache", "cache_mib": 2048, "threads": 4, "context": 4096},
        "reference": {"decode_tokens_per_s": 3.37, "nvme_bytes": 781 * 1024**3},
        "served": {
            "started": "2026-11-29T12:00:00Z",
            "decode_tokens_per_s": 4.96,
            "nvme_bytes": 583 * 1024**2,
            "requests": [{"id": "ko-1"}, {"id": "en-1"}, {"id": "ko-1"}, {"id": "en-1"}],
            "gpu": {"max_hz_seen": 1020000000, "after_hold_hz": 306000000},
            "memory_swap_max": "0",
            "swap_on": True,
        },
        "verdict": {"passed": True, "failures": [], "text_equal": True, "ratio": 1.472, **verdict},
    }


def test_the_table_shows_every_figure() -> None:
    table = _report.render([result("kitchen")])
    for text in (
        "kitchen", "orin-nano-8gb", "36.4.7", "cache 2048 MiB -t 4 -c 4096", "yes (2 prompts, 4 requests)",
        "3.37 tok/s", "4.96 tok/s (1.47x)", "781.0 GiB", "583 MiB", "1020 MHz", "306 MHz",
        "memory.swap.max 0 (swap is on)", "passed",
    ):  # fmt: skip
        assert text in table
    assert len({len(line) for line in table.splitlines()}) == 1


def test_failures_are_named() -> None:
    failed = result(
        "kitchen", passed=False, text_equal=False, failures=[{"class": "text_differs"}, {"class": "too_slow"}]
    )
    table = _report.render([failed])
    assert "FAILED: text_differs, too_slow" in table
    assert "NO (2 prompts, 4 requests)" in table


def test_many_hosts_make_several_blocks_in_order() -> None:
    table = _report.render([result(f"board-{number}") for number in (4, 2, 1, 3)])
    assert table.index("board-1") < table.index("board-2") < table.index("board-3") < table.index("board-4")
    assert len(table.split("\n\n")) == 2


def test_missing_figures_are_dashes() -> None:
    table = _report.render([{"host": "bare", "served": {"gpu": None}, "reference": None, "verdict": None}])
    assert "bare" in table
    assert "FAILED" in table


def test_no_result_says_what_to_run() -> None:
    assert "edge.moe.verify" in _report.render([])


def test_a_plan_is_told_with_its_reasons() -> None:
    plan = {
        "decision": "cache",
        "threads": 4,
        "reasons": {"threads": "six cores"},
        "budget": [{"item": "cache", "bytes": 2 * 1024**3}],
        "server_args": ["-t", "4"],
        "environment": {"EDGE_MOE_CACHE_MIB": "2048"},
    }
    text = _report.plan_lines(plan)
    assert "threads   4: six cores" in text
    assert "2,048 MiB  cache" in text
    assert "EDGE_MOE_CACHE_MIB=2048" in text


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("--cpu-moe", "--cpu-moe"),
        ("/mnt/my models/m.gguf", '"/mnt/my models/m.gguf"'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('say "hi"', '"say \\"hi\\""'),
        ("", '""'),
        ("/mnt/모델.gguf", "/mnt/모델.gguf"),
    ],
)
def test_words_reach_the_program_as_they_are(word: str, quoted: str) -> None:
    assert systemd_quote(word) == quoted


def test_a_line_break_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="line break"):
        systemd_quote("a\nb")
