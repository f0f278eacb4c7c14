# SPDX-License-Identifier: GPL-3.0-or-later
"""The patched llama-server on this machine: the tokens of every cache size and thread count equal the mmap path's."""

from __future__ import annotations

import itertools
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from edge_moe_testbed import models
from edge_moe_testbed.bench import harness
from edge_moe_testbed.bench.figure import BenchError
from edge_moe_testbed.prompts import prompts

pytestmark = pytest.mark.llama

# One cycle of this shape is 9 MiB: big enough for whole MiB to express 1 to 4 cycles, small enough to be quick.
SHAPE = models.MoeShape(layers=6, experts=32, experts_used=4, embedding=512, expert_hidden=256, heads=8, kv_heads=2)
# Rows of 544 elements make pieces of 578 bytes: no offset and no length is a multiple of 4 KiB.
ODD_SHAPE = models.MoeShape(layers=5, experts=24, experts_used=3, embedding=544, expert_hidden=160, heads=8, kv_heads=2)
PROMPTS = (
    "Explain to a child why the moon seems to follow the car.",
    "비가 그친 뒤 골목길에서 들려오는 아이들의 웃음소리를 짧은 글로 써 주세요.",
    "Which three tools should a beginner buy first?",
)
# About 400 tokens: more experts than any cache here has slots, and a second batch of other texts behind the first.
LONG = " ".join(prompts().values())
N_PREDICT = 48
THREADS = (1, 2, 4)


@pytest.fixture(scope="module", params=[SHAPE, ODD_SHAPE], ids=["aligned", "odd"])
def shape(request: pytest.FixtureRequest) -> models.MoeShape:
    value: models.MoeShape = request.param
    return value


