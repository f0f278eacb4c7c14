# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from edge_moe_testbed import __main__ as command
from edge_moe_testbed import models

# Rows of whole blocks of every type.
WIDE = replace(models.TINY, embedding=256, expert_hidden=256, head=64)
TINY_DIGEST = "6961075a515171c2ed688c36f99bbf680a6331402d155ab29e3b6f1bd08d76ef"


def tensors_of(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def test_same_shape_and_seed_give_the_same_bytes(tmp_path: Path) -> None:
    models.write_moe(tmp_path / "a.gguf", models.TINY)
    models.write_moe(tmp_path / "b.gguf", models.TINY)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    models.write_moe(tmp_path / "c.gguf", models.MoeShape(**{**models.TINY.__dict__, "seed": 2}))
    assert (tmp_path / "a.gguf").read_bytes() != (tmp_path / "c.gguf").read_bytes()


def test_the_bytes_are_those_of_this_generator_version(tmp_path: Path) -> None:
    """Other bytes need another version, or models that were written before are taken for these."""
    models.write_moe(tmp_path / "moe.gguf", models.TINY)
    assert models.GENERATOR_VERSION == 3
    assert hashlib.sha256((tmp_path / "moe.gguf").read_bytes()).hexdigest() == TINY_DIGEST


@pytest.mark.parametrize("quantisation", ["Q8_0", "Q4_0", "F16"])
def test_shape_and_quantisation_are_what_was_asked(tmp_path: Path, quantisation: str) -> None:
    shape = models.MoeShape(**{**models.TINY.__dict__, "quantisation": quantisation})
    models.write_moe(tmp_path / "moe.gguf", shape)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "moe.gguf").tensors}
    pieces = [tensors[f"blk.0.ffn_{kind}_exps.weight"] for kind in ("gate", "up", "down")]
    assert {piece.tensor_type.name for piece in pieces} == {quantisation}
    assert sum(piece.n_bytes for piece in pieces) == shape.expert_bytes() * shape.experts
    assert list(pieces[0].shape) == [shape.embedding, shape.expert_hidden, shape.experts]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"expert_hidden": 100}, "no multiple of Q8_0's block of 32"),
        ({"down_quantisation": "Q6_K"}, "a row of 96 elements is no multiple of Q6_K's block of 256"),
        ({"quantisation": "Q4_K", "embedding": 256, "expert_hidden": 256}, "a row of 128 elements is no multiple"),
    ],
    ids=["hidden", "down", "heads"],
)
def test_a_row_that_is_no_whole_number_of_blocks_is_refused(
    tmp_path: Path, change: dict[str, str | int], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        models.write_moe(tmp_path / "moe.gguf", models.MoeShape(**{**models.TINY.__dict__, **change}))
    assert not (tmp_path / "moe.gguf").exists()


@pytest.mark.parametrize("quantisation", ["Q4_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_random_bits_are_weights_of_the_usual_deviation(tmp_path: Path, quantisation: str) -> None:
    models.write_moe(tmp_path / "moe.gguf", replace(WIDE, quantisation=quantisation))
    up = tensors_of(tmp_path / "moe.gguf")["blk.0.ffn_up_exps.weight"]
    assert up.tensor_type.name == quantisation
    values = gguf.quants.dequantize(up.data, up.tensor_type)
    wanted = 2 / np.sqrt(WIDE.embedding)
    assert values.std() == pytest.approx(wanted, rel=0.02)
    assert abs(values.mean()) < wanted / 10


def test_every_second_layer_has_the_other_down_quantisation(tmp_path: Path) -> None:
    shape = replace(WIDE, quantisation="Q4_K", down_quantisation="Q6_K")
    models.write_moe(tmp_path / "moe.gguf", shape)
    tensors = tensors_of(tmp_path / "moe.gguf")
    downs = [tensors[f"blk.{layer}.ffn_down_exps.weight"].tensor_type.name for layer in range(shape.layers)]
    assert downs == ["Q4_K", "Q6_K", "Q4_K", "Q6_K"]
    sizes = [
        sum(tensors[f"blk.{layer}.ffn_{name}_exps.weight"].n_bytes for name in ("gate", "up", "down"))
        for layer in range(shape.layers)
    ]
    assert sizes == [shape.expert_bytes(layer) * shape.experts for layer in range(shape.layers)]
    assert sum(sizes) == shape.expert_total_bytes()


def test_what_makes_a_shape_more_than_plain(tmp_path: Path) -> None:
    shape = replace(models.TINY, fused_gate_up=True, dense_layers=1, draft_layers=1)
    models.write_moe(tmp_path / "moe.gguf", shape)
    tensors = tensors_of(tmp_path / "moe.gguf")
    fields = gguf.GGUFReader(tmp_path / "moe.gguf").fields
    assert fields["general.architecture"].contents() == "hy_v3"
    assert fields["hy_v3.block_count"].contents() == shape.layers + 1
    assert [layer for layer in range(5) if f"blk.{layer}.ffn_down_exps.weight" in tensors] == [1, 2, 3, 4]
    assert [layer for layer in range(5) if f"blk.{layer}.ffn_down_shexp.weight" in tensors] == [1, 2, 3, 4]
    assert [layer for layer in range(5) if f"blk.{layer}.nextn.eh_proj.weight" in tensors] == [4]
    fused = tensors["blk.1.ffn_gate_up_exps.weight"]
    assert list(fused.shape) == [shape.embedding, 2 * shape.expert_hidden, shape.experts]
    assert not any(name.endswith(("ffn_gate_exps.weight", "ffn_up_exps.weight")) for name in tensors)
    assert shape.cycle_bytes() == 3 * shape.experts_used * shape.expert_bytes()
    one_layer = fused.n_bytes + tensors["blk.1.ffn_down_exps.weight"].n_bytes
    assert one_layer == shape.experts * shape.expert_bytes()


def test_a_split_model_is_the_same_in_more_files(tmp_path: Path) -> None:
    whole = models.write_moe(tmp_path / "whole.gguf", models.TINY)
    first = models.write_moe(tmp_path / "parts.gguf", models.TINY, split_tensors=20)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [*(f"parts-0000{i}-of-00003.gguf" for i in (1, 2, 3)), "whole.gguf"]
    assert (whole.name, first.name) == (names[3], names[0])
    parts = {name: tensor for part in names[:3] for name, tensor in tensors_of(tmp_path / part).items()}
    assert {name: tensor.data.tobytes() for name, tensor in parts.items()} == {
        name: tensor.data.tobytes() for name, tensor in tensors_of(whole).items()
    }


def test_experts_differ(tmp_path: Path) -> None:
    models.write_moe(tmp_path / "moe.gguf", models.TINY)
    tensor = next(t for t in gguf.GGUFReader(tmp_path / "moe.gguf").tensors if t.name == "blk.0.ffn_gate_exps.weight")
    assert len({expert.tobytes() for expert in tensor.data}) == models.TINY.experts


def test_vocabulary_covers_every_byte_and_merges_text() -> None:
    tokens, merges, favoured = models.train_vocabulary(models.training_text(), models.VOCABULARY_SIZE)
    assert len(tokens) == len(set(tokens)) == len(favoured) == models.VOCABULARY_SIZE
    assert len(merges) == models.VOCABULARY_SIZE - 257
    assert not favoured[0x80]  # half a UTF-8 sequence
    assert favoured[ord("a")]


def test_a_model_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    first = models.ensure_moe("m", models.TINY, tmp_path)
    stamp = first.stat().st_mtime_ns
    assert models.ensure_moe("m", models.TINY, tmp_path).stat().st_mtime_ns == stamp
    digest, name = (tmp_path / "m.gguf.sha256").read_text().split()
    assert (len(digest), name) == (64, "m.gguf")


def test_a_model_from_before_a_field_came_is_not_written_again(tmp_path: Path) -> None:
    path = models.ensure_moe("m", models.TINY, tmp_path)
    written = path.stat().st_mtime_ns
    old = {name: value for name, value in asdict(models.TINY).items() if name != "fused_gate_up"}
    (tmp_path / "m.gguf.stamp").write_text(json.dumps({"generator": models.GENERATOR_VERSION, **old}))
    assert models.ensure_moe("m", models.TINY, tmp_path).stat().st_mtime_ns == written
    assert models.ensure_moe("m", replace(models.TINY, fused_gate_up=True), tmp_path).stat().st_mtime_ns != written


def test_the_command_line_takes_every_field(tmp_path: Path) -> None:
    options = ["--shape", "tiny", "--name", "m", "--dir", str(tmp_path), "--fused-gate-up", "--dense-layers", "1"]
    assert command.main(["model", "moe", *options]) == 0
    stamp = json.loads((tmp_path / "m.gguf.stamp").read_text())
    assert stamp == {
        "generator": models.GENERATOR_VERSION,
        **asdict(replace(models.TINY, fused_gate_up=True, dense_layers=1)),
    }


@pytest.mark.parametrize(("quantisation", "file_type"), [("Q8_0", "MOSTLY_Q8_0"), ("MXFP4", "MOSTLY_MXFP4_MOE")])
def test_the_file_says_its_quantisation(tmp_path: Path, quantisation: str, file_type: str) -> None:
    models.write_moe(tmp_path / "moe.gguf", models.MoeShape(**{**models.TINY.__dict__, "quantisation": quantisation}))
    field = gguf.GGUFReader(tmp_path / "moe.gguf").fields["general.file_type"]
    assert gguf.LlamaFileType(field.contents()).name == file_type
