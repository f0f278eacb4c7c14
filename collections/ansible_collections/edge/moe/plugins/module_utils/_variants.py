# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ways of serving one model that are measured against each other, and the stage on which one after another runs.

Private to this collection: it may change in any release.

A variant runs as the reference unit with a drop-in under /run, so user, slice, swap limit and sandbox are those of
serving. Whatever happens to the process that measures, the board is put back by a guard: a transient unit that waits
for a lock which the kernel takes from a process that ends, however it ends. The normal end is no other way.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import itertools
import os
import re
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from ansible_collections.edge.moe.plugins.module_utils import _expert_cache, _gguf, _measure, _plan
from ansible_collections.edge.moe.plugins.module_utils._host import Host
from ansible_collections.edge.moe.plugins.module_utils._systemd import assignment, command_word

GUARD = "edge-moe-stage.service"
LOCK = "/run/edge-moe-stage.lock"
# A server may take 30 s to stop; putting the board back stops one and starts another.
STOP_S = 90.0
RESTORE_S = 240.0
# A process that was just killed leaves its lock and its guard for a moment.
TAKEN_S = 10.0
LAST_WORDS = 40
WORDS_MAX = 300
CHARACTERS_MAX = 4096


class VariantError(Exception):
    """The key, the value and what is accepted."""


class StageError(Exception):
    """A variant that could not be served: what was seen and what to do. Others may still be."""


class StageLost(Exception):
    """The stage is somebody else's, or was put back under this process: nothing can be measured on it."""


# Variants


@dataclass(frozen=True)
class Variant:
    """`args` follow --model, --host and --port; `read_ahead_kb` None leaves the drive's as it was found."""

    name: str
    title: str = ""
    args: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    floor: bool = False
    read_ahead_kb: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "args": list(self.args)}


