# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which addresses an inventory names: hosts, ranges and networks, counted before any of them is touched.

Private to this collection: it may change in any release. Pure; it needs netaddr, which only a controller has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

try:
    from netaddr import AddrFormatError, IPAddress, IPNetwork, IPRange
except ImportError as error:
    MISSING: ImportError | None = error
else:
    MISSING = None

_HOST_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_-]{1,63})*\.?$")
_SHORT_RANGE = re.compile(r"(\d+\.\d+\.\d+\.)(\d+)-(\d+)$")
_NUMBERED = re.compile(r"(.*)\[(\d+):(\d+)\](.*)$")
_MAPPING_KEYS = ("name", "address", "port", "user")


class TargetError(Exception):
    """An entry that names nothing, or too much; the text says which and what is possible."""


class Target(NamedTuple):
    """One machine to ask. `name` is the inventory's, `address` is what is connected to."""

    name: str
    address: str
    port: int
    user: str | None


def _too_many(entry: str, count: int, limit: int) -> TargetError:
    return TargetError(
        f"{entry!r} names {count} addresses and at most {limit} are asked: name a smaller part, or raise max_hosts"
    )


def addresses(entry: str, limit: int) -> list[str]:
    """The addresses or names of one entry.

    A network leaves out its own and its broadcast address. Raises TargetError; nothing is expanded beyond `limit`.
    """
    text = entry.strip()
    numbered = _NUMBERED.match(text)
    if numbered:
        before, first, last, after = numbered.groups()
        count = int(last) - int(first) + 1
        if count < 1:
            raise TargetError(f"{entry!r} ends before it begins")
        if count > limit:
            raise _too_many(entry, count, limit)
        names = [f"{before}{number:0{len(first)}d}{after}" for number in range(int(first), int(last) + 1)]
        return [name for part in names for name in addresses(part, limit)]
    short = _SHORT_RANGE.match(text)
    if short:
        text = f"{short.group(1)}{short.group(2)}-{short.group(1)}{short.group(3)}"
    try:
        if "/" in text:
            network = IPNetwork(text)
            if network.size > limit + 2:
                raise _too_many(entry, network.size, limit)
            return [str(address) for address in network.iter_hosts()]
        first_text, dash, last_text = text.partition("-")
        if dash and re.fullmatch(r"[0-9a-fA-F:.]+", first_text) and ("." in first_text or ":" in first_text):
            span = IPRange(first_text.strip(), last_text.strip())
            if span.size > limit:
                raise _too_many(entry, span.size, limit)
            return [str(address) for address in span]
        # netaddr takes "10" for 0.0.0.10, which nobody means.
        if re.fullmatch(r"[\d.]+", text) or ":" in text:
            if text.count(".") != 3 and ":" not in text:
                raise AddrFormatError(text)
            return [str(IPAddress(text))]
    except (AddrFormatError, ValueError) as error:
        raise TargetError(
            f"{entry!r} is no host, range or network ({error}); it can be kitchen, board[01:20].example.com, "
            "192.0.2.11, 192.0.2.11-192.0.2.20, 192.0.2.11-20 or 192.0.2.0/27"
        ) from None
    if not _HOST_NAME.match(text):
        raise TargetError(f"{entry!r} is no host name, address, range or network")
    return [text]


def _port(value: Any, entry: Any) -> int:
    if isinstance(value, bool) or not str(value).isdecimal() or not 1 <= int(value) <= 65535:
        raise TargetError(f"{entry!r}: port is {value!r}; it must be between 1 and 65535")
    return int(value)


def expand(
    entries: Iterable[Any],
    exclude: Iterable[str] = (),
    port: int = 22,
    user: str | None = None,
    limit: int = 1024,
) -> list[Target]:
    """All targets in the order in which they are named, each name once.

    An entry is text, or a mapping with `name` and, where they differ, `address`, `port` and `user`.
    Raises TargetError for an entry that cannot be understood and for more than `limit` hosts in all.
    """
    left_out = {address for entry in exclude for address in addresses(str(entry), limit)}
    found: dict[str, Target] = {}
    for entry in entries:
        if isinstance(entry, dict):
            odd = [key for key in entry if key not in _MAPPING_KEYS]
            if odd or not entry.get("name"):
                raise TargetError(f"{entry!r} must have name and may have address, port and user")
            name = str(entry["name"])
            addressed = addresses(str(entry.get("address") or name), limit)
            if len(addressed) != 1 or not _HOST_NAME.match(name.replace(":", "_")):
                raise TargetError(f"{entry!r} must name one host by one address")
            login = str(entry["user"]) if entry.get("user") else user
            made = [Target(name, addressed[0], _port(entry.get("port", port), entry), login)]
        elif isinstance(entry, str):
            made = [Target(address, address, port, user) for address in addresses(entry, limit)]
        else:
            raise TargetError(f"{entry!r} is neither text nor a mapping")
        for target in made:
            if target.name not in left_out and target.address not in left_out:
                found.setdefault(target.name, target)
    if len(found) > limit:
        raise TargetError(f"{len(found)} hosts are named and at most {limit} are asked: name fewer, or raise max_hosts")
    return list(found.values())
