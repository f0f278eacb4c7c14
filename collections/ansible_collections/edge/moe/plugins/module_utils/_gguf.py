# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reader of GGUF headers: what a model needs, from its first megabytes, without touching a weight.

Private to this collection: it may change in any release.

Files come from anywhere, so nothing in them is trusted: every count is checked against the bytes that are left, no
array is kept unless it is short, and the whole header may not exceed HEADER_LIMIT bytes of reading.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import time
import urllib.parse
from typing import Any, Protocol

from ansible_collections.edge.moe.plugins.module_utils import _http

MAGIC = b"GGUF"
HEADER_LIMIT = 64 * 1024 * 1024
KEPT_ARRAY = 4096
KEPT_STRING = 1024
KEPT_KEYS = 4096
MAX_KEY_BYTES = 65_535
MAX_TENSORS = 200_000
MAX_LAYERS = 4096
MAX_DEPTH = 4
MAX_SHARDS = 1000
DEFAULT_ALIGNMENT = 32

# ggml type number: name, elements in a block, bytes of a block. Numbers that are absent were removed or never given.
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
# general.file_type: the name that people know a quantisation by.
FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}
SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
STRING, ARRAY = 8, 9
_U32 = SCALARS[4]
_U64 = SCALARS[10]
_EXPERTS = re.compile(r"^blk\.(\d{1,6})\.ffn_(gate|up|down|gate_up)_exps\.weight$")
_SHARD = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<tail>\.gguf)$")
# Hybrid architectures whose files may leave the interval out: every fourth layer is full attention.
_INTERVAL_ARCHITECTURES = ("qwen3next", "qwen35", "qwen35moe", "qwen4exp")
_INTERVAL_DEFAULT = 4


class GgufError(Exception):
    """A message for the user: what was seen and what to do."""


class Source(Protocol):
    """Bytes by offset. `window` is how much is worth fetching at a time."""

    name: str
    size: int
    window: int

    def read(self, offset: int, length: int) -> bytes: ...


class BytesSource:
    def __init__(self, data: bytes, name: str = "bytes") -> None:
        self.name = name
        self.size = len(data)
        self.window = 1 << 20
        self._data = data

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


