# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _gguf
from hypothesis import given, settings
from hypothesis import strategies as st

MIB = 1024 * 1024
COLLECTIONS = Path(__file__).parents[7]
# One expert of the small model: gate and up of 32 rows of 64, down of 64 rows of 32, in Q8_0 (34 bytes for 32).
EXPERT = 3 * 64 * 32 // 32 * 34


def read(data: bytes, name: str = "m.gguf") -> dict[str, Any]:
    header = _gguf.read_header(_gguf.BytesSource(data, name))
    return _gguf.summarise(name, [header], {"count": 1, "present": 1, "missing": []})


def test_a_small_moe(gguf: Any) -> None:
    info = read(gguf.build(gguf.values(), gguf.tensors()))
    assert info["architecture"] == "qwen3moe"
    assert (info["layers"], info["moe_layers"], info["experts"], info["experts_used"]) == (2, 2, 8, 2)
    assert info["expert_bytes"] == EXPERT
    assert info["cycle_bytes"] == 2 * 2 * EXPERT
    one = EXPERT // 3
    assert info["expert_layout"] == [
        {"first_layer": 0, "last_layer": 1, "kinds": {"gate": one, "up": one, "down": one}}
    ]
    assert info["experts_total_bytes"] == 2 * 8 * EXPERT
    assert info["dense_bytes"] == 64 * 100 * 2 + 2 * 64 * 4
    assert info["kv_bytes_per_token"] == 2 * 2 * 32 * 2 * 2
    assert (info["quantisation"], info["name"], info["context_train"]) == ("Q8_0", "Test", 4096)
    assert (info["embedding"], info["vocabulary"]) == (64, 100)
    assert (info["chat_template"], info["fused_gate_up"], info["version"]) == (False, False, 3)


def test_version_2_and_a_template(gguf: Any) -> None:
    info = read(gguf.build(gguf.values(**{"tokenizer.chat_template": "{{ x }}" * 9000}), gguf.tensors(), version=2))
    assert info["version"] == 2
    assert info["chat_template"] is True


def test_fused_tensors_and_layers_that_are_dense(gguf: Any) -> None:
    tensors = [
        ("token_embd.weight", [64, 100], 1),
        ("blk.0.ffn_gate.weight", [64, 32], 1),
        ("blk.1.ffn_gate_up_exps.weight", [64, 64, 8], 39),
        ("blk.1.ffn_down_exps.weight", [32, 64, 8], 39),
    ]
    info = read(gguf.build(gguf.values(), tensors))
    one = (64 * 64 + 32 * 64) // 32 * 17
    assert (info["fused_gate_up"], info["moe_layers"], info["expert_bytes"]) == (True, 1, one)
    assert info["cycle_bytes"] == 2 * one


def test_layers_that_only_predict_ahead_are_no_part_of_a_token(gguf: Any) -> None:
    values = gguf.values(**{"qwen3moe.nextn_predict_layers": 1, "qwen3moe.block_count": 3})
    info = read(gguf.build(values, gguf.tensors(3)))
    assert (info["layers"], info["moe_layers"]) == (2, 2)
    assert info["cycle_bytes"] == 2 * 2 * EXPERT
    assert info["experts_total_bytes"] == 3 * 8 * EXPERT


def hybrid(layers: int, heads: int, kv: int, inner: int, **more: Any) -> dict[str, Any]:
    """The shape of the two models of the published comparison: one layer of four has keys and values."""
    return {
        "a.block_count": layers,
        "a.attention.head_count": heads,
        "a.attention.head_count_kv": kv,
        "a.attention.key_length": 256,
        "a.attention.value_length": 256,
        "a.full_attention_interval": 4,
        "a.ssm.conv_kernel": 4,
        "a.ssm.inner_size": inner,
        "a.ssm.state_size": 128,
        "a.ssm.group_count": 16,
        **more,
    }


