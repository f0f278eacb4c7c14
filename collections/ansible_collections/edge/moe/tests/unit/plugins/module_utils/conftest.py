# SPDX-License-Identifier: GPL-3.0-or-later
"""A board below a directory whose systemd is pretended: units, drop-ins under /run, and the guard with its lock."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _variants
from ansible_collections.edge.moe.plugins.module_utils._host import CommandResult, Host

REFERENCE, SERVED, FLOOR = "edge-moe-reference.service", "edge-moe-server.service", "edge-moe-clock-floor.service"
DEVICE = "nvme0n1"
DONE = CommandResult(0, "", "", None)


def systemd_words(line: str) -> list[str]:
    """The words of a command line as systemd reads them; shlex knows the same quotes and backslashes."""
    return [word.replace("$$", "$").replace("%%", "%") for word in shlex.split(line)]


class SystemdHost(Host):
    """Runs what a unit's drop-in says as far as the test pretends it, and the guard's commands as systemd would."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.units = {REFERENCE: "inactive", SERVED: "active", FLOOR: "active"}
        self.results: dict[str, tuple[str, str]] = {}
        self.invocations = 0
        self.commands: list[list[str]] = []
        self.started: list[tuple[list[str], dict[str, str]]] = []
        self.journal = ""
        # Called with command and environment of each start; its answer is the unit's state.
        self.on_start: Callable[[list[str], dict[str, str]], str] = lambda _command, _environment: "active"
        self.guard: list[str] | None = None
        self._lock = threading.RLock()
        self.write(f"/sys/class/block/{DEVICE}/queue/read_ahead_kb", "64\n")
        os.makedirs(self.path("/run"))

    def write(self, name: str, text: str) -> Path:
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def command(self, argv: list[str], timeout_s: float = 5.0) -> CommandResult:
        with self._lock:
            self.commands.append(argv)
            self._step_guard()
            program, *words = argv
            return getattr(self, "_" + os.path.basename(program).replace("-", "_"))(words)

    # The guard

    def _lock_is_free(self) -> bool:
        path = self.path(_variants.LOCK)
        if not os.path.exists(path):
            return True
        with open(path) as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def _step_guard(self) -> None:
        if self.guard is not None and self._lock_is_free():
            self.end_guard()

    def end_guard(self) -> None:
        commands, self.guard = self.guard or [], None
        if self.units[REFERENCE] == "active":  # stops with the guard
            self.units[REFERENCE] = "inactive"
        for line in commands:
            assert line.startswith("-"), "a failed command must not keep the next from running"
            words = systemd_words(line[1:])
            assert os.path.isabs(words[0])
            self.command(words)

    def _systemd_run(self, words: list[str]) -> CommandResult:
        if self.guard is not None:
            return CommandResult(1, "", "Unit edge-moe-stage.service already exists.", None)
        options = words[: words.index("--")]
        assert "--collect" in options
        assert f"--unit={_variants.GUARD}" in options
        assert words[words.index("--") + 1 :] == ["/usr/bin/flock", _variants.LOCK, "/usr/bin/true"]
        prefix = "--property=ExecStopPost="
        self.guard = [option.removeprefix(prefix) for option in options if option.startswith(prefix)]
        return DONE

    def _rm(self, words: list[str]) -> CommandResult:
        Path(self.path(words[-1])).unlink(missing_ok=True)
        return DONE

    def _rmdir(self, words: list[str]) -> CommandResult:
        if self.exists(words[-1]) and not self.entries(words[-1]):
            os.rmdir(self.path(words[-1]))
        return DONE

    def _sh(self, words: list[str]) -> CommandResult:
        _echo, value, _into, path = words[1].split()
        self.write(path, value + "\n")
        return DONE

    # Units

    def _systemctl(self, words: list[str]) -> CommandResult:
        verb, *names = [word for word in words if not word.startswith("--")]
        return getattr(self, "_" + verb.replace("-", "_"))(names)

    def _show(self, names: list[str]) -> CommandResult:
        (name,) = names
        state = "active" if self.guard is not None else "inactive"
        if name != _variants.GUARD:
            state = self.units.get(name, "inactive")
        load = "loaded" if name in self.units or (name == _variants.GUARD and self.guard) else "not-found"
        result, status = self.results.get(name, ("success", "0"))
        text = f"LoadState={load}\nActiveState={state}\nResult={result}\nExecMainStatus={status}\n"
        text += f"InvocationID={self.invocations:032x}\nMainPID={77 if state == 'active' else 0}\nControlGroup=\n"
        return CommandResult(0, text, "", None)

    def _daemon_reload(self, _names: list[str]) -> CommandResult:
        return DONE

    def _reset_failed(self, names: list[str]) -> CommandResult:
        self.units.update({name: "inactive" for name in names if self.units[name] == "failed"})
        return DONE

    def _stop(self, names: list[str]) -> CommandResult:
        for name in names:
            if name == _variants.GUARD:
                self.end_guard()
            elif self.units[name] != "failed":
                self.units[name] = "inactive"
        return DONE

    def _start(self, names: list[str]) -> CommandResult:
        (name,) = names
        if name == REFERENCE:
            return self._start_reference()
        self.units[name] = "active"
        if name == SERVED:
            self.units[REFERENCE] = "inactive"
        return DONE

    def _start_reference(self) -> CommandResult:
        path = self.path(f"/run/systemd/system/{REFERENCE}.d/variant.conf")
        lines = Path(path).read_text().splitlines()
        if self.guard is None:
            return CommandResult(5, "", f"Unit {_variants.GUARD} not found.", None)
        assert self.units[SERVED] != "active", "the pages of a server that runs stay in the page cache"
        execs = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
        assert execs[0] == "", "the unit's own command has to be taken back first"
        assert len(execs) == 2
        variables = [line.removeprefix("Environment=") for line in lines if line.startswith("Environment=")]
        words = [shlex.split(line)[0].replace("%%", "%") for line in variables[1:]]
        environment = dict(word.split("=", 1) for word in words)
        self.invocations += 1
        command = systemd_words(execs[1])
        self.started.append((command, environment))
        self.units[REFERENCE] = self.on_start(command, environment)
        return DONE

    # Journal

    def _journalctl(self, _words: list[str]) -> CommandResult:
        return CommandResult(0, self.journal, "", None)

    # What a test asks

    def as_found(self) -> dict[str, Any]:
        return {
            "units": dict(self.units),
            "guard": self.guard,
            "drop_in": self.entries("/run/systemd/system"),
            "read_ahead_kb": self.read_int(f"/sys/class/block/{DEVICE}/queue/read_ahead_kb"),
        }


