# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps what Python compiles from an archive: on an emulated CPU that is a third of the time of an Ansible module.

Every module comes as an archive of the same forty source files, and Python keeps no compiled ones beside an archive.
Here they are kept in ~/.cache by a hash of their text, so each text is compiled once on a board. A real board, which
compiles them in an instant, has no such file.
"""

from __future__ import annotations

import _imp
import contextlib
import marshal
import os
import sys
import types
import zipimport

# as zipimport itself looks it up at each import; type checkers do not know it
_PLACE = vars(zipimport)
_compile = _PLACE["_compile_source"]


def _compiled(pathname: str, source: bytes) -> types.CodeType:
    folder = os.path.expanduser(f"~/.cache/edge-moe-compiled/{sys.implementation.cache_tag}")
    kept = f"{folder}/{_imp.source_hash(0, source).hex()}-{len(source)}"
    with contextlib.suppress(OSError, ValueError, EOFError, TypeError, AttributeError), open(kept, "rb") as file:
        code = marshal.loads(file.read())  # noqa: S302 - the user's own, written below
        return code.replace(co_filename=pathname)
    code = _compile(pathname, source)
    # beside and renamed, as two modules may run at once; where nothing can be written, nothing is kept
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        beside = f"{kept}.{os.getpid()}"
        with open(beside, "wb") as made:
            made.write(marshal.dumps(code))
        os.replace(beside, kept)
    return code


_PLACE["_compile_source"] = _compiled