@pytest.mark.parametrize(
    ("context", "moe_mib", "dense_mib"), [(4096, 80, 256), (32768, 640, 2048), (131072, 2560, 8192)]
)
def test_the_six_published_kv_sizes(context: int, moe_mib: int, dense_mib: int) -> None:
    assert _gguf.kv_bytes_per_token(hybrid(40, 16, 2, 4096), "a", 40) * context == moe_mib * MIB
    assert _gguf.kv_bytes_per_token(hybrid(64, 24, 4, 6144), "a", 64) * context == dense_mib * MIB


def test_the_published_recurrent_states() -> None:
    assert round(_gguf.recurrent_bytes(hybrid(40, 16, 2, 4096), "a", 40) / MIB, 2) == 62.81
    assert round(_gguf.recurrent_bytes(hybrid(64, 24, 4, 6144), "a", 64) / MIB, 2) == 149.62


def test_the_interval_that_an_architecture_leaves_out() -> None:
    values = {key.replace("a.", "qwen35moe.", 1): value for key, value in hybrid(40, 16, 2, 4096).items()}
    del values["qwen35moe.full_attention_interval"]
    assert _gguf.kv_bytes_per_token(values, "qwen35moe", 40) == 20 * 1024


def test_kv_heads_by_layer_and_flags() -> None:
    by_layer = {"a.attention.head_count": 32, "a.embedding_length": 2048, "a.attention.head_count_kv": [0, 0, 8, 8]}
    assert _gguf.kv_bytes_per_token(by_layer, "a", 4) == 2 * 8 * (64 + 64) * 2
    flags = hybrid(4, 16, 2, 4096) | {"a.attention.recurrent_layers": [True, False, True, False]}
    assert _gguf.kv_bytes_per_token(flags, "a", 4) == 2 * 2 * 512 * 2


def test_latent_attention_stores_one_row() -> None:
    values = {
        "a.attention.head_count": 128,
        "a.attention.head_count_kv": 1,
        "a.attention.key_length": 576,
        "a.attention.value_length": 512,
        "a.attention.key_length_mla": 192,
    }
    assert _gguf.kv_bytes_per_token(values, "a", 2) == 2 * 576 * 2


def test_short_convolutions_keep_little() -> None:
    values = {"a.attention.head_count_kv": [0, 8], "a.shortconv.l_cache": 3, "a.embedding_length": 2048}
    assert _gguf.recurrent_bytes(values, "a", 2) == 2048 * 2 * 4


# Files that are no models


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"\0" * 4096, "zeros only"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "is a web page"),
        (b"\n  <HTML><head>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer"),
        (b"/annex/objects/SHA256E-s123--abc.gguf\n", "git-annex pointer"),
        (b"tjgg" + b"\0" * 64, "older GGML family"),
        (b"PK\x03\x04" + b"\0" * 64, "zip archive"),
        (b"\x1f\x8b\x08" + b"\0" * 64, "compressed"),
        (b"\x28\xb5\x2f\xfd" + b"\0" * 64, "compressed"),
        (struct.pack("<Q", 100) + b'{"__metadata__":{}}', "safetensors"),
        (b'{"error":"gated repository"}', "JSON"),
        (b"MZ" + b"\x01" * 64, "should begin with b'GGUF'"),
        (b"GGUF", "cut short"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + b"\0" * 40, "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0) + b"\0" * 40, "version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + b"\0" * 40, "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 62), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 61) + b"\0" * 64, "key of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "does not name its architecture"),
    ],
)
def test_what_is_no_model_says_what_it_is(data: bytes, says: str) -> None:
    with pytest.raises(_gguf.GgufError, match=re.escape(says)) as caught:
        read(data)
    assert "m.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def key(name: str, kind: int, data: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + data


