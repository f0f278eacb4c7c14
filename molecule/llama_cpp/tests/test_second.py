# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases on a board after upgrades, the way back, and everything that the role refused."""

from __future__ import annotations

import json
from typing import Any

ROOT = "/opt/edge-moe/llama.cpp"


def test_built_release_is_current_again_and_runs(host: Any) -> None:
    release = json.loads(host.file(f"{ROOT}/current/release.json").content_string)
    assert host.check_output("readlink %s", f"{ROOT}/current") == f"releases/{release['stamp']}"
    assert "-DEDGE_MOE_RELEASE" not in " ".join(release["flags"])
    said = host.run("%s --version", f"{ROOT}/current/bin/llama-server")
    assert (said.rc, "version:" in said.stdout + said.stderr) == (0, True)


def test_two_releases_lie_side_by_side(host: Any) -> None:
    """The last upgrade kept two: its own and the one that served before."""
    names = [name for name in host.file(f"{ROOT}/releases").listdir() if not name.endswith(".part")]
    flags = [json.loads(host.file(f"{ROOT}/releases/{name}/release.json").content_string)["flags"] for name in names]
    assert sorted("-DEDGE_MOE_RELEASE=after" in of_one for of_one in flags) == [False, True]


def test_the_release_before_is_remembered(host: Any) -> None:
    before = host.check_output("readlink %s", f"{ROOT}/previous").removeprefix("releases/")
    release = json.loads(host.file(f"{ROOT}/releases/{before}/release.json").content_string)
    assert "-DEDGE_MOE_RELEASE=after" in release["flags"]


def test_refused_release_is_not_among_them(host: Any) -> None:
    """It stays aside, where it can be looked at."""
    (aside,) = [name for name in host.file(f"{ROOT}/releases").listdir() if name.endswith(".part")]
    release = json.loads(host.file(f"{ROOT}/releases/{aside}/release.json").content_string)
    assert "-DEDGE_MOE_RELEASE=foreign" in release["flags"]
