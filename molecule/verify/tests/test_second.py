# SPDX-License-Identifier: GPL-3.0-or-later
"""What is kept after other prompts and everything that a board can fail for here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "results"
NAME = "box-verify"


def results() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((RESULTS / "history" / NAME).iterdir())]


def test_each_failure_is_kept_with_its_class(host: Any) -> None:
    seen = [[failure["class"] for failure in result["verdict"]["failures"]] for result in results()]
    limits = "memory" in host.file("/sys/fs/cgroup/cgroup.controllers").content_string.split()
    # a board that fails for its speed alone is measured again before it fails
    slow = [["too_slow"]] * (2 if limits else 1)
    # converge twice, second.yml twice; then failures.yml, which measures a reference anew and in the end as it is
    wanted = [*([[]] * 4), ["text_differs"], [], *slow, ["incomplete"], []]
    assert [[name for name in classes if name != "swap_not_off"] for classes in seen] == wanted


def test_other_prompts_have_a_reference_of_their_own(host: Any) -> None:
    other = results()[2]  # the first two are those of converge.yml
    assert [request["id"] for request in other["served"]["requests"]] == ["ko-2", "ko-2"]
    assert (other["served"]["n_predict"], other["served"]["rounds"]) == (4, 2)
    references = [json.loads(path.read_text()) for path in RESULTS.glob(f"reference-{NAME}-*.json")]
    assert sorted(len(reference["requests"]) for reference in references) == [2, 2]
    assert {request["id"] for reference in references for request in reference["requests"]} == {"ko-1", "ko-2", "en-1"}


def test_a_server_that_did_not_answer_leaves_its_journal(host: Any) -> None:
    hung = next(result for result in results() if result["served"].get("error"))
    assert hung["served"]["requests"] == []
    assert "edge-moe: cache" in hung["served"]["journal"]


def test_board_serves_again(host: Any) -> None:
    assert host.service("edge-moe-server.service").is_running
    assert not host.service("edge-moe-reference.service").is_running
