# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import jinja2
import pytest
import yaml
from edge_moe_clock_floor.config import Config, ConfigError, load, parse

ROLE = Path(__file__).parents[3] / "roles" / "gpu_clock_floor"


def role_defaults() -> dict[str, object]:
    return yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())


def shipped(**changes: object) -> str:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)  # noqa: S701 - no HTML
    environment.filters["ternary"] = lambda value, yes, no: yes if value else no
    template = environment.from_string((ROLE / "templates" / "default.j2").read_text())
    return template.render(ansible_managed="Ansible managed", **{**role_defaults(), **changes})


def test_the_shipped_file_holds_every_setting_at_its_default() -> None:
    text = shipped()
    assert parse(text) == Config()
    assert {line.partition("=")[0] for line in text.splitlines() if line and line[0] != "#"} == {
        field.name.upper() for field in fields(Config)
    }


def test_each_setting_is_documented_above_it() -> None:
    lines = shipped().splitlines()
    for number, line in enumerate(lines):
        if line and not line.startswith("#"):
            assert lines[number - 1].startswith("# "), line


def test_role_defaults_and_argument_specs_are_the_same() -> None:
    options = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    defaults = role_defaults()
    assert options.keys() == defaults.keys()
    # What the plan decides is a template in the defaults.
    for name in options.keys() - {"gpu_clock_floor_enabled"}:
        assert options[name]["default"] == defaults[name], name
    assert {name for name in options if name != "gpu_clock_floor_enabled"} == {
        f"gpu_clock_floor_{field.name}" for field in fields(Config)
    }


def test_other_values_reach_the_service() -> None:
    text = shipped(
        gpu_clock_floor_floor_hz=918000000,
        gpu_clock_floor_hold_s=2.5,
        gpu_clock_floor_libraries=["/a/libllama.so*", "/b c/libllama.so"],
        gpu_clock_floor_moe_flags=["--cpu-moe"],
        gpu_clock_floor_count_zero_n_cpu_moe=True,
    )
    config = parse(text.replace("/b c/", "/b\\ c/"))
    assert config == Config(
        floor_hz=918000000,
        hold_s=2.5,
        libraries=("/a/libllama.so*", "/b c/libllama.so"),
        moe_flags=("--cpu-moe",),
        count_zero_n_cpu_moe=True,
    )


@pytest.mark.parametrize(
    "line",
    [
        "FLOOR_HZ=1020",
        "FLOOR_HZ=-1",
        "FLOOR_HZ=918MHz",
        "FLOOR_HZ=",
        "HOLD_S=nan",
        "HOLD_S=-1",
        "HOLD_S=1e9",
        "LIBRARIES=libllama.so",
        "LIBRARIES=",
        "LIBRARIES='/a",
        "FUNCTIONS=a-b",
        "FUNCTIONS=''",
        "MOE_FLAGS=cpu-moe",
        "COUNT_ZERO_N_CPU_MOE=maybe",
        "RESCAN_S=0",
        "RESCAN_S=soon",
    ],
)
def test_a_bad_value_names_itself_its_line_and_what_is_accepted(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("# comment\n\n" + line)
    assert line in str(caught.value)
    assert "line 3" in str(caught.value)
    assert "takes" in str(caught.value)


def test_every_bad_line_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("HOLD_S=x\nNO_SUCH=1\nnonsense\n")
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "NO_SUCH is not a setting" in lines[1]
    assert "HOLD_S" in lines[1], "the settings there are"
    assert "not KEY=value" in lines[2]


def test_quotes_and_comments() -> None:
    assert parse("HOLD_S='2' # longer\n").hold_s == 2.0
    assert parse("MOE_FLAGS=\n").moe_flags == ()


def test_a_missing_file_means_the_defaults_and_an_unreadable_one_does_not(tmp_path: Path) -> None:
    assert load(str(tmp_path / "none")) == Config()
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(tmp_path))
    odd = tmp_path / "odd"
    odd.write_bytes(b"HOLD_S=\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(odd))
    odd.write_text("HOLD_S=x")
    with pytest.raises(ConfigError, match=str(odd)):
        load(str(odd))
