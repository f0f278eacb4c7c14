# SPDX-License-Identifier: GPL-3.0-or-later
"""QEMU's command line and the choice of acceleration; QEMU itself is a small script where one is needed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from edge_moe_testbed import qemu
from edge_moe_testbed.common import TestbedError

MACHINE = qemu.Machine(
    name="one",
    folder=Path("/boards/one"),
    image=Path("/images/abc"),
    port=2222,
    memory_mib=768,
    cpus=2,
    nvme_mbps=None,
    accelerator="tcg",
)


def option(argv: list[str], name: str, containing: str = "") -> str:
    found = [argv[i + 1] for i, word in enumerate(argv) if word == name and containing in argv[i + 1]]
    assert len(found) == 1, f"{name} with {containing!r}: {found}"
    return found[0]


def test_ssh_is_forwarded_from_loopback_only() -> None:
    assert option(qemu.command(MACHINE), "-netdev") == "user,id=net,hostfwd=tcp:127.0.0.1:2222-:22"


def test_emulation_uses_a_thread_a_cpu() -> None:
    argv = qemu.command(MACHINE)
    assert option(argv, "-accel") == "tcg,thread=multi"
    assert option(argv, "-smp") == "2"
    assert option(argv, "-cpu") == "max"


def test_kvm_is_used_when_chosen() -> None:
    assert option(qemu.command(replace(MACHINE, accelerator="kvm")), "-accel") == "kvm"


def test_the_nvme_disk_is_throttled_only_on_request() -> None:
    assert "throttling" not in option(qemu.command(MACHINE), "-drive", "id=nvme")
    slow = option(qemu.command(replace(MACHINE, nvme_mbps=300)), "-drive", "id=nvme")
    assert slow.endswith(",throttling.bps-total=300000000")


def test_commas_in_a_path_do_not_become_options() -> None:
    argv = qemu.command(replace(MACHINE, folder=Path("/a,readonly=on/b")))
    assert "file=/a,,readonly=on/b/nvme.img" in option(argv, "-drive", "id=nvme")
    assert option(argv, "-fw_cfg", "hostname") == "name=opt/edge-moe/hostname,file=/a,,readonly=on/b/hostname"


def test_private_keys_are_passed_as_files_and_never_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "ssh_host_ed25519_key").write_text("SECRET")
    assert not any("SECRET" in word for word in qemu.command(replace(MACHINE, folder=tmp_path)))


@pytest.fixture
def fake_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in QEMU's place that counts its starts and then does what FAKE_QEMU says."""
    program = tmp_path / "bin" / qemu.QEMU
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho start >>"$0.starts"\neval "$FAKE_QEMU"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("EDGE_MOE_HOME", str(tmp_path))
    monkeypatch.delenv("EDGE_MOE_ACCEL", raising=False)
    monkeypatch.setattr(qemu.os.path, "exists", lambda path: True)
    monkeypatch.setattr(qemu.os, "access", lambda path, mode: True)
    return program


def starts(program: Path) -> int:
    log = program.with_name(program.name + ".starts")
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_kvm_that_boots_is_used_and_asked_once(fake_qemu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_QEMU", "echo 'edge-moe: probe ok'")
    assert qemu.accelerator(Path("/images/abc")) == "kvm"
    assert qemu.accelerator(Path("/images/abc")) == "kvm"
    assert starts(fake_qemu) == 1


def test_kvm_that_accepts_a_machine_and_never_boots_it_is_given_up(
    fake_qemu: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(qemu, "PROBE_LIMIT_S", 0.5)
    monkeypatch.setenv("FAKE_QEMU", "exec sleep 30")
    assert qemu.accelerator(Path("/images/abc")) == "tcg"
    assert "gave no answer within 0.5 s" in capsys.readouterr().out


def test_kvm_that_fails_is_given_up_with_its_message(
    fake_qemu: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_QEMU", "echo 'failed to set MSR' >&2; exit 134")
    assert qemu.accelerator(Path("/images/abc")) == "tcg"
    assert "failed to set MSR" in capsys.readouterr().out


def test_another_image_or_boot_is_asked_anew(fake_qemu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_QEMU", "echo 'edge-moe: probe ok'")
    qemu.accelerator(Path("/images/abc"))
    qemu.accelerator(Path("/images/def"))
    monkeypatch.setattr(qemu, "_boot_id", lambda: "another boot")
    qemu.accelerator(Path("/images/def"))
    assert starts(fake_qemu) == 3


@pytest.mark.parametrize("content", ["", "[]", "{", json.dumps({"works": True})])
def test_a_damaged_memory_of_the_probe_is_no_answer(
    fake_qemu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "kvm-probe.json").write_text(content)
    monkeypatch.setenv("FAKE_QEMU", "exit 1")
    assert qemu.accelerator(Path("/images/abc")) == "tcg"
    assert starts(fake_qemu) == 1


def test_acceleration_can_be_forced_and_a_typo_is_refused(fake_qemu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_MOE_ACCEL", "tcg")
    assert qemu.accelerator(Path("/images/abc")) == "tcg"
    assert starts(fake_qemu) == 0
    monkeypatch.setenv("EDGE_MOE_ACCEL", "xen")
    with pytest.raises(TestbedError, match="'xen'; it accepts kvm or tcg"):
        qemu.accelerator(Path("/images/abc"))