def with_key(kind: int, data: bytes, tail: int = 256) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("k", kind, data) + b"\0" * tail


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (with_key(8, struct.pack("<Q", 1 << 62)), "ends inside its header"),
        (with_key(9, struct.pack("<IQ", 4, 1 << 61)), "ends inside its header"),
        (with_key(9, struct.pack("<IQ", 8, 1 << 50)), "array of"),
        (with_key(9, struct.pack("<IQ", 9, 1 << 50)), "array of"),
        (with_key(9, struct.pack("<IQ", 8, 2) + struct.pack("<Q", 1 << 40)), "ends inside its header"),
        (with_key(9, struct.pack("<IQ", 9, 1) * 12), "nests arrays"),
        (with_key(77, b""), "value type 77"),
        (with_key(9, struct.pack("<IQ", 77, 1)), "array of type 77"),
    ],
)
def test_hostile_metadata(data: bytes, says: str) -> None:
    with pytest.raises(_gguf.GgufError, match=re.escape(says)):
        read(data)


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (("t", [2**32, 2**31], 0), "elements"),
        (("t", [10], 8), "no multiple of 32"),
        (("blk.0.ffn_up_exps.weight", [64, 32], 8), "needs three"),
        (("blk.99999.ffn_up_exps.weight", [64, 32, 8], 8), "no model has so many"),
    ],
)
def test_hostile_tensors(gguf: Any, tensor: Any, says: str) -> None:
    with pytest.raises(_gguf.GgufError, match=re.escape(says)):
        read(gguf.build(gguf.values(), [tensor], with_data=False) + b"\0" * 4096)


def test_an_unknown_type_and_bad_dimensions(gguf: Any) -> None:
    data = gguf.build(gguf.values(), [("t", [32], 0)])
    place = data.index(b"\x01\0\0\0\0\0\0\0t") + 9
    with pytest.raises(_gguf.GgufError, match="type 999"):
        read(data[: place + 12] + struct.pack("<I", 999) + data[place + 16 :])
    with pytest.raises(_gguf.GgufError, match="9 dimensions"):
        read(data[:place] + struct.pack("<I", 9) + data[place + 4 :])


def test_experts_that_contradict_the_model(gguf: Any) -> None:
    with pytest.raises(_gguf.GgufError, match="holds 8 experts and the model says 16"):
        read(gguf.build(gguf.values(**{"qwen3moe.expert_count": 16}), gguf.tensors()))


def test_a_vocabulary_is_no_model(gguf: Any) -> None:
    with pytest.raises(_gguf.GgufError, match="no tensors"):
        read(gguf.build(gguf.values(), []))


@pytest.mark.parametrize("alignment", [0, 3, 1 << 30, "x"])
def test_a_bad_alignment(gguf: Any, alignment: Any) -> None:
    with pytest.raises(_gguf.GgufError, match=r"general\.alignment"):
        read(gguf.build(gguf.values(**{"general.alignment": alignment}), gguf.tensors()))


def test_a_cut_file_says_how_much_is_missing(gguf: Any) -> None:
    data = gguf.build(gguf.values(), gguf.tensors())
    # The last tensor's padding is not needed, its last byte is.
    size = len(data) - 1000
    with pytest.raises(_gguf.GgufError, match=f"and it has {size}; finish the download"):
        read(data[:size])


def test_every_cut_is_noticed(gguf: Any) -> None:
    data = gguf.build(gguf.values(), gguf.tensors())
    header_end = len(gguf.build(gguf.values(), gguf.tensors(), with_data=False))
    for size in range(header_end):
        with pytest.raises(_gguf.GgufError):
            read(data[:size])


# Shards


def shard_values(gguf: Any, number: int, count: int) -> dict[str, Any]:
    values = gguf.values() if number == 0 else {"general.architecture": "qwen3moe"}
    return values | {"split.no": number, "split.count": count, "split.tensors.count": 9}


@pytest.fixture
def shards(gguf: Any, tmp_path: Path) -> list[Path]:
    tensors = gguf.tensors()
    parts = [tensors[:3], tensors[3:6], tensors[6:]]
    paths = []
    for number, part in enumerate(parts):
        path = tmp_path / f"모델-{number + 1:05d}-of-00003.gguf"
        path.write_bytes(gguf.build(shard_values(gguf, number, 3), part))
        paths.append(path)
    return paths


