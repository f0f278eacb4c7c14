# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user can get wrong is refused in one line that says what was seen and what to do."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

from .conftest import NATIVE, PROJECT, Playbook, role

MODEL: dict[str, Any] = {"moe_model_sha256": "ab" * 32, "moe_model_url": "http://127.0.0.1:9/model.gguf"}
PIN = json.loads((NATIVE / "llama.cpp.json").read_text())


def test_a_machine_that_is_no_jetson_names_the_variable(playbook: Playbook) -> None:
    played = playbook.run([role("jetpack", "preflight")])
    assert played.rc != 0
    assert "board is not a Jetson:" in played.words
    assert "/proc/device-tree/compatible" in played.words
    assert "jetpack_allow_non_jetson=true" in played.words


def test_the_variable_lets_it_pass(playbook: Playbook) -> None:
    played = playbook.run([role("jetpack", "preflight")], {"jetpack_allow_non_jetson": True, "jetpack_min_free_mib": 0})
    assert "is not a Jetson" not in played.words
    if os.geteuid() == 0:
        assert "dpkg --audit" in played.words or played.rc == 0
    else:
        assert "not root. Use become" in played.words


@pytest.mark.skipif(os.geteuid() != 0, reason="without root the refusal of no root comes first")
def test_a_full_disk_names_both_sizes(playbook: Playbook) -> None:
    played = playbook.run(
        [role("jetpack", "preflight")], {"jetpack_allow_non_jetson": True, "jetpack_min_free_mib": 2**40}
    )
    assert played.rc != 0
    assert f"MiB free, {2**40} MiB are needed (jetpack_min_free_mib)" in played.words


def test_a_taken_port_names_who_holds_it(playbook: Playbook) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        played = playbook.run([role("llama_server", "preflight")], {**MODEL, "llama_server_port": port})
    assert played.rc != 0
    assert f"port {port} is taken by " in played.words
    assert f"(pid {os.getpid()}, " in played.words
    assert "set llama_server_port to a free one" in played.words


def test_a_free_port_is_accepted(playbook: Playbook) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert playbook.run([role("llama_server", "preflight")], {**MODEL, "llama_server_port": port}).rc == 0


@pytest.mark.parametrize(
    "model",
    [
        {"moe_model_sha256": "ab" * 32},
        {"moe_model_sha256": "ab" * 32, "moe_model_url": "http://x/m.gguf", "moe_model_path": "/m.gguf"},
        {"moe_model_sha256": "AB", "moe_model_url": "http://x/m.gguf"},
        {"moe_model_url": "http://x/m.gguf"},
    ],
)
def test_unclear_model_settings_are_named(playbook: Playbook, model: dict[str, Any]) -> None:
    played = playbook.run([role("moe_model", "settings")], model)
    assert played.rc != 0
    assert "set exactly one of moe_model_url" in played.words


def test_a_model_with_another_hash_is_refused_and_leaves_nothing(playbook: Playbook, tmp_path: Path) -> None:
    source = tmp_path / "stick" / "model.gguf"
    source.parent.mkdir()
    source.write_bytes(b"GGUF" + bytes(4096))
    target = tmp_path / "models"
    variables = {"moe_model_path": str(source), "moe_model_sha256": "ab" * 32, "moe_model_dir": str(target)}
    owner = {"name": "Own it", "ansible.builtin.import_role": {"name": "edge.moe.moe_model"}}
    if os.geteuid() != 0:
        target.mkdir()
    played = playbook.run([owner], variables)
    assert played.rc != 0
    assert "ab" * 32 in played.words
    assert not (target / "model.gguf").exists()


def test_a_file_that_is_no_model_is_told_apart(playbook: Playbook, tmp_path: Path) -> None:
    page = tmp_path / "model.gguf"
    page.write_text("<!DOCTYPE html><html><body>Not found</body></html>")
    settings = {"moe_model_path": str(page), "moe_model_sha256": "ab" * 32, "moe_model_dir": str(tmp_path / "models")}
    played = playbook.run_book("edge.moe.plan", {"board": settings})
    assert played.rc != 0
    assert "HTML" in played.words or "web page" in played.words


