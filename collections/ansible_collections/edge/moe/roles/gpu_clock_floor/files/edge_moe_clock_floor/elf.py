# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of an ELF file and names of functions -> file offsets, which is what a uprobe wants. Pure.

Reads .dynsym and .symtab through the section headers, for 32 and 64 bit and both byte orders; a stripped library
still has .dynsym. A symbol's address becomes an offset through the PT_LOAD segment that holds it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from typing import NamedTuple

Buffer = bytes | mmap.mmap

_PT_LOAD = 1
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_STT_FUNC = 2
_SHN_UNDEF = 0


class ElfError(Exception):
    """Not an ELF file, or one that contradicts itself; the message says which."""


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int
    entry_size: int


class _Layout(NamedTuple):
    header: str
    segment: str
    section: str
    symbol: str


_LAYOUTS = {
    1: _Layout("HHIIIIIHHHHHH", "IIIIIIII", "IIIIIIIIII", "IIIBBH"),
    2: _Layout("HHIQQQIHHHHHH", "IIQQQQQQ", "IIQQQQIIQQ", "IBBHQQ"),
}


def _unpack(form: str, data: Buffer, offset: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(form, data, offset)
    except (struct.error, OverflowError):
        raise ElfError("the file ends before what its headers point at") from None


def _name_offsets(strings: bytes, name: str) -> set[int]:
    """Every place in a string table that reads as `name`: tables share tails, so it may begin inside another."""
    wanted = name.encode() + b"\0"
    places, at = set(), strings.find(wanted)
    while at >= 0:
        places.add(at)
        at = strings.find(wanted, at + 1)
    return places


def function_offsets(data: Buffer, names: Iterable[str]) -> dict[str, int]:
    """File offset of each named function that this file defines; a name that is not there is left out."""
    if data[:4] != b"\x7fELF":
        raise ElfError("not an ELF file")
    if len(data) < 20 or data[4] not in _LAYOUTS or data[5] not in (1, 2):
        raise ElfError("an ELF file of an unknown class or byte order")
    wide = data[4] == 2
    order = "<" if data[5] == 1 else ">"
    layout = _LAYOUTS[data[4]]
    head = _unpack(order + layout.header, data, 16)
    ph_offset, sh_offset = head[4], head[5]
    ph_size, ph_count, sh_size, sh_count = head[8:12]

    segments = []
    for index in range(ph_count):
        part = _unpack(order + layout.segment, data, ph_offset + index * ph_size)
        offset, address, file_size = (part[2], part[3], part[5]) if wide else (part[1], part[2], part[4])
        if part[0] == _PT_LOAD:
            segments.append((address, offset, file_size))

    sections = []
    for index in range(sh_count if sh_offset else 0):
        part = _unpack(order + layout.section, data, sh_offset + index * sh_size)
        sections.append(_Section(part[1], part[4], part[5], part[6], part[9]))

    wanted = set(names)
    found: dict[str, int] = {}
    for section in sections:
        if section.kind not in (_SHT_DYNSYM, _SHT_SYMTAB) or not wanted - set(found):
            continue
        for name, address in _symbols(data, section, sections, order + layout.symbol, wide, wanted - set(found)):
            for start, offset, size in segments:
                if start <= address < start + size and address - start + offset < len(data):
                    found[name] = address - start + offset
    return found


def _symbols(
    data: Buffer, table: _Section, sections: list[_Section], form: str, wide: bool, names: set[str]
) -> list[tuple[str, int]]:
    if table.link >= len(sections):
        raise ElfError("a symbol table without its strings")
    text = sections[table.link]
    if max(table.offset + table.size, text.offset + text.size) > len(data):
        raise ElfError("the file ends before what its headers point at")
    strings = bytes(data[text.offset : text.offset + text.size])
    at = {place: name for name in names for place in _name_offsets(strings, name)}
    size = struct.calcsize(form)
    whole = table.size - table.size % size
    result = []
    for symbol in struct.iter_unpack(form, data[table.offset : table.offset + whole]):
        if symbol[0] not in at:
            continue
        info, section, address = (symbol[1], symbol[3], symbol[4]) if wide else (symbol[3], symbol[5], symbol[1])
        if info & 15 == _STT_FUNC and section != _SHN_UNDEF:
            result.append((at[symbol[0]], address))
    return result