def test_shards_add_up(gguf: Any, shards: list[Path]) -> None:
    whole = read(gguf.build(gguf.values(), gguf.tensors()))
    info = _gguf.info_from_path(str(shards[0]))
    assert info["shards"] == {"count": 3, "present": 3, "missing": []}
    for name in ("cycle_bytes", "experts_total_bytes", "dense_bytes", "expert_bytes", "moe_layers"):
        assert info[name] == whole[name]
    assert info["size_bytes"] == sum(path.stat().st_size for path in shards)


def test_a_missing_shard_is_named(shards: list[Path]) -> None:
    shards[1].unlink()
    info = _gguf.info_from_path(str(shards[0]))
    assert (info["shards"]["count"], info["shards"]["present"]) == (3, 2)
    assert info["shards"]["missing"] == [str(shards[1])]


def test_an_empty_shard_is_named(shards: list[Path]) -> None:
    shards[2].write_bytes(b"")
    with pytest.raises(_gguf.GgufError, match=r"00003-of-00003\.gguf is empty"):
        _gguf.info_from_path(str(shards[0]))


def test_a_later_shard_points_to_the_first(shards: list[Path]) -> None:
    with pytest.raises(_gguf.GgufError, match=r"name .*-00001-of-00003\.gguf"):
        _gguf.info_from_path(str(shards[1]))


def test_a_renamed_shard_is_explained(shards: list[Path]) -> None:
    other = shards[0].rename(shards[0].with_name("model.gguf"))
    with pytest.raises(_gguf.GgufError, match="is one of 3 shards and is not named so"):
        _gguf.info_from_path(str(other))


def test_shards_joined_with_cat_are_recognised(shards: list[Path], tmp_path: Path) -> None:
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join(path.read_bytes() for path in shards))
    with pytest.raises(_gguf.GgufError, match="joined end to end"):
        _gguf.info_from_path(str(joined))


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(_gguf.GgufError, match="does not exist"):
        _gguf.info_from_path(str(tmp_path / "no.gguf"))
    with pytest.raises(_gguf.GgufError, match="not a regular file"):
        _gguf.info_from_path(str(tmp_path))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(_gguf.GgufError, match="not a regular file"):
        _gguf.info_from_path(str(tmp_path / "fifo"))


# Limits


def test_20_gib_are_not_read(gguf: Any, tmp_path: Path) -> None:
    """A sparse file of the size of a real model, with a tokenizer of a real size."""
    values = gguf.values(
        **{
            "tokenizer.ggml.tokens": [f"token{number}" for number in range(150_000)],
            "tokenizer.ggml.merges": [f"a{number} b" for number in range(150_000)],
            "tokenizer.ggml.token_type": [1] * 150_000,
        }
    )
    tensors = [*gguf.tensors(), ("big.weight", [1 << 20, 1 << 14], 8)]
    head = gguf.build(values, tensors, with_data=False)
    path = tmp_path / "big.gguf"
    path.write_bytes(head)
    os.truncate(path, 20 << 30)
    tracemalloc.start()
    started = time.process_time()
    info = _gguf.info_from_path(str(path))
    spent = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert info["size_bytes"] == 20 << 30
    assert peak < 16 * MIB
    # Tracing makes it several times slower than it is; this still bounds it.
    assert spent < 5