def archive_of(folder: Path, commit: str) -> Path:
    """A source archive that says it is llama.cpp at `commit`."""
    path = folder / "source.tar.gz"
    members = {
        "src/ggml/src/ggml-cpu/ggml-cpu.c": b"int main(void) { return 0; }\n",
        "src/.git/HEAD": f"{commit}\n".encode(),
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def build_settings(folder: Path, archive: Path, sha256: str) -> dict[str, Any]:
    return {
        "llama_cpp_build_host": "localhost",
        "llama_cpp_kind": "test",
        "llama_cpp_cuda": False,
        "llama_cpp_source": "archive",
        "llama_cpp_archive": str(archive),
        "llama_cpp_archive_sha256": sha256,
        "llama_cpp_archive_subdir": "src",
        "llama_cpp_cache_dir": str(folder / "build"),
        "llama_cpp_artifact_dir": str(folder / "artifacts"),
    }


def digest(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_archive_with_another_hash_names_both(playbook: Playbook, tmp_path: Path) -> None:
    archive = archive_of(tmp_path, PIN["commit"])
    played = playbook.run([role("llama_cpp", "artifact")], build_settings(tmp_path, archive, "cd" * 32))
    assert played.rc != 0
    assert f"has sha256 {digest(archive)}, wanted is {'cd' * 32}" in played.words
    assert not (tmp_path / "artifacts").exists()


def test_an_archive_that_is_not_there_is_named(playbook: Playbook, tmp_path: Path) -> None:
    settings = build_settings(tmp_path, tmp_path / "none.tar.gz", "cd" * 32)
    played = playbook.run([role("llama_cpp", "artifact")], settings)
    assert played.rc != 0
    assert f"{tmp_path}/none.tar.gz (on the controller) is not there" in played.words


def test_a_source_of_another_commit_is_refused_by_name(playbook: Playbook, tmp_path: Path) -> None:
    archive = archive_of(tmp_path, "f" * 40)
    played = playbook.run([role("llama_cpp", "artifact")], build_settings(tmp_path, archive, digest(archive)))
    assert played.rc != 0
    assert "f" * 40 in played.words
    assert PIN["commit"] in played.words


def test_a_changed_patch_is_refused_by_its_hash(playbook: Playbook, tmp_path: Path) -> None:
    native = tmp_path / "native"
    shutil.copytree(NATIVE, native)
    patch = native / PIN["patch"]
    patch.write_text(patch.read_text() + "\n")
    archive = archive_of(tmp_path, PIN["commit"])
    settings = {**build_settings(tmp_path, archive, digest(archive)), "_llama_cpp_native_dir": str(native)}
    extra = ("--extra-vars", json.dumps({"_llama_cpp_native_dir": str(native)}))
    played = playbook.run([role("llama_cpp", "artifact")], settings, arguments=extra)
    assert played.rc != 0
    assert f"has sha256 {digest(patch)}" in played.words
    assert PIN["patch_sha256"] in played.words


def test_a_variable_set_for_one_host_is_seen_on_that_host_alone(playbook: Playbook, tmp_path: Path) -> None:
    """Two boards of one group, one of them with a smaller cache: their plans differ in that and in what follows."""
    gib = 1024**3
    facts = {"memory": {"total_bytes": 8 * gib, "available_bytes": 7 * gib}, "cores": 6, "cuda": None, "nvme": []}
    gguf = {
        "path": "m.gguf", "size_bytes": 20 * gib, "architecture": "qwen3moe", "layers": 48, "experts": 128,
        "experts_used": 8, "moe_layers": 48, "expert_bytes": 2 * 1024**2, "cycle_bytes": 48 * 8 * 2 * 1024**2,
        "experts_total_bytes": 18 * gib, "dense_bytes": gib, "kv_bytes_per_token": 98304, "context_train": 32768,
        "embedding": 2048, "vocabulary": 150000, "shards": {"count": 1, "present": 1, "missing": []},
    }  # fmt: skip
    plan = {
        "name": "Plan",
        "edge.moe.serving_plan": {"gguf": gguf, "jetson": facts, "overrides": "{{ llama_server_overrides }}"},
        "register": "planned",
    }
    unit = PROJECT / "roles" / "llama_server" / "templates" / "server.env.j2"
    write = {
        "name": "Write the server's environment",
        "ansible.builtin.template": {
            "src": str(unit),
            "dest": str(tmp_path / "{{ inventory_hostname }}.env"),
            "mode": "0644",
        },
        "vars": {"edge_moe_plan": "{{ planned.plan }}", "_llama_cpp_current": "test"},
    }
    hosts: dict[str, dict[str, Any]] = {
        "kitchen": MODEL,
        "workshop": {**MODEL, "llama_server_overrides": {"cache_mib": 1111}},
    }
    played = playbook.run([role("llama_server", "settings"), plan, write], hosts=hosts)
    assert played.rc == 0, played.text
    workshop = (tmp_path / "workshop.env").read_text()
    kitchen = (tmp_path / "kitchen.env").read_text()
    assert "EDGE_MOE_CACHE_MIB=1111\n" in workshop
    assert "EDGE_MOE_CACHE_MIB=" in kitchen
    assert "1111" not in kitchen


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("swapless_slice_name", "edge-moe.service", "ends in .slice (edge-moe.slice)"),
        ("swapless_slice_memory_max", "6 GiB", "systemd takes bytes with K, M, G or T (6G)"),
    ],
)
def test_a_slice_that_systemd_would_ignore_is_refused(
    playbook: Playbook, variable: str, value: str, remedy: str
) -> None:
    played = playbook.run([role("swapless_slice", "preflight")], {variable: value})
    assert played.rc != 0
    assert f'{variable} is "{value}"' in played.words
    assert remedy in played.words
