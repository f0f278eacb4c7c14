# SPDX-License-Identifier: GPL-3.0-or-later
"""The image's pure parts: what names it, module order, the initramfs archive, refusals before anything is built."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from edge_moe_testbed import image
from edge_moe_testbed.common import TestbedError

MODULES_DEP = """\
kernel/drivers/block/virtio_blk.ko.xz:
kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko.xz kernel/net/core/failover.ko.xz
kernel/arch/x86/crypto/crc32c-intel.ko.xz:
kernel/fs/plain.ko: kernel/net/core/failover.ko.xz
"""


@pytest.fixture
def assets(tmp_path: Path) -> Path:
    copy = tmp_path / "board"
    shutil.copytree(image.ASSETS, copy)
    return copy


def test_stamp_of_equal_assets_is_equal(assets: Path) -> None:
    assert image.stamp(assets) == image.stamp(image.ASSETS)
    assert len(image.stamp(assets)) == 16


@pytest.mark.parametrize("change", ["edit", "add", "remove", "rename"])
def test_stamp_follows_every_change_of_an_asset(assets: Path, change: str) -> None:
    before = image.stamp(assets)
    script = assets / "l4t/usr/sbin/nvpmodel"
    if change == "edit":
        script.write_text(script.read_text() + "#\n")
    elif change == "add":
        (assets / "rootfs/etc/extra").touch()
    elif change == "remove":
        script.unlink()
    else:
        script.rename(script.with_name("other"))
    assert image.stamp(assets) != before


def test_stamp_ignores_what_python_leaves_behind(assets: Path) -> None:
    before = image.stamp(assets)
    (assets / "__pycache__").mkdir()
    (assets / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert image.stamp(assets) == before


def test_modules_come_after_what_they_need() -> None:
    table = image.read_dependencies(MODULES_DEP)
    order = image.load_order(["virtio_net", "crc32c_intel", "plain", "ext4"], table, builtin={"ext4"})
    names = [Path(file).name for file in order]
    assert names == ["failover.ko.xz", "net_failover.ko.xz", "virtio_net.ko.xz", "crc32c-intel.ko.xz", "plain.ko"]


def test_a_module_the_kernel_lacks_is_named() -> None:
    with pytest.raises(TestbedError, match="no module nvme"):
        image.load_order(["nvme"], image.read_dependencies(MODULES_DEP), builtin=set())


def test_initramfs_entries_have_the_layout_the_kernel_reads() -> None:
    data = b"12345"
    entry = image.cpio_entry("bin/sh", stat.S_IFREG | 0o755, data, inode=7)
    name_size = len("bin/sh") + 1
    assert entry[:6] == b"070701"
    assert int(entry[6:14], 16) == 7
    assert int(entry[14:22], 16) == stat.S_IFREG | 0o755
    assert int(entry[54:62], 16) == len(data)
    assert int(entry[94:102], 16) == name_size
    assert entry[110 : 110 + name_size] == b"bin/sh\0"
    # Header with name, and data, each end at a multiple of four.
    data_at = (110 + name_size + 3) // 4 * 4
    assert entry[data_at : data_at + 5] == data
    assert len(entry) % 4 == 0


def test_scripts_are_executable_in_the_image_whatever_the_checkout_did(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "tool").write_text("#!/bin/sh\n")
    (source / "tool").chmod(0o644)
    (source / "conf").write_text("x\n")
    image._copy_tree(source, target)
    assert stat.S_IMODE((target / "tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "conf").stat().st_mode) == 0o644


def test_copied_assets_replace_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    source, target, outside = tmp_path / "source", tmp_path / "target", tmp_path / "outside"
    for folder in (source, target):
        folder.mkdir()
    (source / "resolv.conf").write_text("nameserver 10.0.2.3\n")
    outside.write_text("the host's\n")
    (target / "resolv.conf").symlink_to(outside)
    image._copy_tree(source, target)
    assert outside.read_text() == "the host's\n"
    assert (target / "resolv.conf").read_text() == "nameserver 10.0.2.3\n"


def test_missing_programs_are_named_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_MOE_HOME", str(tmp_path))
    monkeypatch.setattr(image, "PROGRAMS", {"no-such-program-here": "its-package"})
    with pytest.raises(TestbedError, match="apt-get install its-package"):
        image.ensure()
    assert not image.folder_of(image.stamp()).exists()


def test_a_failed_build_leaves_no_image_and_keeps_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(variant: str, packages: object, target: Path, log: Path) -> None:
        log.write_text("E: no route to the mirror\n")
        raise TestbedError(f"fetching failed, full log: {log}")

    monkeypatch.setattr(image, "mmdebstrap", fail)
    folder = tmp_path / "images" / "0123456789abcdef"
    with pytest.raises(TestbedError, match=r"build-failed-(root|kernel)\.log"):
        image.build(folder)
    assert not folder.exists()
    assert list(folder.parent.glob(".build-*")) == []
    kept = list(folder.parent.glob("build-failed-*.log"))
    assert kept
    assert all("no route" in log.read_text() for log in kept)


@pytest.mark.parametrize(
    "script", [path for path in image.asset_files() if path.read_bytes().startswith(b"#!")], ids=lambda path: path.name
)
def test_board_scripts_parse(script: Path) -> None:
    assert script.read_text().startswith("#!/bin/sh\n")
    done = subprocess.run(["sh", "-n", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
