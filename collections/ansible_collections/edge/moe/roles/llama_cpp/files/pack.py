# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack a build into a release archive: bin/, lib/ and release.json. The same build gives the same bytes."""

from __future__ import annotations

import argparse
import base64
import gzip
import io
import json
import tarfile
from pathlib import Path


def add_file(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def add_link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
    archive.addfile(entry)


def add_directory(archive: tarfile.TarFile, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    archive.addfile(entry)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True, help="where the build left programs and libraries")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--stamp", required=True)
    parser.add_argument("--inputs", required=True, help="what the stamp was computed from: JSON in base64")
    parser.add_argument("programs", nargs="+")
    args = parser.parse_args()

    libraries = sorted(path for path in args.bin.iterdir() if path.name.startswith("lib") and ".so" in path.name)
    if not libraries:
        parser.error(f"{args.bin} has no shared library: was it built with BUILD_SHARED_LIBS=ON?")
    release = {"stamp": args.stamp, **json.loads(base64.b64decode(args.inputs))}
    description = (json.dumps(release, indent=2, sort_keys=True) + "\n").encode()
    # no date, owner or file name goes in, neither here nor into the tar entries
    with (
        args.output.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        add_file(archive, "release.json", description, 0o644)
        add_directory(archive, "bin")
        for name in sorted(args.programs):
            add_file(archive, f"bin/{name}", (args.bin / name).read_bytes(), 0o755)
        add_directory(archive, "lib")
        for path in libraries:
            if path.is_symlink():
                add_link(archive, f"lib/{path.name}", str(path.readlink()))
            else:
                add_file(archive, f"lib/{path.name}", path.read_bytes(), 0o755)


if __name__ == "__main__":
    main()