class FileSource:
    def __init__(self, path: str) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise GgufError(f"{path} cannot be opened: {error.strerror}") from None
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise GgufError(f"{path} is not a regular file")
        self.name = path
        self.size = status.st_size
        self.window = 1 << 20

    def read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._descriptor, length, offset)
        except OSError as error:
            raise GgufError(f"{self.name} cannot be read at byte {offset}: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._descriptor)


class UrlSource:
    """A file behind HTTP, read by ranges. All requests together have `deadline_s`."""

    def __init__(self, url: str, timeout_s: float = 15.0, deadline_s: float = 120.0) -> None:
        self.name = url
        self.window = 4 << 20
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + deadline_s
        self._first = b""
        with self._open(0, self.window - 1) as answer:
            if not answer.ranged:
                raise GgufError(
                    f"{url}: the server sends the whole file and no ranges of it; download it and give its path"
                )
            if answer.size is None:
                raise GgufError(f"{url}: the server does not say how big the file is; download it and give its path")
            self.size = answer.size
            self._first = self._take(answer, min(self.window, self.size))

    def _open(self, start: int, end: int) -> _http.RangeAnswer:
        try:
            return _http.open_range(self.name, start, end, self._timeout_s)
        except _http.HttpError as error:
            if error.status == 416 and start == 0:
                raise GgufError(f"{self.name} is empty") from None
            raise GgufError(str(error)) from None

    def _take(self, answer: _http.RangeAnswer, length: int) -> bytes:
        taken = bytearray()
        try:
            while len(taken) < length:
                if time.monotonic() > self._deadline:
                    raise GgufError(f"{self.name}: the header did not arrive in time; download the file, give its path")
                part = answer.read(min(65536, length - len(taken)))
                if not part:
                    break
                taken += part
        except _http.HttpError as error:
            raise GgufError(f"{self.name}: {error}") from None
        return bytes(taken)

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        if offset + length <= len(self._first):
            return self._first[offset : offset + length]
        with self._open(offset, offset + length - 1) as answer:
            if not answer.ranged:
                raise GgufError(f"{self.name}: the server stopped answering ranges; download the file, give its path")
            return self._take(answer, length)


class _Reader:
    """A forward cursor over a source with one window of it in memory."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.position = 0
        self._buffer = b""
        self._start = 0
        self._fetched = 0

    @property
    def remaining(self) -> int:
        return self.source.size - self.position

    def need(self, length: int, what: str) -> None:
        if length > self.remaining:
            raise GgufError(
                f"{self.source.name} ends inside its header: {what} at byte {self.position} takes {length} bytes and "
                f"{self.remaining} are left; the file is cut short or damaged, fetch it again"
            )

    def _fill(self, length: int) -> int:
        """Make `length` bytes at the cursor available; their index in the buffer."""
        index = self.position - self._start
        if index >= 0 and index + length <= len(self._buffer):
            return index
        want = min(max(length, self.source.window), self.remaining)
        if self._fetched + want > HEADER_LIMIT + self.source.window:
            raise GgufError(
                f"{self.source.name} has a header of more than {HEADER_LIMIT >> 20} MiB: no model needs that, "
                "the file is damaged or hostile"
            )
        self._buffer = self.source.read(self.position, want)
        self._start = self.position
        self._fetched += len(self._buffer)
        if len(self._buffer) < length:
            raise GgufError(f"{self.source.name} gave fewer bytes than its size says at byte {self.position}")
        return 0

    def peek(self, length: int) -> bytes:
        index = self._fill(length)
        return self._buffer[index : index + length]

    def take(self, length: int, what: str) -> bytes:
        self.need(length, what)
        index = self._fill(length)
        self.position += length
        return self._buffer[index : index + length]

    def skip(self, length: int, what: str) -> None:
        self.need(length, what)
        self.position += length

    def scalar(self, form: struct.Struct, what: str) -> Any:
        self.need(form.size, what)
        index = self._fill(form.size)
        self.position += form.size
        return form.unpack_from(self._buffer, index)[0]

    def string(self, what: str, keep: int) -> str:
        """A string, of which at most `keep` bytes are kept."""
        length = self.scalar(_U64, what)
        self.need(length, what)
        kept = self.take(min(length, keep), what)
        self.position += length - len(kept)
        return kept.decode("utf-8", errors="replace")

    def skip_strings(self, count: int, what: str) -> None:
        """Pass over `count` strings. A tokenizer has half a million of them, so this loop stays tight."""
        unpack = _U64.unpack_from
        done = 0
        while done < count:
            self.need(8, what)
            index = self._fill(8)
            buffer = self._buffer
            last = len(buffer) - 8
            while index <= last and done < count:
                index += 8 + unpack(buffer, index)[0]
                done += 1
            self.position = self._start + index
            if self.remaining < 0:
                self.position = self.source.size
                self.need(1, what)


def _not_gguf(source: Source, head: bytes) -> str:
    name = source.name
    text = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n")
    lower = text.lower()
    if not head.strip(b"\0"):
        return f"{name} begins with zeros only: a download that reserved its space and got no bytes; fetch it again"
    if lower.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return f"{name} is a web page, not a model: use the address of the file itself (often with /resolve/ in it)"
    if text.startswith(b"version https://git-lfs"):
        return f"{name} is a Git LFS pointer, not the model: run `git lfs pull`, or download the file itself"
    if b"annex/objects/" in text:
        return f"{name} is a git-annex pointer, not the model: run `git annex get`, or download the file itself"
    if head[:4] in (b"lmgg", b"tjgg", b"fmgg", b"algg"):
        return f"{name} is a model of the older GGML family: llama.cpp no longer reads it, get a GGUF of the model"
    if head[:4] == b"PK\x03\x04":
        return f"{name} is a zip archive or a PyTorch checkpoint, not a GGUF: convert it, or get a GGUF of the model"
    if head[:2] == b"\x1f\x8b" or head[:6] == b"\xfd7zXZ\0" or head[:4] == b"\x28\xb5\x2f\xfd":
        return f"{name} is compressed: unpack it first"
    if head[8:9] == b"{" and len(head) >= 9:
        return f"{name} looks like a safetensors file, not a GGUF: convert it, or get a GGUF of the model"
    if text[:1] in (b"{", b"["):
        return f"{name} is JSON, not a model: probably a server's error message saved to disk: {text[:80]!r}"
    return f"{name} is not a GGUF file: it begins with {head[:4]!r} and should begin with b'GGUF'"


class Header:
    """One file's header: its metadata, and sums over its tensors. Tensors themselves are not kept."""

    def __init__(self) -> None:
        self.size = 0
        self.version = 0
        self.values: dict[str, Any] = {}
        self.tensors = 0
        self.tensor_bytes = 0
        self.bytes_by_type: dict[str, int] = {}
        # (layer, kind) to (bytes of the tensor, experts in it)
        self.experts: dict[tuple[int, str], tuple[int, int]] = {}
        self.vocabulary: int | None = None

    def integer(self, key: str) -> int | None:
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def _value(reader: _Reader, kind: int, key: str, depth: int = 0) -> Any:
    if kind in SCALARS:
        return reader.scalar(SCALARS[kind], f"the value of {key}")
    if kind == STRING:
        return reader.string(f"the value of {key}", KEPT_STRING)
    if kind != ARRAY:
        raise GgufError(f"{reader.source.name}: {key} has value type {kind}, which GGUF does not have")
    if depth >= MAX_DEPTH:
        raise GgufError(f"{reader.source.name}: {key} nests arrays more than {MAX_DEPTH} deep")
    item = reader.scalar(_U32, f"the array of {key}")
    count = reader.scalar(_U64, f"the array of {key}")
    if item in SCALARS:
        form = SCALARS[item]
        if count <= KEPT_ARRAY:
            data = reader.take(count * form.size, f"the array of {key}")
            return [value[0] for value in form.iter_unpack(data)]
        reader.skip(count * form.size, f"the array of {key}")
        return None
    # The shortest string takes 8 bytes, the shortest array 12.
    if item == STRING:
        reader.need(count * 8, f"an array of {count} strings in {key}")
        reader.skip_strings(count, f"the array of {key}")
        return None
    if item == ARRAY:
        reader.need(count * 12, f"an array of {count} arrays in {key}")
        for _index in range(count):
            _value(reader, ARRAY, key, depth + 1)
        return None
    raise GgufError(f"{reader.source.name}: {key} is an array of type {item}, which GGUF does not have")


def _read_tensor(reader: _Reader, header: Header) -> int:
    """Read one tensor's description; the byte after its data, counted from the start of the data part."""
    name = reader.string("a tensor name", 256)
    dimensions = reader.scalar(_U32, f"tensor {name}")
    if not 1 <= dimensions <= 4:
        raise GgufError(f"{reader.source.name}: tensor {name!r} has {dimensions} dimensions; 1 to 4 are possible")
    shape = struct.unpack(f"<{dimensions}Q", reader.take(8 * dimensions, f"tensor {name}"))
    kind = reader.scalar(_U32, f"tensor {name}")
    offset = reader.scalar(_U64, f"tensor {name}")
    if kind not in TYPES:
        raise GgufError(
            f"{reader.source.name}: tensor {name!r} has type {kind}, which is not known here: "
            "the file is newer than this collection or damaged"
        )
    type_name, block, block_bytes = TYPES[kind]
    if shape[0] % block:
        raise GgufError(f"{reader.source.name}: tensor {name!r} has rows of {shape[0]}, no multiple of {block}")
    elements = 1
    for extent in shape:
        elements *= extent
    if elements >= 1 << 63:
        raise GgufError(f"{reader.source.name}: tensor {name!r} claims {elements} elements")
    size = elements // block * block_bytes
    header.tensors += 1
    header.tensor_bytes += size
    header.bytes_by_type[type_name] = header.bytes_by_type.get(type_name, 0) + size
    expert = _EXPERTS.match(name)
    if expert:
        layer = int(expert.group(1))
        if dimensions != 3 or shape[2] < 1:
            raise GgufError(f"{reader.source.name}: expert tensor {name!r} has shape {list(shape)}; it needs three")
        if layer >= MAX_LAYERS:
            raise GgufError(f"{reader.source.name}: tensor {name!r} is of layer {layer}; no model has so many")
        header.experts[(layer, expert.group(2))] = (size, shape[2])
    elif name == "token_embd.weight" and dimensions >= 2:
        header.vocabulary = shape[1]
    return int(offset) + size


def read_header(source: Source, check_complete: bool = True) -> Header:
    """The header of one file. Raises GgufError with a message of its own for each way a file can be no model."""
    name = source.name
    if source.size == 0:
        raise GgufError(f"{name} is empty")
    reader = _Reader(source)
    head = reader.peek(min(512, source.size))
    if head[:4] != MAGIC:
        raise GgufError(_not_gguf(source, head))
    if source.size < 24:
        raise GgufError(f"{name} ends after {source.size} bytes: the file is cut short, fetch it again")
    reader.position = 4
    header = Header()
    header.size = source.size
    version = reader.scalar(_U32, "the version")
    if version & 0xFFFF == 0 and 1 <= int.from_bytes(version.to_bytes(4, "little"), "big") <= 3:
        raise GgufError(f"{name} is a big-endian GGUF: boards are little-endian, get the little-endian file")
    if version == 1:
        raise GgufError(f"{name} is GGUF version 1, which llama.cpp no longer reads: get a newer file of the model")
    if version not in (2, 3):
        raise GgufError(f"{name} is GGUF version {version}; versions 2 and 3 are known: update this collection")
    header.version = version
    tensor_count = reader.scalar(_U64, "the number of tensors")
    key_count = reader.scalar(_U64, "the number of keys")
    # The shortest key takes 13 bytes, the shortest tensor 32.
    if key_count * 13 + tensor_count * 32 > reader.remaining:
        raise GgufError(
            f"{name} claims {tensor_count} tensors and {key_count} keys, and has {source.size} bytes: "
            "the file is cut short or damaged, fetch it again"
        )
    if tensor_count > MAX_TENSORS:
        raise GgufError(f"{name} claims {tensor_count} tensors; no model has so many")

    for _index in range(key_count):
        length = reader.scalar(_U64, "a key")
        if length > MAX_KEY_BYTES:
            raise GgufError(f"{name} has a key of {length} bytes at byte {reader.position}: the file is damaged")
        key = reader.take(length, "a key").decode("utf-8", errors="replace")
        kind = reader.scalar(_U32, f"the type of {key}")
        value = _value(reader, kind, key[:80])
        if len(header.values) < KEPT_KEYS:
            header.values[key] = value

    end = 0
    for _index in range(tensor_count):
        end = max(end, _read_tensor(reader, header))

    alignment = header.values.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise GgufError(f"{name}: general.alignment is {alignment!r}; a power of two is needed")
    data_start = -(-reader.position // alignment) * alignment
    needed = data_start + end if tensor_count else reader.position
    if check_complete and needed > source.size:
        raise GgufError(
            f"{name} is cut short: its tensors end at byte {needed} and it has {source.size}; finish the download"
        )
    if tensor_count and header.integer("split.count") not in (None, 0, 1):
        after = -(-needed // alignment) * alignment
        for place in sorted({needed, after}):
            if source.size - place >= 24 and source.read(place, 4) == MAGIC:
                raise GgufError(
                    f"{name} is several shards joined end to end: keep them as separate files, or merge them with "
                    "`llama-gguf-split --merge`"
                )
    return header


def shard_names(name: str, count: int) -> list[str]:
    """The names of all shards, from the name of the first."""
    match = _SHARD.match(name)
    if match is None or int(match.group("count")) != count:
        raise GgufError(
            f"{name} is one of {count} shards and is not named so: llama.cpp finds the others only if it is called "
            f"NAME-00001-of-{count:05d}.gguf"
        )
    if int(match.group("number")) != 1:
        first = f"{match.group('stem')}-00001-of-{count:05d}.gguf"
        raise GgufError(f"{name} is not the first of its {count} shards: name {first}")
    return [f"{match.group('stem')}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def _per_layer(value: Any, layer: int, default: int) -> int:
    """A figure that is one number for all layers or a list with one for each."""
    if isinstance(value, bool):
        return default
    if isinstance(value, int):
        return value
    if isinstance(value, list):
        item = value[layer] if layer < len(value) else default
        return int(item) if isinstance(item, (int, bool)) else default
    return default


def _recurrent_layers(values: dict[str, Any], architecture: str, layers: int) -> set[int]:
    """Layers that keep a state of constant size in place of keys and values."""
    flags = values.get(f"{architecture}.attention.recurrent_layers")
    if isinstance(flags, list):
        return {layer for layer in range(layers) if _per_layer(flags, layer, 0)}
    interval = values.get(f"{architecture}.full_attention_interval")
    if not isinstance(interval, int) and architecture in _INTERVAL_ARCHITECTURES:
        interval = _INTERVAL_DEFAULT
    if isinstance(interval, int) and interval > 0:
        return {layer for layer in range(layers) if (layer + 1) % interval}
    heads = values.get(f"{architecture}.attention.head_count_kv")
    if isinstance(heads, list):
        return {layer for layer in range(layers) if _per_layer(heads, layer, 1) == 0}
    return set()


def kv_bytes_per_token(values: dict[str, Any], architecture: str, layers: int) -> int:
    """Keys and values of one token in f16, over the layers that have any.

    Layers with a sliding window are counted like the others, so for such models this is an upper bound.
    """

    def number(key: str) -> Any:
        return values.get(f"{architecture}.{key}")

    recurrent = _recurrent_layers(values, architecture, layers)
    heads_all = number("attention.head_count")
    heads_kv_all = number("attention.head_count_kv")
    embedding = _per_layer(number("embedding_length"), 0, 0)
    # The last layers of some models use the keys and values of earlier ones.
    shared = _per_layer(number("attention.shared_kv_layers"), 0, 0)
    latent = number("attention.key_length_mla") is not None
    total = 0
    for layer in range(layers):
        if layer in recurrent or layer >= layers - shared:
            continue
        heads = _per_layer(heads_all, layer, 0)
        heads_kv = _per_layer(heads_kv_all, layer, heads)
        head_dim = embedding // heads if heads > 0 else 0
        key = _per_layer(number("attention.key_length"), layer, head_dim)
        # Latent attention stores one compressed row, of which the values are a part.
        value = 0 if latent else _per_layer(number("attention.value_length"), layer, head_dim)
        total += heads_kv * (key + value) * 2
    return max(0, total)


def recurrent_bytes(values: dict[str, Any], architecture: str, layers: int) -> int:
    """The constant state of one slot in f32, over the recurrent layers."""

    def number(key: str) -> int:
        return _per_layer(values.get(f"{architecture}.{key}"), 0, 0)

    convolution, inner, state = number("ssm.conv_kernel"), number("ssm.inner_size"), number("ssm.state_size")
    shortconv = number("shortconv.l_cache")
    if shortconv > 0:
        row = number("embedding_length") * (shortconv - 1)
    else:
        row = max(0, convolution - 1) * (inner + 2 * number("ssm.group_count") * state) + state * inner
    return row * 4 * len(_recurrent_layers(values, architecture, layers))


def expert_layout(experts: dict[tuple[int, str], tuple[int, int]]) -> list[dict[str, Any]]:
    """Bytes of one expert by layer and kind; neighbouring layers that are alike share an entry."""
    by_layer: dict[int, dict[str, int]] = {}
    for (layer, kind), (size, count) in sorted(experts.items()):
        by_layer.setdefault(layer, {})[kind] = size // count
    runs: list[dict[str, Any]] = []
    for layer, kinds in by_layer.items():
        if runs and runs[-1]["last_layer"] == layer - 1 and runs[-1]["kinds"] == kinds:
            runs[-1]["last_layer"] = layer
        else:
            runs.append({"first_layer": layer, "last_layer": layer, "kinds": kinds})
    return runs


def summarise(name: str, headers: list[Header], shards: dict[str, Any]) -> dict[str, Any]:
    """The facts a plan needs, from the headers of all shards that are there."""
    first = headers[0]
    values = first.values
    architecture = values.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise GgufError(f"{name} does not name its architecture: it is no model that llama.cpp can load")
    blocks = first.integer(f"{architecture}.block_count") or 0
    if not 0 <= blocks <= MAX_LAYERS:
        raise GgufError(f"{name} claims {blocks} layers; no model has so many")
    # Layers that only predict further tokens stand at the end and are idle in ordinary decoding.
    layers = max(0, blocks - (first.integer(f"{architecture}.nextn_predict_layers") or 0))

    by_type: dict[str, int] = {}
    experts: dict[tuple[int, str], tuple[int, int]] = {}
    for header in headers:
        experts.update(header.experts)
        for key, size in header.bytes_by_type.items():
            by_type[key] = by_type.get(key, 0) + size
    tensor_bytes = sum(header.tensor_bytes for header in headers)
    if not tensor_bytes:
        raise GgufError(f"{name} has a header and no tensors: it holds a vocabulary or settings only, and no model")
    experts_total = sum(size for size, _count in experts.values())
    expert_count = first.integer(f"{architecture}.expert_count") or 0
    if experts and not expert_count:
        expert_count = max(count for _size, count in experts.values())
    used_all = values.get(f"{architecture}.expert_used_count")

    by_layer: dict[int, int] = {}
    cycle = 0
    for (layer, kind), (size, count) in experts.items():
        if count != expert_count:
            raise GgufError(
                f"{name}: blk.{layer}.ffn_{kind}_exps.weight holds {count} experts and the model says {expert_count}"
            )
        one = size // count
        by_layer[layer] = by_layer.get(layer, 0) + one
        if layer < layers:
            cycle += one * min(expert_count, _per_layer(used_all, layer, 0))
    moe_layers = sum(1 for layer in by_layer if layer < layers)
    file_type = first.integer("general.file_type")
    quantisation = FILE_TYPES.get(file_type) if file_type is not None else None
    if quantisation is None and by_type:
        quantisation = max(by_type, key=lambda key: by_type[key])
    title = values.get("general.name")
    return {
        "path": name,
        "size_bytes": sum(header.size for header in headers),
        "version": first.version,
        "architecture": architecture,
        "name": title if isinstance(title, str) and title else None,
        "layers": layers,
        "embedding": _per_layer(values.get(f"{architecture}.embedding_length"), 0, 0),
        "vocabulary": first.vocabulary,
        "experts": expert_count if experts else 0,
        "experts_used": _per_layer(used_all, 0, 0) if experts else 0,
        "moe_layers": moe_layers,
        "expert_bytes": max(by_layer.values(), default=0),
        "expert_layout": expert_layout(experts),
        "cycle_bytes": cycle,
        "experts_total_bytes": experts_total,
        "dense_bytes": tensor_bytes - experts_total,
        "kv_bytes_per_token": kv_bytes_per_token(values, architecture, layers),
        "recurrent_bytes": recurrent_bytes(values, architecture, layers),
        "context_train": first.integer(f"{architecture}.context_length"),
        "quantisation": quantisation,
        "chat_template": "tokenizer.chat_template" in values,
        "fused_gate_up": any(kind == "gate_up" for _layer, kind in experts),
        "shards": shards,
    }


def _from_first(name: str, first: Header, open_shard: Any) -> dict[str, Any]:
    count = first.integer("split.count") or 1
    if count <= 1:
        return summarise(name, [first], {"count": 1, "present": 1, "missing": []})
    if count > MAX_SHARDS:
        raise GgufError(f"{name} claims to be one of {count} shards; no model has so many")
    headers, missing = [first], []
    for shard in shard_names(name, count)[1:]:
        header = open_shard(shard)
        if header is None:
            missing.append(shard)
        else:
            headers.append(header)
    return summarise(name, headers, {"count": count, "present": len(headers), "missing": missing})


def info_from_path(path: str) -> dict[str, Any]:
    def open_file(name: str) -> Header | None:
        if not os.path.exists(name):
            return None
        source = FileSource(name)
        try:
            return read_header(source)
        finally:
            source.close()

    first = open_file(path)
    if first is None:
        raise GgufError(f"{path} does not exist")
    return _from_first(path, first, open_file)


def info_from_url(url: str, timeout_s: float = 15.0) -> dict[str, Any]:
    try:
        _http.check_url(url)
    except _http.HttpError as error:
        raise GgufError(str(error)) from None
    parts = urllib.parse.urlsplit(url)

    def open_path(path: str) -> Header:
        return read_header(UrlSource(urllib.parse.urlunsplit(parts._replace(path=path)), timeout_s))

    def open_shard(path: str) -> Header | None:
        try:
            return open_path(path)
        except GgufError as error:
            if " answers 404 " in str(error):
                return None
            raise

    return _from_first(parts.path, open_path(parts.path), open_shard) | {"path": url}
