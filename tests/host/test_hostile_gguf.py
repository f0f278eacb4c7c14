# SPDX-License-Identifier: GPL-3.0-or-later
"""Model files that no honest tool writes: with the cache on the patched llama-server does what it does without.

Each file is given to two servers, with and without the cache. Where llama.cpp's own path refuses, so must the other;
where it answers, the tokens are the same; where it crashes or hangs by itself, nothing is asked of the cache.
"""

from __future__ import annotations

import http.client
import math
import os
import random
import re
import resource
import signal
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import gguf
import pytest
from edge_moe_testbed import models
from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import BenchError

pytestmark = pytest.mark.llama

# Seven of sixteen slots a layer and staging: every path of the cache runs, and experts give way.
CACHE_MIB = 2
PROMPT = "Explain to a child why the moon seems to follow the car."
ARGS = (*harness.STREAMING_ARGS, "--no-warmup", "-c", "256")
TIMEOUT_S = 60.0
# A header may ask for any amount. Pages of the file do not count here, as they would in a limit of the address space.
DATA_LIMIT = 4 << 30
# What a server takes beside the cache differs from run to run by a few MiB.
PEAK_SLACK_KIB = 48 << 10
# Each round starts two servers. How long is for the random part alone; the seed repeats it.
FUZZ_SECONDS = float(os.environ.get("EDGE_MOE_FUZZ_SECONDS", "25"))
FUZZ_SEED = int(os.environ.get("EDGE_MOE_FUZZ_SEED", "1"))

