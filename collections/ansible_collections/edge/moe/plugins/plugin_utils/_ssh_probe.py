# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask machines over SSH what they are: one connection and one command each, a bounded number at once.

Private to this collection: it may change in any release. It needs paramiko, which only a controller has.

Nothing is installed or written on the machine. A host key that is not known is refused, never learnt. Every step has
what is left of one deadline, so a machine that answers one byte a second costs no more than one that is off.
"""

from __future__ import annotations

import base64
import concurrent.futures
import hashlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ansible_collections.edge.moe.plugins.module_utils import _boards
from ansible_collections.edge.moe.plugins.plugin_utils._targets import Target

try:
    import paramiko
except ImportError as error:
    MISSING: ImportError | None = error
else:
    MISSING = None

LOG_CHANNEL = "edge_moe.boards"
# Failures become a reason of the host; paramiko would print them to the terminal as well.
logging.getLogger(LOG_CHANNEL).addHandler(logging.NullHandler())
logging.getLogger(LOG_CHANNEL).propagate = False


class Access(NamedTuple):
    """How to reach the machines. Times in seconds: `connect_s` for TCP, `total_s` for everything."""

    known_hosts: tuple[str, ...]
    key_files: tuple[str, ...]
    agent: bool
    connect_s: float
    total_s: float


class _ProbeError(Exception):
    """Why a machine gave no facts, in one sentence."""


def fingerprint(key: paramiko.PKey) -> str:
    """As ssh-keygen -l prints it."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


class _RefuseUnknown:
    """A policy by its one method: paramiko's own class is not there where paramiko is missing."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self.files = files

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        raise _ProbeError(
            f"the host key of {hostname} is not known ({fingerprint(key)}; looked in {', '.join(self.files)}): "
            "compare it with the board's, then connect once with ssh to learn it"
        )


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _connected(target: Target, access: Access, deadline: float) -> socket.socket:
    where = f"{target.address} port {target.port}"
    try:
        return socket.create_connection((target.address, target.port), min(access.connect_s, _left(deadline)))
    except TimeoutError:
        raise _ProbeError(f"{where} does not answer within {access.connect_s:g} s: is it on and there?") from None
    except ConnectionRefusedError:
        raise _ProbeError(f"{where} refuses: the machine is on, and no SSH server listens there") from None
    except socket.gaierror as error:
        raise _ProbeError(f"{target.address} is no name that can be resolved: {error.strerror}") from None
    except OSError as error:
        raise _ProbeError(f"{where} cannot be reached: {error.strerror or error}") from None


def _ask(client: paramiko.SSHClient, deadline: float) -> bytes:
    """Run the probe and take its output, at most _boards.ANSWER_LIMIT bytes."""
    transport = client.get_transport()
    if transport is None:
        raise EOFError
    channel = transport.open_session(timeout=_left(deadline))
    channel.settimeout(_left(deadline))
    channel.exec_command("sh -s")
    try:
        channel.sendall(_boards.PROBE.encode())
        channel.shutdown_write()
    except TimeoutError:
        raise
    except OSError:
        pass  # whoever is there has answered and gone without reading the probe, and the answer says why
    answer = bytearray()
    while len(answer) < _boards.ANSWER_LIMIT:
        channel.settimeout(_left(deadline))
        part = channel.recv(_boards.ANSWER_LIMIT - len(answer))
        if not part:
            break
        answer += part
    return bytes(answer)


def _probe(target: Target, access: Access) -> dict[str, Any]:
    deadline = time.monotonic() + access.total_s
    client = paramiko.SSHClient()
    client.set_log_channel(LOG_CHANNEL)
    files = tuple(os.path.expanduser(name) for name in access.known_hosts)
    for name in files:
        if os.path.exists(name):
            client.load_system_host_keys(name)
    client.set_missing_host_key_policy(_RefuseUnknown(files))
    with _connected(target, access, deadline) as connection:
        try:
            client.connect(
                target.address,
                target.port,
                target.user,
                sock=connection,
                key_filename=[os.path.expanduser(name) for name in access.key_files] or None,
                allow_agent=access.agent,
                look_for_keys=not access.key_files,
                timeout=_left(deadline),
                banner_timeout=_left(deadline),
                auth_timeout=_left(deadline),
            )
            return _boards.parse_answer(_ask(client, deadline))
        finally:
            client.close()


def probe(target: Target, access: Access) -> dict[str, Any]:
    """Facts of one machine with `reachable` true, or `reachable` false with the `reason`. Never raises."""
    where = f"{target.address} port {target.port}"
    began = time.monotonic()
    too_late = f"{where} did not finish its answer within {access.total_s:g} s"
    try:
        return {"reachable": True, "reason": None, **_probe(target, access)}
    except (_ProbeError, _boards.AnswerError) as error:
        reason = str(error)
    except paramiko.BadHostKeyException as error:
        reason = (
            f"the host key of {where} is {fingerprint(error.key)} "
            f"and known_hosts has {fingerprint(error.expected_key)}: "
            "the board was set up anew, or another machine answers; compare it with the board's, then ssh-keygen -R"
        )
    except paramiko.AuthenticationException:
        user = target.user or "this user"
        reason = f"{where} does not let {user} in: give user and private_key_file, or add the key there"
    except (TimeoutError, EOFError):
        reason = too_late
    except (paramiko.SSHException, OSError, ValueError) as error:
        said = _boards.printable(str(error)) or type(error).__name__
        # paramiko has several words for a step that ran out of its time.
        late = time.monotonic() - began > access.total_s * 0.9
        reason = too_late if late else f"{where} does not speak SSH as it should: {said}"
    return {"reachable": False, "reason": reason}


def probe_all(
    targets: Iterable[Target],
    access: Access,
    at_once: int,
    ask: Callable[[Target, Access], dict[str, Any]] = probe,
) -> dict[str, dict[str, Any]]:
    """What each target answered, by name; at most `at_once` connections are open."""
    wanted = list(targets)
    with concurrent.futures.ThreadPoolExecutor(max(1, min(at_once, len(wanted)))) as pool:
        answers = pool.map(lambda target: ask(target, access), wanted)
        return {target.name: answer for target, answer in zip(wanted, answers, strict=True)}
