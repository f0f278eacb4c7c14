# SPDX-License-Identifier: GPL-3.0-or-later
"""Files and uses beside the plain ones: other quantisations, architectures and splits, and several users at once.

The text is that of the same server with the cache off. Not run: layers with different numbers of experts, or of
experts of different widths, as only hybrid architectures (``nemotron_h_moe``) have them.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import gguf
import pytest
from edge_moe_testbed import models
from edge_moe_testbed.bench import harness
from edge_moe_testbed.prompts import prompts

pytestmark = pytest.mark.llama

# Rows of 512 and 256 elements are whole blocks of every type.
SHAPE = models.MoeShape(layers=6, experts=32, experts_used=4, embedding=512, expert_hidden=256, heads=8, kv_heads=2)
# About 400 tokens, which no cache here has slots for, between two short texts.
PROMPTS = (
    "Explain to a child why the moon seems to follow the car.",
    " ".join(prompts().values()),
    "비가 그친 뒤 골목길에서 들려오는 아이들의 웃음소리를 짧은 글로 써 주세요.",
)
N_PREDICT = 40


LAYOUTS = {
    "q4_k_and_q6_k": replace(SHAPE, quantisation="Q4_K", down_quantisation="Q6_K"),
    "mxfp4": replace(SHAPE, quantisation="MXFP4"),
    "iq4_xs_and_iq4_nl": replace(SHAPE, quantisation="IQ4_XS", down_quantisation="IQ4_NL"),
    "fused_gate_up": replace(SHAPE, fused_gate_up=True),
    "dense_first_and_shared": replace(SHAPE, dense_layers=2),
}
# Of the 75 tensors of SHAPE, cutting two layers between their experts' gate and up, and up and down.
SPLIT_TENSORS = 25


@dataclass
class Run:
    """What a server said, and its cache's counters of decode at the end."""

    answers: list[dict[str, Any]]
    log: str
    counters: dict[str, float]

    @property
    def tokens(self) -> list[list[int]]:
        return [answer["tokens"] for answer in self.answers]


def cache_mib(shape: models.MoeShape, cycles: float) -> int:
    """For ``cycles`` token cycles of a shape, with what alignment and staging take."""
    padded = max(shape.expert_bytes(layer) for layer in range(2)) + 3 * 8192
    layers = shape.layers - shape.dense_layers + shape.draft_layers
    return -(-int(padded * (layers * shape.experts_used * cycles + 16 / 2)) // 2**20)


def run(root: Path, model: Path, folder: Path, mib: int, args: Sequence[str] = (), ready: Barrier | None = None) -> Run:
    """Ask a server of its own; with ``ready``, only when those of all others are up too."""
    folder.mkdir()
    with harness.server(
        root,
        model,
        folder / "server.log",
        threads=2,
        args=[*harness.STREAMING_ARGS, *args],
        environment={"EDGE_MOE_CACHE_MIB": str(mib), "EDGE_MOE_STATS_DIR": str(folder)},
    ) as server:
        if ready:
            ready.wait()
        answers = [server.complete(prompt, N_PREDICT) for prompt in PROMPTS]
        if mib:
            time.sleep(1.2)  # the health file is written about once a second
        health = (folder / f"cache-{server.process.pid}.prom").read_text()
    found = re.findall(r'edge_moe_cache_(\w+)\{pid="\d+"(?:,phase="decode")?\} (\S+)', health)
    return Run(answers, server.log_text(), {name: float(value) for name, value in found})


def assert_served(served: Run, layers: int) -> None:
    """The cache served ``layers`` layers, had to give way, and never failed or stood aside."""
    assert re.search(rf"^edge-moe: cache on: .* {layers} layers x \d+ slots", served.log, re.MULTILINE), served.log
    assert served.counters["hits_total"] > 0
    assert served.counters["misses_total"] > 0
    assert served.counters["evictions_total"] > 0
    assert served.counters["bypass_total"] == 0
    assert served.counters["errors_total"] == 0


def assert_a_text(reference: Run) -> None:
    assert "edge-moe: cache off: EDGE_MOE_CACHE_MIB is 0" in reference.log
    assert all(len(set(tokens)) > 12 for tokens in reference.tokens), "a text that loops would prove nothing"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_moe(tmp_path_factory.mktemp("model") / "moe.gguf", SHAPE)


@pytest.fixture(scope="module")
def plain_reference(root: Path, plain: Path) -> Run:
    reference = run(root, plain, plain.parent / "off", 0)
    assert_a_text(reference)
    return reference


@pytest.mark.parametrize("shape", LAYOUTS.values(), ids=LAYOUTS)
def test_text_equals_that_of_the_mapping(root: Path, tmp_path: Path, shape: models.MoeShape) -> None:
    model = models.write_moe(tmp_path / "moe.gguf", shape)
    reference = run(root, model, tmp_path / "off", 0)
    assert_a_text(reference)
    served = run(root, model, tmp_path / "on", cache_mib(shape, 1.5))
    assert served.tokens == reference.tokens
    assert_served(served, shape.layers - shape.dense_layers)


def test_experts_of_one_layer_in_two_files(root: Path, plain_reference: Run, tmp_path: Path) -> None:
    first = models.write_moe(tmp_path / "moe.gguf", SHAPE, SPLIT_TENSORS)
    names = [[tensor.name for tensor in gguf.GGUFReader(path).tensors] for path in sorted(tmp_path.glob("moe-*.gguf"))]
    assert [each[-1] for each in names[:2]] == ["blk.1.ffn_gate_exps.weight", "blk.3.ffn_up_exps.weight"]
    served = run(root, first, tmp_path / "on", cache_mib(SHAPE, 1.5))
    assert served.tokens == plain_reference.tokens
    assert_served(served, SHAPE.layers)


def test_two_servers_of_one_file_at_once(root: Path, plain: Path, plain_reference: Run, tmp_path: Path) -> None:
    sizes = [cache_mib(SHAPE, cycles) for cycles in (1.5, 3)]
    ready = Barrier(len(sizes), timeout=60)
    with ThreadPoolExecutor(len(sizes)) as pool:
        both = list(pool.map(lambda mib: run(root, plain, tmp_path / f"{mib}", mib, ready=ready), sizes))
    for served in both:
        assert served.tokens == plain_reference.tokens
        assert_served(served, SHAPE.layers)


def test_a_draft_model_beside_the_cached_one(root: Path, plain: Path, tmp_path: Path) -> None:
    """The draft is the model without its last layer, so some of what it proposes is taken and some is not."""
    draft = models.write_moe(tmp_path / "draft.gguf", replace(SHAPE, layers=SHAPE.layers - 1))
    _, served = run_with_drafts(
        root, plain, tmp_path, SHAPE, "--spec-type", "draft-simple", "--model-draft", str(draft)
    )
    assert served.log.count("edge-moe: cache off: another model of this process has the cache") == 1
    timings = [answer["timings"] for answer in served.answers]
    assert 0 < sum(each["draft_n_accepted"] for each in timings) < sum(each["draft_n"] for each in timings)


def test_layers_that_draft_for_the_model_they_are_in(root: Path, tmp_path: Path) -> None:
    """A second context computes the draft layer of the cached model, whose experts are cached too.

    Nothing that an untrained layer proposes is taken, so no text shows its experts: its proposals do, in the debug log.
    """
    shape = replace(SHAPE, draft_layers=1)
    model = models.write_moe(tmp_path / "moe.gguf", shape)
    reference, served = run_with_drafts(root, model, tmp_path, shape, "--spec-type", "draft-mtp", "-lv", "5")
    proposed, proposed_by_mapping = (re.findall(r"draft candidate .*", each.log) for each in (served, reference))
    assert len(set(proposed)) > 12
    assert proposed == proposed_by_mapping


def test_drafts_from_the_text_itself(root: Path, plain: Path, tmp_path: Path) -> None:
    """Up to nine tokens are verified at once: batches of decode that count, and stream, as prefill."""
    args = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "1", "--spec-ngram-simple-size-m", "8")
    run_with_drafts(root, plain, tmp_path, SHAPE, *args)