ARCHITECTURE = "qwen3moe"
U32, ARRAY = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.ARRAY
NUMBERS = (0, 1, 2, 3, 7, 16, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass
class Tensor:
    """One tensor of a file. What is not None contradicts the rest."""

    name: str
    dims: list[int]
    kind: int
    data: bytes
    offset: int | None = None
    n_dims: int | None = None

    def resize(self, dims: list[int], kind: gguf.GGMLQuantizationType) -> None:
        """Another shape and type over the bytes that are there, as many of them as it takes."""
        block, size = gguf.GGML_QUANT_SIZES[kind]
        n_bytes = size * math.prod((dims[0] // block, *dims[1:]))
        self.dims, self.kind, self.data = dims, int(kind), (self.data * (n_bytes // len(self.data) + 1))[:n_bytes]


@dataclass
class Model:
    """A GGUF file in parts that can be altered one by one."""

    fields: dict[str, bytes]  # everything of a pair, its key too
    tensors: list[Tensor]
    alignment: int = gguf.GGUF_DEFAULT_ALIGNMENT
    n_tensors: int | None = None
    kept: int | None = None  # bytes of the file; less than all: it was cut off

    @classmethod
    def read(cls, path: Path) -> Model:
        reader = gguf.GGUFReader(path)
        return cls(
            {
                name: b"".join(part.tobytes() for part in field.parts)
                for name, field in reader.fields.items()
                if not name.startswith("GGUF.")
            },
            [
                Tensor(tensor.name, [int(dim) for dim in tensor.shape], int(tensor.tensor_type), tensor.data.tobytes())
                for tensor in reader.tensors
            ],
        )

    def set(self, key: str, value: int | list[int], kind: gguf.GGUFValueType = U32) -> None:
        name = key if "." in key else f"{ARCHITECTURE}.{key}"
        size = {gguf.GGUFValueType.UINT16: "H", U32: "I"}[kind]
        if isinstance(value, list):
            written = struct.pack(f"<IIQ{len(value)}{size}", ARRAY, kind, len(value), *value)
        else:
            written = struct.pack(f"<I{size}", kind, value)
        self.fields[name] = _string(name) + written

    def tensor(self, name: str) -> Tensor:
        return next(tensor for tensor in self.tensors if tensor.name == f"{name}.weight")

    def encode(self) -> tuple[bytes, list[range]]:
        """The file, and where in its header each thing but the vocabulary is."""
        header = b"GGUF" + struct.pack(
            "<IQQ", 3, len(self.tensors) if self.n_tensors is None else self.n_tensors, len(self.fields)
        )
        places = []
        for name, field in self.fields.items():
            if not name.startswith("tokenizer."):
                places.append(range(len(header), len(header) + len(field)))
            header += field
        body = b""
        for tensor in self.tensors:
            body += bytes(-len(body) % max(self.alignment, 1))
            n_dims = len(tensor.dims) if tensor.n_dims is None else tensor.n_dims
            offset = len(body) if tensor.offset is None else tensor.offset
            info = _string(tensor.name) + struct.pack(
                f"<I{len(tensor.dims)}QIQ", n_dims, *tensor.dims, tensor.kind, offset
            )
            places.append(range(len(header), len(header) + len(info)))
            header += info
            body += tensor.data
        header += bytes(-len(header) % max(self.alignment, 1))
        whole = header + body + bytes(-len(body) % max(self.alignment, 1))
        return whole[: self.kept], places


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


@dataclass
class Outcome:
    """What became of one server."""

    end: str  # "answers", "refuses", or what went wrong
    tokens: list[list[int]]
    says: str  # the cache's line
    peak_kib: int

    def is_own_fault(self) -> bool:
        return self.end not in ("answers", "refuses")


def serve(root: Path, path: Path, cache_mib: int) -> Outcome:
    log = path.with_suffix(f".{cache_mib}.log")
    tokens: list[list[int]] = []
    server, end, peak_kib = None, "answers", 0
    try:
        with harness.server(
            root,
            path,
            log,
            threads=1,
            args=ARGS,
            environment={
                "EDGE_MOE_CACHE_MIB": str(cache_mib),
                "EDGE_MOE_LOOKAHEAD": "1",
                "GGML_NO_BACKTRACE": "1",  # a debugger, if there is one, takes seconds
            },
            start_timeout_s=TIMEOUT_S,
        ) as server:
            tokens = [server.complete(PROMPT, 8, timeout=TIMEOUT_S)["tokens"] for _ in range(2)]
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            peak = re.search(r"VmHWM:\s+(\d+)", status)
            peak_kib = int(peak[1]) if peak else 0
    except harness.ServerEnded as error:
        end = _ending(error.returncode) or "refuses"
    except TimeoutError:
        end = "hangs"
    except (OSError, http.client.HTTPException):
        end = "drops the connection"
    except BenchError as error:
        end = "hangs" if "not ready" in str(error) else "refuses to answer"
    if server is not None:
        end = _ending(server.process.returncode) or end
    says = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("edge-moe: cache o")]
    return Outcome(end, tokens, " ".join(says).removeprefix("edge-moe: "), peak_kib)


def _ending(returncode: int) -> str:
    return f"dies of {signal.Signals(-returncode).name}" if returncode < 0 else ""


def compare(root: Path, path: Path) -> tuple[Outcome, Outcome]:
    """The outcomes without and with the cache. Fails where they differ by anything but llama.cpp's own fault."""
    with ThreadPoolExecutor(2) as pool:
        stock, cached = pool.map(lambda mib: serve(root, path, mib), (0, CACHE_MIB))
    if stock.is_own_fault():
        return stock, cached
    if (stock.end, stock.tokens) != (cached.end, cached.tokens):
        again = serve(root, path, 0)
        if (again.end, again.tokens) != (stock.end, stock.tokens):
            return again, cached  # it reads what nobody wrote
        pytest.fail(f"{path}: with the cache {cached}, without it {stock}")
    if stock.end == "answers":
        assert cached.says.count("cache o") == 1, f"{path}: {cached}"
        assert cached.peak_kib < stock.peak_kib + (CACHE_MIB << 10) + PEAK_SLACK_KIB, f"{path}: {cached}, {stock}"
    return stock, cached


@pytest.fixture(scope="module", autouse=True)
def data_limit() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_LIMIT, hard))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@pytest.fixture(scope="module")
def root() -> Path:
    return harness.unpacked_artifact()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("honest") / "moe.gguf"
    models.write_moe(path, models.TINY)
    return path


Change = Callable[[Model], None]


def field(key: str, value: int | list[int], kind: gguf.GGUFValueType = U32) -> Change:
    return lambda model: model.set(key, value, kind)


def without(*names: str) -> Change:
    def change(model: Model) -> None:
        model.tensors = [tensor for tensor in model.tensors if tensor.name not in {f"{name}.weight" for name in names}]

    return change


def renamed(name: str, to: str) -> Change:
    return lambda model: setattr(model.tensor(name), "name", f"{to}.weight")


def altered(name: str, **values: object) -> Change:
    def change(model: Model) -> None:
        for key, value in values.items():
            setattr(model.tensor(name), key, value)

    return change


def retyped(name: str, kind: gguf.GGMLQuantizationType) -> Change:
    return lambda model: model.tensor(name).resize(model.tensor(name).dims, kind)


def duplicated(name: str) -> Change:
    return lambda model: model.tensors.append(model.tensor(name))


def aligned(alignment: int, laid_out: int | None = None) -> Change:
    def change(model: Model) -> None:
        model.set("general.alignment", alignment)
        model.alignment = alignment if laid_out is None else laid_out

    return change


def cut(numerator: int, denominator: int) -> Change:
    def change(model: Model) -> None:
        model.kept = len(model.encode()[0]) * numerator // denominator

    return change


def experts_of_no_bytes(model: Model) -> None:
    """Without a width of its own an expert is as wide as the feed-forward layer divided by the experts used: 1 / 2."""
    del model.fields[f"{ARCHITECTURE}.expert_feed_forward_length"]
    model.set("feed_forward_length", 1)
    for tensor in model.tensors:
        if tensor.name.endswith("_exps.weight"):
            down = "ffn_down" in tensor.name
            tensor.dims, tensor.data = [0, 128, 16] if down else [128, 0, 16], b""


def layers_exchanged(model: Model) -> None:
    one, two = model.tensor("blk.1.ffn_up_exps"), model.tensor("blk.2.ffn_up_exps")
    one.name, two.name = two.name, one.name


def router_of_no_numbers(model: Model) -> None:
    router = model.tensor("blk.2.ffn_gate_inp")
    router.data = struct.pack("<f", float("nan")) * (len(router.data) // 4)


GATE, UP, DOWN, ROUTER = (f"blk.2.ffn_{name}" for name in ("gate_exps", "up_exps", "down_exps", "gate_inp"))
KINDS = gguf.GGMLQuantizationType
ON, REFUSED, DIES = "cache on: ", "refuses", "dies of "
# What is altered, and what then comes of it: how the cache's line begins where the server answers, else how llama.cpp
# alone ends. So it shows when a change no longer reaches what it was made for.
CHANGES: dict[str, tuple[Change, str]] = {
    "nothing": (lambda model: None, ON),
    "no experts": (field("expert_count", 0), DIES),
    "one expert": (field("expert_count", 1), DIES),
    "fewer experts than there are": (field("expert_count", 8), REFUSED),
    "more experts than there are": (field("expert_count", 17), REFUSED),
    "experts beyond 32 bits": (field("expert_count", 2**32 - 1), DIES),
    "no expert used": (field("expert_used_count", 0), DIES),
    "all experts used": (field("expert_used_count", 16), "cache off: 2 MiB asked is below one token cycle"),
    "more used than there are": (field("expert_used_count", 17), DIES),
    "used beyond 31 bits": (field("expert_used_count", 2**31), DIES),
    "used layer by layer": (field("expert_used_count", [2, 2, 2, 2]), ON),
    "more used layer by layer": (field("expert_used_count", [1, 2, 3, 4]), DIES),
    "used in some layers": (field("expert_used_count", [2, 0, 2, 2]), DIES),
    "used in too few layers": (field("expert_used_count", [2, 2]), REFUSED),
    "experts of no bytes": (experts_of_no_bytes, DIES),
    "no layer": (field("block_count", 0), DIES),
    "a layer less": (field("block_count", 3), REFUSED),
    "a layer more": (field("block_count", 5), REFUSED),
    "layers beyond 32 bits": (field("block_count", 2**32 - 1), DIES),
    "layers that predict": (field("nextn_predict_layers", 1), REFUSED),
    "no gate": (without(GATE), REFUSED),
    "no down": (without(DOWN), REFUSED),
    "only gate": (without(UP, DOWN), REFUSED),
    "no router": (without(ROUTER), REFUSED),
    "gate twice": (duplicated(GATE), REFUSED),
    "fewer tensors than it says": (lambda model: setattr(model, "n_tensors", len(model.tensors) + 1), REFUSED),
    "more tensors than it says": (lambda model: setattr(model, "n_tensors", len(model.tensors) - 1), REFUSED),
    "tensors beyond 63 bits": (lambda model: setattr(model, "n_tensors", 2**64 - 1), REFUSED),
    "layer -1": (renamed(UP, "blk.-1.ffn_up_exps"), REFUSED),
    "layer +2": (renamed(UP, "blk.+2.ffn_up_exps"), REFUSED),
    "layer 02": (renamed(UP, "blk.02.ffn_up_exps"), REFUSED),
    "layer beyond 32 bits": (renamed(UP, "blk.999999999999.ffn_up_exps"), REFUSED),
    "a name without end": (renamed(UP, "blk.2." + "ffn_up_exps" * 10), REFUSED),
    "an unknown kind": (renamed(UP, "blk.2.ffn_gate_up_exps"), REFUSED),
    "layers exchanged": (layers_exchanged, ON),
    "no dimension": (altered(GATE, dims=[]), REFUSED),
    "four dimensions": (altered(GATE, dims=[128, 96, 16, 1]), ON),
    "five dimensions": (altered(GATE, dims=[128, 96, 16, 1, 1]), REFUSED),
    "dimensions beyond 32 bits": (altered(GATE, n_dims=2**32 - 1), REFUSED),
    "experts in the fourth dimension": (altered(GATE, dims=[128, 96, 1, 16]), REFUSED),
    "a layer with fewer experts": (altered(GATE, dims=[128, 96, 8]), REFUSED),
    "a layer with no experts": (altered(GATE, dims=[128, 96, 0]), REFUSED),
    "experts beyond 62 bits": (altered(GATE, dims=[128, 96, 2**62]), REFUSED),
    "a negative dimension": (altered(GATE, dims=[128, 2**64 - 96, 16]), REFUSED),
    "rows and columns exchanged": (altered(GATE, dims=[96, 128, 16]), REFUSED),
    "another type": (altered(GATE, kind=int(KINDS.F32)), REFUSED),
    "no such type": (altered(GATE, kind=4), REFUSED),
    "a type beyond 31 bits": (altered(GATE, kind=2**32 - 1), REFUSED),
    "experts of 4 bits": (retyped(GATE, KINDS.Q4_0), ON),
    "experts of integers": (retyped(GATE, KINDS.I8), DIES),
    "experts of doubles": (retyped(GATE, KINDS.F64), DIES),
    "a router of 16 bits": (retyped(ROUTER, KINDS.BF16), ON),
    "a router of 8 bits": (retyped(ROUTER, KINDS.Q8_0), ON),
    "a router of no numbers": (router_of_no_numbers, ON),
    "gate where up is": (lambda model: altered(GATE, offset=_offset_of(model, UP))(model), REFUSED),
    "an offset off by one": (lambda model: altered(GATE, offset=_offset_of(model, GATE) + 1)(model), REFUSED),
    "an offset beyond 63 bits": (altered(GATE, offset=2**64 - 32), REFUSED),
    "cut off in the header": (cut(1, 200), REFUSED),
    "cut off in the tensors": (cut(1, 2), REFUSED),
    "cut off at the end": (cut(99, 100), REFUSED),
    "nothing in it": (cut(0, 1), REFUSED),
    "a split of three": (field("split.count", 3, gguf.GGUFValueType.UINT16), REFUSED),
    "a split that is another": (field("split.no", 7, gguf.GGUFValueType.UINT16), ON),
    "bytes not aligned": (aligned(1), DIES),
    "aligned to pages": (aligned(4096), ON),
    "alignment 0": (aligned(0), REFUSED),
    "alignment 48": (aligned(48), REFUSED),
    "alignment that is not kept": (aligned(64, 32), REFUSED),
    "alignment of 2 GiB": (aligned(2**31, 32), REFUSED),
}


def _offset_of(model: Model, name: str) -> int:
    """Of a tensor's bytes among all, as an honest header has it."""
    at = 0
    for tensor in model.tensors:
        at += -at % model.alignment
        if tensor.name == f"{name}.weight":
            return at
        at += len(tensor.data)
    raise ValueError(f"no {name} in the model")


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_with_intent(root: Path, honest: Path, tmp_path: Path, change: str) -> None:
    alter, expected = CHANGES[change]
    model = Model.read(honest)
    alter(model)
    path = tmp_path / "hostile.gguf"
    path.write_bytes(model.encode()[0])
    stock, cached = compare(root, path)
    assert (cached.says if stock.end == "answers" else stock.end).startswith(expected), (stock, cached)


def reshape(model: Model, rng: random.Random) -> None:
    """Another model, and a whole one: other numbers of layers, experts and rows, other types, another order."""
    experts, hidden, layers = rng.randint(4, 40), 32 * rng.randint(1, 5), rng.randint(1, models.TINY.layers)
    model.set("expert_count", experts)
    model.set("expert_used_count", rng.randint(1, 4))
    model.set("expert_feed_forward_length", hidden)
    model.set("block_count", layers)
    model.tensors = [
        tensor
        for tensor in model.tensors
        if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) < layers
    ]
    width = models.TINY.embedding
    for tensor in model.tensors:
        if tensor.name.endswith("_exps.weight"):
            kind = KINDS.Q8_0 if rng.random() < 0.95 else rng.choice((KINDS.Q4_0, KINDS.F16, KINDS.F32))
            tensor.resize([hidden, width, experts] if "ffn_down" in tensor.name else [width, hidden, experts], kind)
        elif tensor.name.endswith(".ffn_gate_inp.weight"):
            tensor.resize([width, experts], KINDS.F32)
    model.alignment = rng.choice((32, 64, 4096))
    model.set("general.alignment", model.alignment)
    rng.shuffle(model.tensors)


def scribble(whole: bytes, places: list[range], rng: random.Random) -> bytes:
    """A few bits of one or two things in the header are others, or a number there is on some edge."""
    scribbled = bytearray(whole)
    for _ in range(rng.randint(1, 2)):
        at = rng.choice(rng.choice(places))
        if rng.random() < 0.5:
            scribbled[at] ^= 1 << rng.randrange(8)
        else:
            width = rng.choice((4, 8))
            scribbled[at : at + width] = (rng.choice(NUMBERS) % 2 ** (8 * width)).to_bytes(width, "little")
    return bytes(scribbled)


def test_shapes_and_bytes_at_random(root: Path, honest: Path, tmp_path: Path) -> None:
    print(f"EDGE_MOE_FUZZ_SEED={FUZZ_SEED} EDGE_MOE_FUZZ_SECONDS={FUZZ_SECONDS:g}")
    rng = random.Random(FUZZ_SEED)
    came: Counter[str] = Counter()
    end = time.monotonic() + FUZZ_SECONDS
    while not came or time.monotonic() < end:
        model = Model.read(honest)
        reshape(model, rng)
        whole, places = model.encode()
        if came.total() % 2:
            whole = scribble(whole, places, rng)
        path = tmp_path / f"round-{came.total()}.gguf"
        path.write_bytes(whole)
        stock, cached = compare(root, path)
        came[f"answers, {cached.says[:9].strip(':')}" if stock.end == "answers" else stock.end] += 1
        path.unlink()  # it stays where the comparison failed
    print(dict(came))
    assert came["answers, cache on"] * 4 > came.total(), came