@pytest.fixture(scope="module")
def model(shape: models.MoeShape, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "moe.gguf"
    models.write_moe(path, shape)
    return path


@pytest.fixture(scope="module")
def reference(root: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[list[int]]]:
    """The mmap path's tokens by thread count: attention over a long text is split among threads, which rounds."""
    tokens = {}
    for threads in THREADS:
        with harness.server(
            root,
            model,
            tmp_path_factory.mktemp("log") / "reference.log",
            threads=threads,
            environment={"EDGE_MOE_CACHE_MIB": "0"},
        ) as server:
            tokens[threads] = complete_all(server)
            assert "edge-moe: cache off: EDGE_MOE_CACHE_MIB is 0" in server.log_text()
    assert all(len(set(each)) > 12 for each in tokens[2]), "a text that loops would prove nothing"
    return tokens


def complete_all(server: harness.Server) -> list[list[int]]:
    """The short prompts, the long one into what they left, and a short one into what that left."""
    return [server.complete(prompt, N_PREDICT)["tokens"] for prompt in (*PROMPTS, LONG, PROMPTS[0])]


def cache_mib(shape: models.MoeShape, cycles: float) -> int:
    # Slots are padded to 4 KiB and one page more for each of the three pieces; beside them, staging for 16 pieces.
    padded = shape.expert_bytes() + 3 * 8192
    return -(-int(shape.layers * shape.experts_used * padded * cycles + 16 * padded / 3) // 2**20)


def counters(folder: Path) -> dict[str, float]:
    files = list(folder.glob("cache-*.prom"))
    assert len(files) == 1, files
    found: dict[str, float] = {}
    for line in files[0].read_text().splitlines():
        matched = re.match(r"(edge_moe_cache_\w+)\{([^}]*)\} (\S+)", line)
        if matched:
            phase = re.search(r'phase="(\w+)"', matched[2])
            found[matched[1].removeprefix("edge_moe_cache_") + (f"_{phase[1]}" if phase else "")] = float(matched[3])
    return found


@pytest.mark.parametrize(("cycles", "threads"), list(itertools.product((1, 1.5, 2, 4), THREADS)))
def test_tokens_equal_under_eviction(
    root: Path,
    model: Path,
    shape: models.MoeShape,
    reference: dict[int, list[list[int]]],
    tmp_path: Path,
    cycles: float,
    threads: int,
) -> None:
    size = cache_mib(shape, cycles)
    with harness.server(
        root,
        model,
        tmp_path / "server.log",
        threads=threads,
        environment={"EDGE_MOE_CACHE_MIB": str(size), "EDGE_MOE_STATS_DIR": str(tmp_path)},
    ) as server:
        assert complete_all(server) == reference[threads]
        log = server.log_text()
        time.sleep(1.5)  # the health file is written about once a second
        seen = counters(tmp_path)
    assert log.count("edge-moe: cache on: ") == 1, log
    assert seen["hits_total_decode"] + seen["misses_total_decode"] > 0
    assert seen["misses_total_decode"] > 0
    assert seen["evictions_total"] > 0 or cycles == 4
    assert seen["errors_total"] == 0
    assert seen["read_bytes_total"] > 0
    assert seen["staging_bytes"] > 0
    assert seen["streamed_total_prefill"] > 0
    assert seen["bypass_total_prefill"] == 0
    assert seen["delivered_bytes"] <= size * 2**20


def test_two_slots_at_once(root: Path, model: Path, shape: models.MoeShape, tmp_path: Path) -> None:
    """Two requests decoded in one batch: each text is one that the mmap path gives for the same pair of requests."""
    args = [*harness.STREAMING_ARGS]
    args[args.index("--parallel") + 1] = "2"
    texts = {}
    for size in (0, cache_mib(shape, 4)):
        with (
            harness.server(
                root,
                model,
                tmp_path / f"server-{size}.log",
                threads=2,
                args=args,
                environment={"EDGE_MOE_CACHE_MIB": str(size)},
            ) as server,
            ThreadPoolExecutor(2) as pool,
        ):
            answers = pool.map(lambda prompt: server.complete(prompt, N_PREDICT)["tokens"], PROMPTS[:2])
            texts[size] = list(answers)
            assert (f"edge-moe: cache {'on' if size else 'off'}") in server.log_text()
    assert len(set(map(str, texts.values()))) == 1


def test_four_slots_prefill_while_others_decode(
    root: Path, model: Path, shape: models.MoeShape, tmp_path: Path
) -> None:
    """Eight prompts for four slots, long ones in small batches: some prefill while others decode.

    They come in one request, so that what shares a batch with what, which rounds, does not depend on time.
    """
    args = [*harness.STREAMING_ARGS]
    args[args.index("--parallel") + 1] = "4"
    args[args.index("-b") + 1] = args[args.index("-ub") + 1] = "64"
    requests = [PROMPTS[0], LONG, *PROMPTS[1:], LONG[: len(LONG) // 2], *PROMPTS]
    texts = {}
    for size in (0, cache_mib(shape, 1.5), cache_mib(shape, 4)):
        with harness.server(
            root,
            model,
            tmp_path / f"server-{size}.log",
            threads=2,
            args=args,
            environment={"EDGE_MOE_CACHE_MIB": str(size), "EDGE_MOE_STATS_DIR": str(tmp_path)},
        ) as server:
            answers: Any = server.complete(requests, N_PREDICT)
            texts[size] = [answer["tokens"] for answer in answers]
            if size:
                time.sleep(1.5)
                seen = counters(tmp_path)
                assert seen["streamed_total_prefill"] > 0
                assert seen["misses_total_decode"] > 0
    assert len(texts[0]) == len(requests)
    assert len(set(map(str, texts.values()))) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EDGE_MOE_CACHE_MIB", "lots"),
        ("EDGE_MOE_CACHE_MIB", "-1"),
        ("EDGE_MOE_IO_DEPTH", "0"),
        ("EDGE_MOE_READ_KIB", "4k"),
        ("EDGE_MOE_POLICY", "best"),
        ("EDGE_MOE_LOOKAHEAD", "yes"),
    ],
)
def test_bad_value_stops_the_server_and_is_named(
    root: Path, model: Path, tmp_path: Path, name: str, value: str
) -> None:
    with (
        pytest.raises(BenchError),
        harness.server(
            root, model, tmp_path / "server.log", threads=2, environment={"EDGE_MOE_CACHE_MIB": "64", name: value}
        ),
    ):
        pass
    complaint = [line for line in (tmp_path / "server.log").read_text().splitlines() if name in line]
    assert len(complaint) == 1, complaint
    assert value in complaint[0]


def test_below_one_cycle_is_served_by_mmap_and_says_so(
    root: Path, model: Path, reference: dict[int, list[list[int]]], tmp_path: Path
) -> None:
    with harness.server(
        root, model, tmp_path / "server.log", threads=2, environment={"EDGE_MOE_CACHE_MIB": "1"}
    ) as server:
        assert server.complete(PROMPTS[0], N_PREDICT)["tokens"] == reference[2][0]
        assert "below one token cycle" in server.log_text()


def test_dense_control_starts_no_cache(root: Path, tmp_path: Path) -> None:
    dense = models.ensure_dense_control()
    args = [arg for arg in harness.STREAMING_ARGS if arg != "--cpu-moe"]
    with harness.server(
        root,
        dense,
        tmp_path / "server.log",
        threads=2,
        args=args,
        environment={"EDGE_MOE_CACHE_MIB": "256", "EDGE_MOE_STATS_DIR": str(tmp_path)},
    ) as server:
        assert len(server.complete(PROMPTS[0], 8)["tokens"]) == 8
        assert "edge-moe: cache off: the model has no experts" in server.log_text()