def run_with_drafts(root: Path, model: Path, folder: Path, shape: models.MoeShape, *args: str) -> tuple[Run, Run]:
    """Without and with the cache: both drafted, and their text is the same."""
    reference = run(root, model, folder / "off", 0, args)
    assert_a_text(reference)
    served = run(root, model, folder / "on", cache_mib(shape, 1.5), args)
    assert served.tokens == reference.tokens
    assert_served(served, shape.layers + shape.draft_layers)
    assert all(answer["timings"].get("draft_n") for answer in served.answers), "nothing was drafted"
    return reference, served


def test_two_servers_that_size_themselves_share_one_memory(
    root: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """The second has a cache although the first had taken all there was, and both say the text of the mapping."""
    shape = replace(SHAPE, layers=8, experts=64, expert_hidden=512)
    model = models.write_moe(tmp_path_factory.mktemp("larger") / "moe.gguf", shape)
    limit_bytes = shape.expert_total_bytes() * 0.9
    with harness.memory_limit("edge-moe-two-servers", int(limit_bytes)) as limit, contextlib.ExitStack() as stack:

        def serve(name: str, mib: str) -> harness.Server:
            environment = {"EDGE_MOE_CACHE_MIB": mib, "EDGE_MOE_STATS_DIR": str(tmp_path)}
            log = tmp_path / f"{name}.log"
            return stack.enter_context(
                harness.server(
                    root, model, log, threads=2, args=harness.STREAMING_ARGS, environment=environment, limit=limit
                )
            )

        reference = serve("mapping", "0").complete(PROMPTS[0], N_PREDICT)["tokens"]
        stack.pop_all().close()
        first = serve("first", "auto")
        assert first.complete(PROMPTS[0], N_PREDICT)["tokens"] == reference
        second = serve("second", "auto")
        assert second.complete(PROMPTS[0], N_PREDICT)["tokens"] == reference
        assert first.complete(PROMPTS[0], N_PREDICT)["tokens"] == reference
        for server in (first, second):
            log = server.log_text()
            assert "edge-moe: cache on: " in log, log
            assert "edge-moe: cache off: " not in log, log
        assert "shares its memory with 1 other server" in first.log_text()


def test_a_server_without_a_cache_says_what_it_needs_mapped(
    root: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Or the next one would take for its cache what this one's pages are in."""
    model = models.write_moe(tmp_path_factory.mktemp("fits") / "moe.gguf", SHAPE)
    environment = {"EDGE_MOE_CACHE_MIB": "auto", "EDGE_MOE_STATS_DIR": str(tmp_path)}
    with harness.server(root, model, tmp_path / "log", threads=2, environment=environment) as server:
        server.complete(PROMPTS[0], 4)
        assert "edge-moe: cache off: auto: the model fits in memory" in server.log_text()
        said = (tmp_path / f"cache-{server.process.pid}.share").read_text()
    shares, slots, untouched, mapped = map(int, said.split(" ")[:4])
    assert (shares, slots, untouched) == (0, 0, 0)
    assert mapped >= SHAPE.expert_total_bytes()
    assert list(tmp_path.glob("*.share")) == []