def answer(body: dict[str, Any]) -> tuple[int, bytes]:
    return 200, json.dumps(body).encode()


class FakeServer:
    """A llama-server that counts: its words are its prompt's length, its tokens are words."""

    def __init__(self, web: Any) -> None:
        self.web = web
        self.rate = 10.0
        self.asked: list[dict[str, Any]] = []
        # Called before each answer; what it raises breaks the connection.
        self.before: Callable[[], None] = lambda: None
        web.answers["/health"] = lambda _request: (200, b"{}")
        web.answers["/completion"] = self.complete
        web.answers["/tokenize"] = lambda request: (200, json.dumps({"tokens": request["content"].split()}).encode())
        web.answers["/detokenize"] = lambda request: (
            200,
            json.dumps({"content": " ".join(request["tokens"])}).encode(),
        )

    def complete(self, request: Any) -> tuple[int, bytes]:
        self.before()
        self.asked.append(request)
        n = request["n_predict"]
        timings = {
            "prompt_n": len(request["prompt"].split()),
            "prompt_ms": 90.0,
            "prompt_per_second": 100.0,
            "predicted_n": n,
            "predicted_ms": 1000.0 * n / self.rate,
            "predicted_per_second": self.rate,
        }
        return answer({"content": "ok", "tokens": [1] * n, "timings": timings})


@pytest.fixture
def systemd(tmp_path: Path) -> SystemdHost:
    return SystemdHost(tmp_path / "board")


@pytest.fixture
def llama(web: Any) -> FakeServer:
    return FakeServer(web)


@pytest.fixture
def base(web: Any) -> _variants.Base:
    return _variants.Base("/opt/edge-moe/bin/llama-server", "/mnt/nvme/m.gguf", web.url, DEVICE)