def test_20_gib_take_less_than_100_ms_and_64_mib(gguf: Any, tmp_path: Path) -> None:
    """The same in a process of its own, as a board runs it: time of its CPU, memory of all of it."""
    path = tmp_path / "big.gguf"
    values = gguf.values(**{"tokenizer.ggml.tokens": [f"token{number}" for number in range(150_000)]})
    tensors = [*gguf.tensors(), ("big.weight", [1 << 20, 1 << 14], 8)]
    path.write_bytes(gguf.build(values, tensors, with_data=False))
    os.truncate(path, 20 << 30)
    script = (
        "import sys, time\n"
        "from ansible_collections.edge.moe.plugins.module_utils import _gguf\n"
        "began = time.process_time()\n"
        "size = _gguf.info_from_path(sys.argv[1])['size_bytes']\n"
        "spent = time.process_time() - began\n"
        "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(size, spent, peak)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    seconds = []
    # A machine that others keep busy slows one run, hardly each of three.
    for _turn in range(3):
        done = subprocess.run(command, cwd=COLLECTIONS, capture_output=True, text=True, check=True)
        size, spent, kib = done.stdout.split()
        assert int(size) == 20 << 30
        assert int(kib) < 64 * 1024
        seconds.append(float(spent))
        if min(seconds) < 0.1:
            break
    assert min(seconds) < 0.1


def test_a_header_without_end_is_given_up(tmp_path: Path) -> None:
    """A sparse file whose array claims two thousand million empty strings."""
    path = tmp_path / "hostile.gguf"
    path.write_bytes(with_key(9, struct.pack("<IQ", 8, 1 << 31), tail=0))
    os.truncate(path, 20 << 30)
    with pytest.raises(_gguf.GgufError, match="header of more than 64 MiB"):
        _gguf.info_from_path(str(path))


def test_type_sizes_are_those_of_llama_cpp() -> None:
    constants = pytest.importorskip("gguf.constants")
    known = {int(kind): (kind.name, *size) for kind, size in constants.GGML_QUANT_SIZES.items()}
    # The gguf package gives Q8_1 two floats of 32 bits; ggml's own structure has two of 16.
    known[9] = ("Q8_1", 32, 36)
    for kind, size in known.items():
        assert _gguf.TYPES[kind] == size


def test_a_file_of_the_gguf_package_is_read(tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    writer = package.GGUFWriter(str(tmp_path / "w.gguf"), "llama")
    writer.add_block_count(3)
    writer.add_context_length(77)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv([1, 2, 1])
    writer.add_token_list(["a", "나", "c"])
    writer.add_tensor("token_embd.weight", numpy.zeros((3, 64), dtype=numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    info = _gguf.info_from_path(str(tmp_path / "w.gguf"))
    assert (info["layers"], info["context_train"], info["vocabulary"]) == (3, 77, 3)
    assert info["kv_bytes_per_token"] == (1 + 2 + 1) * 16 * 2 * 2
    assert info["dense_bytes"] == 3 * 64 * 2


# URLs


def test_a_model_behind_a_url(gguf: Any, web: Any) -> None:
    data = gguf.build(gguf.values(), gguf.tensors())
    web.files["/m.gguf"] = data
    info = _gguf.info_from_url(web.url + "/m.gguf")
    local = read(data)
    assert info["path"] == web.url + "/m.gguf"
    assert {key: value for key, value in info.items() if key != "path"} == {
        key: value for key, value in local.items() if key != "path"
    }


def test_a_big_file_is_fetched_by_its_head(gguf: Any, web: Any) -> None:
    values = gguf.values(**{"tokenizer.ggml.tokens": ["x" * 100] * 50_000})
    web.files["/m.gguf"] = gguf.build(values, gguf.tensors()) + b"\0" * (24 * MIB)
    assert _gguf.info_from_url(web.url + "/m.gguf")["moe_layers"] == 2
    assert len(web.requests) == 2
    assert web.requests[0][1] == "bytes=0-4194303"


def test_shards_behind_a_url(gguf: Any, shards: list[Path], web: Any) -> None:
    for number, path in enumerate(shards):
        if number != 1:
            web.files[f"/x/m-{number + 1:05d}-of-00003.gguf"] = path.read_bytes()
    info = _gguf.info_from_url(web.url + "/x/m-00001-of-00003.gguf")
    assert info["shards"] == {"count": 3, "present": 2, "missing": ["/x/m-00002-of-00003.gguf"]}


def test_urls_that_do_not_serve(gguf: Any, web: Any) -> None:
    with pytest.raises(_gguf.GgufError, match="answers 404"):
        _gguf.info_from_url(web.url + "/no.gguf")
    with pytest.raises(_gguf.GgufError, match="cannot be reached"):
        _gguf.info_from_url("http://127.0.0.1:9/m.gguf")
    with pytest.raises(_gguf.GgufError, match="must start with http"):
        _gguf.info_from_url("file:///etc/passwd")
    web.files["/page"] = b"<!doctype html>" + b" " * 100
    with pytest.raises(_gguf.GgufError, match="is a web page"):
        _gguf.info_from_url(web.url + "/page")
    web.files["/empty"] = b""
    with pytest.raises(_gguf.GgufError, match="is empty"):
        _gguf.info_from_url(web.url + "/empty")
    web.files["/m.gguf"] = gguf.build(gguf.values(), gguf.tensors())
    web.ranges = False
    with pytest.raises(_gguf.GgufError, match="no ranges"):
        _gguf.info_from_url(web.url + "/m.gguf")


def test_a_url_that_stalls_is_given_up(gguf: Any, web: Any) -> None:
    web.files["/m.gguf"] = gguf.build(gguf.values(), gguf.tensors())
    web.stall_after = 40
    with pytest.raises(_gguf.GgufError, match="stalled"):
        _gguf.info_from_url(web.url + "/m.gguf", timeout_s=0.3)


# Properties


@settings(max_examples=300, deadline=2000)
@given(st.data())
def test_damage_never_does_worse_than_a_message(data: st.DataObject) -> None:
    from_fixture = with_key(9, struct.pack("<IQ", 4, 3) + struct.pack("<3I", 1, 2, 3))
    damaged = bytearray(from_fixture)
    for _change in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(4, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    # There is no tensor in it, so no damage makes it a model.
    with pytest.raises(_gguf.GgufError) as caught:
        read(bytes(damaged))
    assert "\n" not in str(caught.value)


@settings(max_examples=300, deadline=2000)
@given(st.data())
def test_a_damaged_model_is_read_or_refused(gguf: Any, data: st.DataObject) -> None:
    damaged = bytearray(gguf.build(gguf.values(), gguf.tensors()))
    header = len(gguf.build(gguf.values(), gguf.tensors(), with_data=False))
    for _change in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(4, header - 1))] = data.draw(st.integers(0, 255))
    try:
        info = read(bytes(damaged))
    except _gguf.GgufError:
        return
    assert info["dense_bytes"] >= 0
    assert info["cycle_bytes"] >= 0
    assert info["kv_bytes_per_token"] >= 0


@settings(max_examples=200, deadline=2000)
@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic(data: bytes) -> None:
    with pytest.raises(_gguf.GgufError):
        read(b"GGUF\3\0\0\0" + data)


@settings(deadline=2000)
@given(
    layers=st.integers(1, 5),
    experts=st.integers(1, 12),
    used=st.integers(1, 12),
    hidden=st.sampled_from([32, 64, 96]),
    kind=st.sampled_from([0, 1, 2, 8, 39]),
)
def test_sums_are_right_for_any_shape(gguf: Any, layers: int, experts: int, used: int, hidden: int, kind: int) -> None:
    values = gguf.values(
        **{"qwen3moe.block_count": layers, "qwen3moe.expert_count": experts, "qwen3moe.expert_used_count": used}
    )
    tensors = []
    for layer in range(layers):
        tensors += [
            (f"blk.{layer}.ffn_gate_exps.weight", [64, hidden, experts], kind),
            (f"blk.{layer}.ffn_up_exps.weight", [64, hidden, experts], kind),
            (f"blk.{layer}.ffn_down_exps.weight", [hidden, 64, experts], kind),
        ]
    info = read(gguf.build(values, tensors))
    block, size = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 39: (32, 17)}[kind]
    one = 3 * 64 * hidden // block * size
    assert info["expert_bytes"] == one
    assert info["experts_total_bytes"] == one * experts * layers
    assert info["cycle_bytes"] == one * min(used, experts) * layers
    assert info["dense_bytes"] == 0
