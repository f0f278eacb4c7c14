# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that turn results and plans into text for a person, and text into what systemd reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.edge.moe.plugins.module_utils import _estimate, _health, _report, _systemd, _tuned


def systemd_quote(value: Any) -> str:
    """One word of a unit's command line: quoted, with specifiers and variables taken literally."""
    try:
        return _systemd.command_word(str(value))
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


def health_table(looks: dict[str, Any]) -> str:
    """One line for each board; a board without a result did not answer."""
    return _health.table({host: look["line"] if look else None for host, look in looks.items()})


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "report_table": _report.render,
            "plan_measurements": _estimate.points_of_result,
            "plan_table": _report.plan_table,
            "plan_text": _report.plan_lines,
            "health_table": health_table,
            "systemd_quote": systemd_quote,
            "tune_table": _tuned.table,
            "tuned_result": _tuned.parse_result,
        }