def _text(where: str, value: Any) -> str:
    """Text as it may stand in a unit; a number that YAML made of it is text again."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise VariantError(f"{where} is {value!r}; it must be text")
    text = str(value)
    try:
        assignment("", text)
        size = len(text.encode())
    except ValueError:  # half a surrogate pair is one as well
        raise VariantError(f"{where} is {text!r}; it must have no line break or control character") from None
    if size > CHARACTERS_MAX:
        raise VariantError(f"{where} has {size} bytes; it may have {CHARACTERS_MAX}")
    return text


def parse_variant(given: dict[str, Any]) -> Variant:
    """A variant from what a user wrote. Raises VariantError."""
    known = [one.name for one in fields(Variant)]
    for key in given:
        if key not in known:
            raise VariantError(f"variant key {key!r} is not known; it can be any of {', '.join(known)}")
    name = given.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,39}", name):
        raise VariantError(
            f"variant name is {name!r}; it must be at most 40 lower-case letters, digits, dots, hyphens and "
            "underscores, the first a letter or a digit"
        )
    where = f"variant {name}: "
    args = given.get("args") or []
    if not isinstance(args, (list, tuple)) or len(args) > WORDS_MAX:
        raise VariantError(f"{where}args is {args!r}; it must be a list of at most {WORDS_MAX} texts")
    words = tuple(_text(f"{where}an argument", word) for word in args)
    for word in words:
        if word.split("=")[0] in _plan.RESERVED_ARGS:
            raise VariantError(f"{where}args holds {word}; model and address are the same for all variants")
    environment = given.get("environment") or {}
    if not isinstance(environment, dict) or len(environment) > WORDS_MAX:
        raise VariantError(f"{where}environment is {environment!r}; it must be a dictionary of texts")
    for key in environment:
        if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", key):
            raise VariantError(f"{where}environment has {key!r}; a name has letters, digits and underscores only")
    floor = given.get("floor", False)
    if not isinstance(floor, bool):
        raise VariantError(f"{where}floor is {floor!r}; it must be true or false")
    read_ahead = given.get("read_ahead_kb")
    low, high = _plan.INTEGER_OVERRIDES["read_ahead_kb"]
    whole = isinstance(read_ahead, int) and not isinstance(read_ahead, bool)
    if read_ahead is not None and not (whole and low <= read_ahead <= high):
        raise VariantError(
            f"{where}read_ahead_kb is {read_ahead!r}; it must be a whole number between {low} and {high}, or nothing"
        )
    return Variant(
        name,
        _text(f"{where}title", given.get("title") or name),
        words,
        {key: _text(f"{where}environment {key}", value) for key, value in environment.items()},
        floor,
        read_ahead,
    )


def _number_after(args: Sequence[str], flags: Sequence[str], default: int) -> int:
    """The whole number after the last of the flags: llama.cpp takes the last as well."""
    for flag, value in reversed(list(itertools.pairwise(args))):
        if flag in flags and value.isdecimal():
            return int(value)
    return default


def with_room(variant: Variant, slots: int, slot_tokens: int = 0) -> Variant:
    """The variant with at least so many slots, each of at least its own context and `slot_tokens`."""
    own_slots = max(1, _number_after(variant.args, ("--parallel", "-np"), 1))
    own = _number_after(variant.args, ("--ctx-size", "-c"), _plan.CONTEXT_DEFAULT) // own_slots
    if slots <= own_slots and slot_tokens <= own:
        return variant
    slots = max(slots, own_slots)
    more = ("--parallel", str(slots), "-c", str(slots * max(own, slot_tokens)))
    return replace(variant, args=(*variant.args, *more))


# The board


@dataclass(frozen=True)
class Base:
    """What all variants share. `model` is the first of its shards, `url` where llama-server shall listen."""

    program: str
    model: str
    url: str
    block_device: str | None = None
    unit: str = "edge-moe-reference.service"
    served_unit: str = "edge-moe-server.service"
    floor_unit: str = "edge-moe-clock-floor.service"

    def __post_init__(self) -> None:
        for name in (self.unit, self.served_unit, self.floor_unit):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9:_.@-]{0,199}\.service", name):
                raise StageError(f"{name!r} is no name of a service unit; it must be such as {Base.unit}")
        if self.block_device and not _measure.valid_device(self.block_device):
            raise StageError(f"block_device is {self.block_device!r}; it must be a name such as nvme0n1")
        for path in (self.program, self.model):
            if not os.path.isabs(path):
                raise StageError(f"{path!r} is no absolute path of the board")

    @property
    def drop_in(self) -> str:
        return f"/run/systemd/system/{self.unit}.d/variant.conf"

    @property
    def read_ahead(self) -> str | None:
        return f"/sys/class/block/{self.block_device}/queue/read_ahead_kb" if self.block_device else None

    def server_command(self, variant: Variant) -> list[str]:
        parts = urllib.parse.urlsplit(self.url)
        address = ["--host", parts.hostname or "127.0.0.1", "--port", str(parts.port or 80)]
        return [self.program, "--model", self.model, *address, *variant.args]


class Found(NamedTuple):
    """How the board was. `floor` and `read_ahead_kb` are None where there is nothing of the kind."""

    served: bool
    floor: bool | None
    read_ahead_kb: int | None


def drop_in_text(title: str, command: Sequence[str], environment: dict[str, str], files: Sequence[str]) -> str:
    """The drop-in that makes the reference unit run `command`, cold: `files` leave the page cache first.

    The guard is a requisite: the unit starts only while there is one and stops when it is stopped, but never starts it,
    as one that is bound to it would, in the middle of a stop.
    """
    # Health files are where the measurement looks for them, whatever else the variant sets.
    variables = {"EDGE_MOE_STATS_DIR": _expert_cache.HEALTH_DIR, **environment}
    lines = [
        f"# {title}: written while it is measured, gone afterwards",
        "[Unit]",
        f"Requisite={GUARD}",
        f"After={GUARD}",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "EnvironmentFile=",
        "Environment=",
        *(f"Environment={assignment(name, value)}" for name, value in sorted(variables.items())),
        "ExecStartPre=",
        *(
            f"ExecStartPre=-/usr/bin/dd {command_word('if=' + path)} iflag=nocache count=0 status=none"
            for path in files
        ),
        "ExecStart=",
        "ExecStart=" + " ".join(command_word(word) for word in command),
    ]
    return "\n".join(lines) + "\n"


def restore_commands(base: Base, found: Found) -> list[list[str]]:
    """What puts the board back, in order. Each may fail without keeping the next from being tried."""
    commands = [
        ["/usr/bin/systemctl", "stop", base.unit],
        ["/usr/bin/rm", "-f", base.drop_in],
        ["/usr/bin/rmdir", "--ignore-fail-on-non-empty", os.path.dirname(base.drop_in)],
        ["/usr/bin/systemctl", "daemon-reload"],
        # A variant that died is no fault of the board.
        ["/usr/bin/systemctl", "reset-failed", base.unit],
    ]
    if base.read_ahead and found.read_ahead_kb is not None:
        commands.append(["/bin/sh", "-c", f"echo {found.read_ahead_kb} > {base.read_ahead}"])
    if found.floor is not None:
        commands.append(["/usr/bin/systemctl", "start" if found.floor else "stop", base.floor_unit])
    if found.served:
        commands.append(["/usr/bin/systemctl", "start", base.served_unit])
    return commands


def model_files(host: Host, model: str) -> list[str]:
    """All shards of the model that are there."""
    count = re.search(r"-of-(\d{5})\.gguf$", model)
    try:
        names = _gguf.shard_names(model, int(count.group(1))) if count else [model]
    except _gguf.GgufError as error:
        raise StageError(str(error)) from None
    return [name for name in names if host.exists(name)]


def parse_perplexity(text: str) -> tuple[float, float] | None:
    """Value and error margin from llama-perplexity's last lines."""
    match = re.search(r"Final estimate: PPL = (\d{1,12}\.\d{1,9}) \+/- (\d{1,12}\.\d{1,9})", text)
    return (float(match.group(1)), float(match.group(2))) if match else None


