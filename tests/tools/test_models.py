# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from edge_moe_testbed import models


def test_same_shape_and_seed_give_the_same_bytes(tmp_path: Path) -> None:
    models.write_moe(tmp_path / "a.gguf", models.TINY)
    models.write_moe(tmp_path / "b.gguf", models.TINY)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    models.write_moe(tmp_path / "c.gguf", models.MoeShape(**{**models.TINY.__dict__, "seed": 2}))
    assert (tmp_path / "a.gguf").read_bytes() != (tmp_path / "c.gguf").read_bytes()


@pytest.mark.parametrize("quantisation", ["Q8_0", "Q4_0", "F16"])
def test_shape_and_quantisation_are_what_was_asked(tmp_path: Path, quantisation: str) -> None:
    shape = models.MoeShape(**{**models.TINY.__dict__, "quantisation": quantisation})
    models.write_moe(tmp_path / "moe.gguf", shape)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "moe.gguf").tensors}
    pieces = [tensors[f"blk.0.ffn_{kind}_exps.weight"] for kind in ("gate", "up", "down")]
    assert {piece.tensor_type.name for piece in pieces} == {quantisation}
    assert sum(piece.n_bytes for piece in pieces) == shape.expert_bytes() * shape.experts
    assert list(pieces[0].shape) == [shape.embedding, shape.expert_hidden, shape.experts]


def test_a_row_that_is_no_whole_number_of_blocks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no multiple of Q8_0's block of 32"):
        models.write_moe(tmp_path / "moe.gguf", models.MoeShape(**{**models.TINY.__dict__, "expert_hidden": 100}))
    assert not (tmp_path / "moe.gguf").exists()


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


@pytest.mark.parametrize(("quantisation", "file_type"), [("Q8_0", "MOSTLY_Q8_0"), ("MXFP4", "MOSTLY_MXFP4_MOE")])
def test_the_file_says_its_quantisation(tmp_path: Path, quantisation: str, file_type: str) -> None:
    models.write_moe(tmp_path / "moe.gguf", models.MoeShape(**{**models.TINY.__dict__, "quantisation": quantisation}))
    field = gguf.GGUFReader(tmp_path / "moe.gguf").fields["general.file_type"]
    assert gguf.LlamaFileType(field.contents()).name == file_type
