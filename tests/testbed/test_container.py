# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers without a container: which arguments a machine needs, what the image is made of, and what `up` refuses."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from edge_moe_testbed import __main__ as testbed
from edge_moe_testbed import container, container_image, image
from edge_moe_testbed.common import TestbedError
from edge_moe_testbed.container import Container
from edge_moe_testbed.login import Login

V1 = "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
HYBRID = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n" + V1 + "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"

# Answers as podman does, from files beside it; notes what it was asked for.
DRIVER = """\
#!/bin/sh
cd "${0%/*}"
[ "$1" != --runtime ] || shift 2
echo "$*" >> asked
case $1 in
    inspect) cat state 2> /dev/null || exit 125 ;;
    image) grep -qxF "$3" images 2> /dev/null || exit 1 ;;
    pull | create | import) [ ! -f "$1.fails" ] || { cat "$1.fails" >&2; exit 125; } ;;
    start) echo running > state ;;
    rm) rm state ;;
    logs) echo 'Failed to mount tmpfs at /run: Operation not permitted' ;;
esac
"""

Driver = Callable[..., Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_MOE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EDGE_MOE_CONTAINER_DRIVER", "podman")
    monkeypatch.delenv("EDGE_MOE_CONTAINER_IMAGE", raising=False)
    return tmp_path / "home"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Makes the stand-in for podman, with files that it answers from."""

    def make(**files: str) -> Path:
        folder = tmp_path / "driver"
        folder.mkdir(exist_ok=True)
        (folder / "podman").write_text(DRIVER)
        (folder / "podman").chmod(0o755)
        (folder / "asked").touch()
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return folder

    return make


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def run(*arguments: str) -> int:
    return testbed.main(["container", *arguments])


# ---- what a machine needs ----


def test_the_driver_is_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_MOE_CONTAINER_DRIVER", "docker")
    assert container.driver_name() == "docker"
    monkeypatch.setenv("EDGE_MOE_CONTAINER_DRIVER", "lxc")
    with pytest.raises(TestbedError, match="EDGE_MOE_CONTAINER_DRIVER is 'lxc'; it accepts podman or docker"):
        container.driver_name()


@pytest.mark.parametrize(
    ("installed", "taken"), [((), "podman"), (("docker",), "docker"), (("podman", "docker"), "podman")]
)
def test_the_driver_is_otherwise_one_that_is_there(
    installed: tuple[str, ...], taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGE_MOE_CONTAINER_DRIVER")
    for name in installed:
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert container.driver_name() == taken


@pytest.mark.parametrize(
    ("driver", "mounts", "command"),
    [
        ("podman", V2, ["podman"]),
        ("docker", V2, ["docker"]),
        ("podman", HYBRID, ["podman", "--runtime", "runc"]),
        ("docker", HYBRID, ["docker"]),
    ],
)
def test_only_podman_where_v2_lies_beside_v1_needs_another_runtime(
    driver: str, mounts: str, command: list[str]
) -> None:
    assert container.driver_command(driver, mounts) == command


def test_a_machine_with_v1_alone_is_told_how_to_boot() -> None:
    with pytest.raises(TestbedError, match=r"boot with systemd\.unified_cgroup_hierarchy=1"):
        container.driver_command("podman", V1)


# ---- what up and down do ----


def test_a_container_is_made_given_its_keys_and_started(
    driver: Driver, free_port: int, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = driver(images=f"edge-moe-container:{container_image.stamp()}")
    monkeypatch.setattr(Container, "wait", lambda self: None)
    assert run("up", "box", "--port", str(free_port)) == 0
    assert capsys.readouterr().out.endswith("container box: started\n")
    asked = (folder / "asked").read_text().splitlines()
    (create,) = [line for line in asked if line.startswith("create ")]
    assert "--network host " in create
    words = create.split()
    added = {after for word, after in pairwise(words) if word == "--cap-add"}
    assert added == {"SYS_ADMIN", "SYS_PTRACE"}
    assert "--privileged" not in create
    assert [line.split()[0] for line in asked[-3:]] == ["create", "cp", "start"]
    assert (home / "containers/box").stat().st_mode & 0o777 == 0o700

    assert run("up", "box", "--port", str(free_port)) == 0
    assert capsys.readouterr().out.endswith("container box: unchanged\n")

    assert run("up", "box", "--port", "9") == 2
    assert f"container box runs with port {free_port}, and 9 was asked for; remove it first" in capsys.readouterr().err

    assert run("down", "box") == 0
    assert not (home / "containers/box").exists()
    assert not (folder / "state").exists()
    assert run("down", "box") == 0
    assert capsys.readouterr().out.endswith("there is no container box\n")


def test_a_running_container_of_another_home_is_left_alone(
    driver: Driver, free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = driver(state="running\n") / "asked"
    assert run("up", "box", "--port", str(free_port)) == 2
    assert "edge-moe-box that was not started from " in (said := capsys.readouterr().err)
    assert "rm --force edge-moe-box" in said
    assert {line.split()[0] for line in asked.read_text().splitlines()} == {"inspect"}


@pytest.mark.parametrize("name", ["", "A", "-a", "a/b", "..", "a" * 43])
def test_what_is_no_host_name_is_refused(name: str) -> None:
    with pytest.raises(TestbedError, match="no name for a container"):
        Container(name)


def test_a_missing_driver_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(container, "DRIVERS", {"no-such-driver": "its-package"})
    monkeypatch.setenv("EDGE_MOE_CONTAINER_DRIVER", "no-such-driver")
    monkeypatch.setattr(container, "driver_command", lambda driver, mounts: [driver])
    assert run("up", "box", "--port", "2299") == 2
    assert "apt-get install its-package" in capsys.readouterr().err


def test_a_taken_port_is_one_clear_line(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    folder = driver()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert run("up", "box", "--port", str(port)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"port {port} of 127.0.0.1 is taken by another program" in error
    assert "create" not in (folder / "asked").read_text()


def test_what_the_driver_says_of_a_container_that_it_cannot_make_is_shown(
    driver: Driver, free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    driver(images=f"edge-moe-container:{container_image.stamp()}", create_fails="Error: no space left on device\n")
    assert run("up", "box", "--port", str(free_port)) == 2
    assert "container box: making it with podman failed: Error: no space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "problem"), [("exited", "it is exited instead of running"), ("running", "no SSH within 0 s")]
)
def test_a_systemd_that_never_comes_up_is_quoted(
    driver: Driver, free_port: int, home: Path, monkeypatch: pytest.MonkeyPatch, state: str, problem: str
) -> None:
    driver(state=f"{state}\n")
    monkeypatch.setattr(container, "START_LIMIT_S", 0.0)
    folder = home / "containers/box"
    folder.mkdir(parents=True)
    Login(folder, free_port).make_keys("box")
    (folder / "port").write_text(f"{free_port}\n")
    with pytest.raises(TestbedError) as error:
        Container("box").wait()
    assert problem in str(error.value)
    assert "Its systemd said:\nFailed to mount tmpfs at /run: Operation not permitted\n" in str(error.value)
    assert str(error.value).endswith(" exec -it edge-moe-box bash")


def test_commands_in_no_container_are_clear(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ssh", "ghost", "true") == 2
    assert "there is no container ghost; start it with: container up ghost --port PORT" in capsys.readouterr().err


def test_the_seed_holds_keys_and_address_and_keeps_the_host_key_root_s(tmp_path: Path) -> None:
    login = Login(tmp_path, 2241)
    login.make_keys("box")
    seed = container.seed(login)
    with tarfile.open(fileobj=io.BytesIO(container_image.pack(seed))) as archive:
        modes = {entry.name: (entry.mode, entry.uid) for entry in archive}
    assert modes["etc/ssh/ssh_host_ed25519_key"] == (0o600, 0)
    assert modes["home/jetson/.ssh/authorized_keys"] == (0o644, 0)
    assert seed["etc/ssh/sshd_config.d/edge-moe-address.conf"] == b"ListenAddress 127.0.0.1:2241\n"


# ---- the image ----


def test_the_stamp_follows_files_and_stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = container_image.stamp()
    files, assets = tmp_path / "files", tmp_path / "board"
    shutil.copytree(container_image.FILES, files)
    shutil.copytree(image.ASSETS, assets)
    monkeypatch.setattr(container_image, "FILES", files)
    monkeypatch.setattr(image, "ASSETS", assets)
    assert container_image.stamp() == before
    (files / "device_tree.py").write_text("#\n")
    changed = container_image.stamp()
    nvpmodel = assets / "l4t/usr/sbin/nvpmodel"
    nvpmodel.write_text(nvpmodel.read_text() + "#\n")
    assert len({before, changed, container_image.stamp()}) == 3


def test_a_named_image_is_pulled(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = driver()
    monkeypatch.setenv("EDGE_MOE_CONTAINER_IMAGE", "registry.example/box:1")
    assert container_image.ensure(["podman"]) == "registry.example/box:1"
    assert "pull registry.example/box:1" in (folder / "asked").read_text()


def test_an_image_that_cannot_be_pulled_is_made_and_that_is_said(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = driver(pull_fails="Error: dial tcp: lookup registry.example: no such host\n")
    monkeypatch.setenv("EDGE_MOE_CONTAINER_IMAGE", "registry.example/box:1")
    monkeypatch.setattr(container_image, "_build", lambda archive: archive.touch())
    name = container_image.ensure(["podman"])
    assert name == f"edge-moe-container:{container_image.stamp()}"
    assert "cannot be pulled (Error: dial tcp: lookup registry.example: no such host)" in capsys.readouterr().out
    assert (folder / "asked").read_text().splitlines()[-1].startswith('import --change CMD ["/sbin/init"] ')


def test_an_image_that_is_there_is_neither_pulled_nor_made(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"edge-moe-container:{container_image.stamp()}"
    driver(images=f"{name}\n")
    monkeypatch.setattr(container_image, "_build", lambda archive: pytest.fail("it was made"))
    assert container_image.ensure(["podman"]) == name


def test_a_missing_mmdebstrap_is_named(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = driver()
    monkeypatch.setattr(container_image, "PROGRAMS", {"no-such-program-here": "mmdebstrap"})
    with pytest.raises(TestbedError, match="apt-get install mmdebstrap"):
        container_image.ensure(["podman"])
    assert "import" not in (folder / "asked").read_text()


def test_a_build_that_fails_leaves_its_log_and_no_image(
    driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver()
    monkeypatch.setattr(image, "KEYRINGS", (Path(__file__),))

    def fail(variant: str, packages: object, target: Path, log: Path, options: object) -> None:
        log.write_text("E: no route to the mirror\n")
        raise TestbedError(f"fetching failed, full log: {log}")

    monkeypatch.setattr(image, "mmdebstrap", fail)
    with pytest.raises(TestbedError) as error:
        container_image.ensure(["podman"])
    log = home / "images/container.log"
    assert str(log) in str(error.value)
    assert log.read_text() == "E: no route to the mirror\n"
    assert [path.name for path in log.parent.iterdir() if path.name.startswith((".container", "container-"))] == []


# ---- the device tree ----


def test_python_finds_the_device_tree_where_the_scenario_puts_it(tmp_path: Path) -> None:
    stand_in = container_image.FILES / "device_tree.py"
    text = stand_in.read_text().replace("/usr/share/edge-moe-testbed/device-tree/", f"{tmp_path}/")
    (tmp_path / "edge_moe_device_tree.py").write_text(text)
    (tmp_path / "compatible").write_bytes(b"nvidia,tegra234\0")
    program = (
        "import edge_moe_device_tree, os, shutil, tempfile;"
        "print(os.read(os.open('/proc/device-tree/compatible', os.O_RDONLY), 99));"
        "shutil.rmtree(tempfile.mkdtemp()); print(shutil.rmtree.avoids_symlink_attacks);"
        "print(os.read(os.open('/proc/sys/kernel/ostype', os.O_RDONLY), 99))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said == ["b'nvidia,tegra234\\x00'", "True", "b'Linux\\n'"]