# llama-perplexity refuses what only a server has. Those of the plan and the likeliest others, with their values.
SERVER_FLAGS = {
    "--metrics": 0,
    "--no-ui": 0,
    "--no-webui": 0,
    "--slots": 0,
    "--no-slots": 0,
    "--jinja": 0,
    "--no-jinja": 0,
    "--no-cont-batching": 0,
    "--cache-ram": 1,
    "-cram": 1,
    "--ctx-checkpoints": 1,
    "--cache-reuse": 1,
    "--alias": 1,
    "-a": 1,
    "--api-key": 1,
    "--api-key-file": 1,
    "--chat-template": 1,
    "--chat-template-file": 1,
    "--chat-template-kwargs": 1,
    "--reasoning-format": 1,
    "--reasoning-budget": 1,
    "--threads-http": 1,
    "--timeout": 1,
    "-to": 1,
}


def without_server_flags(args: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = 0
    for word in args:
        if skip:
            skip -= 1
        elif word in SERVER_FLAGS:
            skip = SERVER_FLAGS[word]
        else:
            kept.append(word)
    return kept


class Stage:
    """The board while variants are measured, as a context. Raises StageLost where it cannot be had.

    `serve` and `perplexity` raise StageError for a variant that does not work and StageLost for a stage that is gone.
    """

    def __init__(self, host: Host, base: Base) -> None:
        self.host = host
        self.base = base
        self.client = _measure.Client(base.url, 10.0)
        self.found = Found(False, None, None)
        self._lock: int | None = None

    # Guard

    def _take_lock(self) -> bool:
        descriptor = os.open(self.host.path(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def _drop_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _show(self, unit: str) -> dict[str, str]:
        properties = "LoadState,ActiveState,Result,ExecMainStatus,InvocationID"
        answer = self.host.command(["systemctl", "show", f"--property={properties}", "--", unit], STOP_S)
        if answer.rc != 0:
            raise StageLost(f"systemd says nothing about {unit}: {answer.problem or answer.stderr.strip()[-300:]}")
        return dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)

    def _guard(self) -> str:
        return self._show(GUARD).get("ActiveState", "unknown")

    def _start_guard(self) -> None:
        # The guard holds all it needs in itself: the files of a module that was killed may be gone.
        after = [
            "--property=ExecStopPost=-" + " ".join(command_word(word) for word in command)
            for command in restore_commands(self.base, self.found)
        ]
        self._do(
            "systemd-run",
            "--quiet",
            "--collect",
            f"--unit={GUARD}",
            f"--description=Puts the board back when process {os.getpid()} ends measuring",
            f"--property=TimeoutStopSec={STOP_S:g}",
            *after,
            "--",
            "/usr/bin/flock",
            LOCK,
            "/usr/bin/true",
        )

    def _wait_free(self) -> None:
        """Take the lock, once no guard of an earlier process is left."""
        started = time.monotonic()
        while True:
            taken, guard = self._take_lock(), self._guard()
            if taken and guard in ("inactive", "failed"):
                return
            self._drop_lock()
            waited = time.monotonic() - started
            if waited > (RESTORE_S if guard == "deactivating" else TAKEN_S):
                raise StageLost(
                    f"another measurement has this board: {LOCK} is "
                    f"{'free' if taken else 'held'} and {GUARD} is {guard}. Wait for it, or end it and have the "
                    f"board put back with: systemctl stop {GUARD}"
                )
            time.sleep(0.25)

    def __enter__(self) -> Stage:
        self._wait_free()
        try:
            base = self.base
            states = {unit: self._show(unit) for unit in (base.unit, base.served_unit, base.floor_unit)}
            if states[base.unit].get("LoadState") != "loaded":
                raise StageLost(
                    f"{base.unit} is not installed on this board; ansible-playbook site.yml installs it (and measuring "
                    "needs root)"
                )

            def runs(unit: str) -> bool:
                return states[unit].get("ActiveState") in ("active", "activating", "reloading")

            self.found = Found(
                runs(base.served_unit),
                runs(base.floor_unit) if states[base.floor_unit].get("LoadState") == "loaded" else None,
                self.host.read_int(base.read_ahead) if base.read_ahead else None,
            )
            self._start_guard()
        except StageError as error:
            self._drop_lock()
            raise StageLost(str(error)) from error
        except BaseException:
            self._drop_lock()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        try:
            # A guard that was stopped under this process did not see what was changed after it.
            if self._guard() in ("inactive", "failed"):
                self._start_guard()
        finally:
            self._drop_lock()
        deadline = time.monotonic() + RESTORE_S
        while self._guard() not in ("inactive", "failed"):
            if time.monotonic() >= deadline:
                raise StageLost(f"{GUARD} did not put the board back within {RESTORE_S:g} s: systemctl status {GUARD}")
            time.sleep(0.25)

    def check(self) -> None:
        """Raises StageLost if the guard has gone, which has put the board back."""
        guard = self._guard()
        if guard != "active":
            raise StageLost(f"{GUARD} is {guard}: somebody stopped it, so the board was put back; run it again")

    # Variants

    def _do(self, *argv: str) -> None:
        answer = self.host.command(list(argv), STOP_S)
        if answer.rc != 0:
            why = answer.problem or answer.stderr.strip()[-300:] or f"exit code {answer.rc}"
            raise StageError(f"{' '.join(argv[:2])} failed: {why}")

    def _set_read_ahead(self, wanted_kb: int | None) -> None:
        path, value = self.base.read_ahead, self.found.read_ahead_kb if wanted_kb is None else wanted_kb
        if path is None or value is None:
            if wanted_kb is not None:
                raise StageError(f"read_ahead_kb {wanted_kb} cannot be set: no block device is known for the model")
            return
        try:
            with open(self.host.path(path), "wb", buffering=0) as attribute:
                attribute.write(f"{value}\n".encode())
        except OSError as error:
            raise StageError(f"{path}: {error.strerror} (wanted {value})") from None
        applied = self.host.read_int(path)
        if applied != value:
            raise StageError(f"{path}: wrote {value}, the kernel applied {applied}")

    def _set_floor(self, wanted: bool) -> None:
        if self.found.floor is None:
            if wanted:
                raise StageError(f"{self.base.floor_unit} is not installed, so this variant cannot have its floor")
            return
        self._do("systemctl", "start" if wanted else "stop", self.base.floor_unit)

    def _start(self, variant: Variant, command: Sequence[str]) -> str:
        """Start `command` in the unit, cold, and return the invocation's id."""
        base = self.base
        self.check()
        try:
            # Both are down before the page cache is dropped: pages that are mapped would stay in it.
            self._do("systemctl", "stop", base.unit, *([base.served_unit] if self.found.served else []))
            path = self.host.path(base.drop_in)
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            text = drop_in_text(variant.name, command, variant.environment, model_files(self.host, base.model))
            # Root alone reads it: an environment may hold what is not for all.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text)
            self._do("systemctl", "daemon-reload")
            self._set_floor(variant.floor)
            self._set_read_ahead(variant.read_ahead_kb)
            self._do("systemctl", "start", base.unit)
        except OSError as error:
            raise StageError(f"{error.filename}: {error.strerror}") from None
        except StageError as error:
            self.check()
            raise StageError(f"{error}. {self._evidence('')}") from None
        return self._show(base.unit).get("InvocationID", "")

    def _journal(self, invocation: str) -> list[str]:
        self.host.command(["journalctl", "--sync"], STOP_S)
        which = f"_SYSTEMD_INVOCATION_ID={invocation}" if invocation else f"_SYSTEMD_UNIT={self.base.unit}"
        answer = self.host.command(["journalctl", "--no-pager", "--output=cat", f"--lines={LAST_WORDS}", which], STOP_S)
        return [line.strip()[:300] for line in answer.stdout.splitlines() if line.strip()]

    def _evidence(self, invocation: str) -> str:
        """How the unit ended, and the line of its journal that is likeliest to say why."""
        unit, words = self._show(self.base.unit), self._journal(invocation)
        said = [word for word in words if re.search("(?i)error|failed|EDGE_MOE|out of memory|invalid", word)] or words
        how = f"{self.base.unit} is {unit.get('ActiveState')}, result {unit.get('Result')}"
        how += f", exit status {unit.get('ExecMainStatus')}"
        remedy = (
            " It ran out of memory: try a smaller cache, context or number of slots."
            if unit.get("Result") == "oom-kill"
            else ""
        )
        return f"{how}; it said: {said[-1] if said else 'nothing'}.{remedy}"

    def serve(self, variant: Variant, ready_s: float = 600.0) -> None:
        """Serve the variant in place of whatever ran, and return once it answers."""
        invocation = self._start(variant, self.base.server_command(variant))
        deadline = time.monotonic() + ready_s
        while True:
            state = self._show(self.base.unit).get("ActiveState")
            if state not in ("active", "activating"):
                self.check()
                raise StageError(f"variant {variant.name} does not start: {self._evidence(invocation)}")
            with contextlib.suppress(OSError, http.client.HTTPException, _measure.MeasureError):
                if self.client.call("GET", "/health", None, 5.0)[0] == 200:
                    return
            if time.monotonic() >= deadline:
                raise StageError(
                    f"variant {variant.name} is not ready after {ready_s:g} s: {self._evidence(invocation)}"
                )
            time.sleep(0.5)

    def perplexity(self, variant: Variant, text: str, chunks: int, context: int, limit_s: float) -> tuple[float, float]:
        """Value and error margin of the variant's perplexity on the board's file `text`, by llama-perplexity."""
        program = os.path.join(os.path.dirname(self.base.program), "llama-perplexity")
        command = [program, "--model", self.base.model, *without_server_flags(variant.args)]
        command += ["-c", str(context), "--chunks", str(chunks), "--file", text]
        invocation = self._start(variant, command)
        deadline = time.monotonic() + limit_s
        while self._show(self.base.unit).get("ActiveState") in ("active", "activating"):
            if time.monotonic() >= deadline:
                raise StageError(f"the perplexity of variant {variant.name} took more than {limit_s:g} s")
            time.sleep(0.5)
        found = parse_perplexity("\n".join(self._journal(invocation)))
        if found is None:
            self.check()
            raise StageError(f"no perplexity of variant {variant.name}: {self._evidence(invocation)}")
        return found
