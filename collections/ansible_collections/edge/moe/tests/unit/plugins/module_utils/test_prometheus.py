# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import math

from ansible_collections.edge.moe.plugins.module_utils._prometheus import find, parse, value, whole
from hypothesis import given
from hypothesis import strategies as st

TEXT = """\
# HELP edge_moe_cache_hits_total Lookups that found their expert.
# TYPE edge_moe_cache_hits_total counter
edge_moe_cache_hits_total{pid="12",phase="decode"} 2.6123e4
edge_moe_cache_hits_total{pid="12",phase="prefill",} 7 1795957200000
edge_moe_cache_info{pid="12",reason="a \\"word\\", a \\\\ and\\na line"} 1
edge_moe_clock_floor_raised 0
"""


def test_values_by_label() -> None:
    samples = parse(TEXT).samples
    assert whole(samples, "edge_moe_cache_hits_total", phase="decode") == 26123
    assert whole(samples, "edge_moe_cache_hits_total", phase="prefill") == 7
    assert value(samples, "edge_moe_clock_floor_raised") == 0
    assert value(samples, "edge_moe_cache_hits_total", phase="none") is None
    assert parse(TEXT).bad_lines == 0


def test_escapes_in_labels() -> None:
    info = find(parse(TEXT).samples, "edge_moe_cache_info")
    assert info is not None
    assert info.labels["reason"] == 'a "word", a \\ and\na line'


def test_an_odd_line_costs_only_itself() -> None:
    parsed = parse('good 1\nbad{a="1" 2\nname\nname x\n{} 3\na{b=c} 1\nbetter 2\n')
    assert [sample.name for sample in parsed.samples] == ["good", "better"]
    assert parsed.bad_lines == 5


def test_no_number_is_none() -> None:
    samples = parse("a NaN\nb +Inf\nc -Inf\n").samples
    assert math.isnan(samples[0].value)
    assert [value(samples, name) for name in "abc"] == [None, None, None]
    assert whole(samples, "b") is None


@given(st.text(max_size=400))
def test_any_text_parses(text: str) -> None:
    parsed = parse(text)
    assert len(parsed.samples) + parsed.bad_lines <= text.count("\n") + 1


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12),
        max_size=4,
    ),
    st.floats(allow_nan=False),
)
def test_what_is_written_is_read(labels: dict[str, str], number: float) -> None:
    def quote(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    inside = ",".join(f'{key}="{quote(text)}"' for key, text in labels.items())
    line = f"name{{{inside}}} {number!r}\n"
    sample = parse(line).samples[0]
    assert sample.labels == labels
    assert sample.value == number
