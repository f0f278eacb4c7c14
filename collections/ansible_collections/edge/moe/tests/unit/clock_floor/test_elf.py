# SPDX-License-Identifier: GPL-3.0-or-later
"""Offsets from ELF files that the test makes: both word sizes, both byte orders, stripped or not."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from pathlib import Path

import pytest
from edge_moe_clock_floor.elf import ElfError, function_offsets
from hypothesis import given
from hypothesis import strategies as st

FUNC, OBJECT = 2, 1
Symbol = tuple[str, int, int, int]  # name, address, type, section (0: undefined)


def make_elf(
    dynsym: list[Symbol],
    symtab: list[Symbol] | None = None,
    *,
    wide: bool = True,
    order: str = "<",
    shared_tail: bool = False,
) -> bytes:
    """One PT_LOAD of addresses 0x10000..0x12000 at file offset 0x1000, then the symbol tables of `dynsym`, `symtab`."""
    head_size, ph_size, sh_size = (64, 56, 64) if wide else (52, 32, 40)
    body = bytearray(0x3000)
    sections = [(0, 0, 0, 0, 0)]
    at = 0x3000
    for kind, symbols in ((11, dynsym), (2, symtab)):
        if symbols is None:
            continue
        strings, places = b"\0", {}
        for name, *_rest in symbols:
            if shared_tail:
                strings += b"x"  # the name begins inside a longer one
            places[name] = len(strings)
            strings += name.encode() + b"\0"
        table = b""
        for name, address, info, section in [("", 0, 0, 0), *symbols]:
            place = places.get(name, 0)
            if wide:
                table += struct.pack(order + "IBBHQQ", place, 0x10 | info, 0, section, address, 8)
            else:
                table += struct.pack(order + "IIIBBH", place, address, 8, 0x10 | info, 0, section)
        index = len(sections)
        sections += [(kind, at, len(table), index + 1, 24 if wide else 16), (3, at + len(table), len(strings), 0, 0)]
        body += table + strings
        at += len(table) + len(strings)
    sh_offset = len(body)
    for kind, offset, size, link, entry in sections:
        if wide:
            body += struct.pack(order + "IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 1, entry)
        else:
            body += struct.pack(order + "IIIIIIIIII", 0, kind, 0, 0, offset, size, link, 0, 1, entry)
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    form = "HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"
    head = struct.pack(
        order + form, 3, 62, 1, 0, head_size, sh_offset, 0, head_size, ph_size, 1, sh_size, len(sections), 0
    )
    if wide:
        load = struct.pack(order + "IIQQQQQQ", 1, 5, 0x1000, 0x10000, 0x10000, 0x2000, 0x2000, 0x1000)
    else:
        load = struct.pack(order + "IIIIIIII", 1, 0x1000, 0x10000, 0x10000, 0x2000, 0x2000, 5, 0x1000)
    start = ident + head + load
    body[: len(start)] = start
    return bytes(body)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("shared_tail", [True, False])
def test_address_becomes_file_offset(wide: bool, order: str, shared_tail: bool) -> None:
    data = make_elf(
        [("llama_decode", 0x10040, FUNC, 1), ("llama_synchronize", 0x11FFF, FUNC, 1)],
        wide=wide,
        order=order,
        shared_tail=shared_tail,
    )
    assert function_offsets(data, ["llama_decode", "llama_process", "llama_synchronize"]) == {
        "llama_decode": 0x1040,
        "llama_synchronize": 0x2FFF,
    }


def test_only_defined_functions_inside_a_segment_count() -> None:
    data = make_elf(
        [
            ("imported", 0, FUNC, 0),
            ("variable", 0x10010, OBJECT, 1),
            ("outside", 0x12000, FUNC, 1),
            ("llama_decode_more", 0x10020, FUNC, 1),
        ]
    )
    assert function_offsets(data, ["imported", "variable", "outside", "llama_decode", "decode_more"]) == {}


def test_symtab_is_used_for_what_dynsym_lacks() -> None:
    data = make_elf([("a", 0x10010, FUNC, 1)], [("a", 0x10999, FUNC, 1), ("b", 0x10020, FUNC, 1)])
    assert function_offsets(data, ["a", "b"]) == {"a": 0x1010, "b": 0x1020}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an ELF"),
        (b"<html>", "not an ELF"),
        (b"\x7fELF", "unknown class"),
        (b"\x7fELF\x09\x01" + bytes(60), "unknown class"),
        (make_elf([("a", 0x10010, FUNC, 1)])[:0x3010], "ends before"),
    ],
)
def test_what_is_no_library_says_so(data: bytes, message: str) -> None:
    with pytest.raises(ElfError, match=message):
        function_offsets(data, ["a"])


@given(st.data())
def test_damaged_files_are_refused_or_read_but_never_crash(data: st.DataObject) -> None:
    whole = bytearray(make_elf([("llama_decode", 0x10040, FUNC, 1)]))
    for _turn in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.one_of(st.integers(0, 120), st.integers(0x3000, len(whole) - 1)))] = data.draw(
            st.integers(0, 255)
        )
    with contextlib.suppress(ElfError):
        function_offsets(bytes(whole[: data.draw(st.integers(0, len(whole)))]), ["llama_decode"])


def test_a_real_library_agrees_with_the_loader() -> None:
    libc = ctypes.CDLL("libc.so.6")
    with open("/proc/self/maps") as handle:
        lines = [line.split() for line in handle if line.rstrip().endswith("/libc.so.6")]
    data = Path(lines[0][5]).read_bytes()
    address = ctypes.cast(libc.getpid, ctypes.c_void_p).value
    assert address is not None
    for span, _rights, offset, *_rest in lines:
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            assert function_offsets(data, ["getpid"]) == {"getpid": address - start + int(offset, 16)}
            return
    pytest.fail("getpid is in no mapping of libc")
