# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How to serve one model on one board: a pure function of the model's header, the board's facts and overrides.

Private to this collection: it may change in any release.

The plan counts from the memory a board has in total, not from what happens to be free: a plan that changed while the
server it describes is running would reconfigure that server at every run.

The rules are fitted to what has been measured, and each constant says where it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _estimate

MIB = 1024 * 1024
GIB = 1024 * MIB

# A headless board with its services: 0.8 GiB of an 8 GB Jetson, a third of a virtual one with 768 MiB.
SYSTEM_BYTES = 192 * MIB
SYSTEM_SHARE = 1 / 12
# A CUDA context, its libraries and scratch buffers; CPU and GPU share the memory.
CUDA_BYTES = 512 * MIB
# Streaming needs page cache for dense weights and for prompts, which touch more experts than a cache holds.
PAGE_CACHE_SHARE = 1 / 8
# 2 GiB of 7.4 ran well; 3 GiB died of thrashing.
CACHE_MAX_SHARE = 1 / 3
# Below one token cycle an expert is gone before it is asked for again: a cache only costs.
MIN_CYCLES = 1.25
# With fewer cycles than this, a cache loses against page cache that holds a good part of the experts: gpt-oss-20b
# with 1.7 cycles fell to 0.68 of its speed without one, while Qwen3.6-35B-A3B with 3.6 gained 1.47.
SURE_CYCLES = 3
PAGE_CACHE_WINS_SHARE = 1 / 3

BATCH = 512
CONTEXT_DEFAULT = 4096
CONTEXT_MIN = 512
IO_DEPTH = 16
READ_KIB = 1024
READ_AHEAD_KB = {"resident": 128, "cache": 64, "mmap": 32}
DECISIONS = ("resident", "cache", "mmap")
INTEGER_OVERRIDES = {
    # name: least and greatest value
    "cache_mib": (0, 1 << 24),
    "threads": (1, 1024),
    "io_depth": (1, 64),
    "read_kib": (4, 65536),
    "read_ahead_kb": (0, 1 << 20),
    "context": (1, 1 << 24),
    "parallel": (1, 256),
    "n_gpu_layers": (0, 9999),
}
LOOKAHEADS = ("0", "1", "auto")
OVERRIDES = ("decision", "floor", "lookahead", "extra_args", *INTEGER_OVERRIDES)
# What a search on the board may have found better than the rules.
TUNED = ("decision", "threads", "cache_mib", "io_depth", "read_kib", "lookahead", "read_ahead_kb")
# The role writes these itself, from its own variables.
RESERVED_ARGS = ("-m", "--model", "--host", "--port")


class PlanError(Exception):
    """The arithmetic that forbids what was asked for."""


def mib(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def check_overrides(overrides: dict[str, Any]) -> dict[str, Any]:
    """Overrides with their types made right: a variable that went through a template is a string."""
    checked: dict[str, Any] = {}
    for key, value in overrides.items():
        if key not in OVERRIDES:
            raise PlanError(f"override {key!r} is not known; it can be any of {', '.join(sorted(OVERRIDES))}")
        if value is None or value == "":
            continue
        if key == "decision":
            if value not in DECISIONS:
                raise PlanError(f"override decision is {value!r}; it can be {', '.join(DECISIONS)}")
            checked[key] = value
        elif key == "lookahead":
            if str(value) not in LOOKAHEADS:
                raise PlanError(f"override lookahead is {value!r}; it can be {', '.join(LOOKAHEADS)}")
            checked[key] = str(value)
        elif key == "floor":
            text = str(value).lower()
            if text not in ("true", "false", "yes", "no", "1", "0", "on", "off"):
                raise PlanError(f"override floor is {value!r}; it can be true or false")
            checked[key] = text in ("true", "yes", "1", "on")
        elif key == "extra_args":
            if not isinstance(value, list) or not all(isinstance(item, (str, int, float)) for item in value):
                raise PlanError(f"override extra_args is {value!r}; it must be a list of strings")
            arguments = [str(item) for item in value]
            for argument in arguments:
                if argument.split("=")[0] in RESERVED_ARGS:
                    raise PlanError(f"override extra_args holds {argument}: the llama_server role sets that itself")
            checked[key] = arguments
        else:
            low, high = INTEGER_OVERRIDES[key]
            text = str(value).strip()
            digits = text[1:] if text[:1] == "-" else text
            if isinstance(value, bool) or not digits.isdecimal():
                raise PlanError(f"override {key} is {value!r}; it must be a whole number")
            number = int(text)
            if not low <= number <= high:
                raise PlanError(f"override {key} is {number}; it must be between {low} and {high}")
            checked[key] = number
    return checked


class _Planner:
    def __init__(
        self,
        gguf: dict[str, Any],
        jetson: dict[str, Any],
        devfreq: dict[str, Any],
        overrides: dict[str, Any],
        measurements: Sequence[Any],
        tuned: dict[str, Any],
        tuned_why: str,
    ) -> None:
        self.gguf = gguf
        self.jetson = jetson
        self.devfreq = devfreq
        by_hand = check_overrides(overrides)
        # what was found on the board is set as an override would be, below those of the user
        self.tuned = {key: value for key, value in tuned.items() if key not in by_hand}
        self.tuned_why = tuned_why
        self.overrides = {**self.tuned, **by_hand}
        self.points = _estimate.points_of(measurements)
        self.reasons: dict[str, str] = {}
        total = (jetson.get("memory") or {}).get("total_bytes")
        if not isinstance(total, int) or total <= 0:
            raise PlanError("the board's memory is not known: jetson.memory.total_bytes is missing")
        self.total: int = total
        self.cores = max(1, int(jetson.get("cores") or 1))
        self.cuda = bool(jetson.get("cuda"))
        shards = gguf.get("shards") or {}
        if shards.get("present", 1) < shards.get("count", 1):
            raise PlanError(
                f"{gguf['path']} has {shards['present']} of its {shards['count']} shards; missing: "
                + ", ".join(shards.get("missing") or ["?"])
            )
        self.system = SYSTEM_BYTES + int(total * SYSTEM_SHARE)
        self.page_cache = int(total * PAGE_CACHE_SHARE)
        # Activations of one batch: a few rows of the embedding's width for each token, and a fixed part.
        self.compute = (
            32 * MIB + BATCH * int(gguf.get("embedding") or 4096) * 4 * 16 + 4 * int(gguf.get("vocabulary") or 0)
        )

    def choose(self, key: str, value: Any, reason: str, consequence: str = "") -> Any:
        """The value of one setting: the override if there is one, with what it means beside what was planned."""
        if key in self.overrides:
            asked = self.overrides[key]
            # what is said of a value set by hand is a rule, and a measurement knows better
            told = consequence and asked != value and key not in self.tuned
            self.reasons[key] = f"{self.source(key)}; the plan had {value}: {reason}" + (
                f" {consequence}" if told else ""
            )
            return asked
        self.reasons[key] = reason
        return value

    def source(self, key: str) -> str:
        return self.tuned_why if key in self.tuned else "set by an override"

    def kv_bytes(self, context: int, parallel: int) -> int:
        per_token, state = int(self.gguf["kv_bytes_per_token"]), int(self.gguf.get("recurrent_bytes") or 0)
        return per_token * context + state * parallel

    def fixed(self, context: int, parallel: int) -> int:
        """What is in memory whatever the decision, beside the weights."""
        gpu = CUDA_BYTES if self.n_gpu_layers > 0 else 0
        return self.system + gpu + self.compute + self.kv_bytes(context, parallel)

    def plan(self) -> dict[str, Any]:
        gguf, overrides = self.gguf, self.overrides
        dense = int(gguf["dense_bytes"])
        experts_total = int(gguf["experts_total_bytes"])
        weights = dense + experts_total
        is_moe = experts_total > 0 and int(gguf["cycle_bytes"]) > 0
        # Weights that go to the GPU are copied into memory; what does not fit must stay where the file is mapped.
        too_dense = dense + self.system + (CUDA_BYTES if self.cuda else 0) + self.compute > self.total
        if too_dense:
            gpu_layers, reason = 0, f"{mib(dense)} of dense weights cannot be copied into this board's memory."
        elif self.cuda:
            gpu_layers, reason = 99, "all layers run on the GPU, which shares the board's memory."
        else:
            gpu_layers, reason = 0, "no CUDA was found on this board, so everything runs on the CPU."
        self.n_gpu_layers = self.choose(
            "n_gpu_layers",
            gpu_layers,
            reason,
            "The layers that are left out are computed on the CPU, at its speed."
            if overrides.get("n_gpu_layers", gpu_layers) < gpu_layers
            else "",
        )
        if self.n_gpu_layers > 0 and not self.cuda:
            raise PlanError(
                f"override n_gpu_layers is {self.n_gpu_layers} and the board has no CUDA (jetson.cuda is null): "
                "install the JetPack packages first, or leave it at 0"
            )
        state = int(gguf.get("recurrent_bytes") or 0)
        parallel = self.choose(
            "parallel",
            1,
            "one stream: each further one takes memory and shares the same drive.",
            "The slots share the context"
            + (f", and each keeps {mib(state)} of state." if state else ".")
            + (" Streams that decode at once ask for different experts." if is_moe else ""),
        )
        trained = int(gguf.get("context_train") or CONTEXT_DEFAULT)
        wanted = min(CONTEXT_DEFAULT, trained)
        context = wanted
        # A shorter context is worth it where it lets something in: the whole model, or the least useful cache.
        least_cache = int(MIN_CYCLES * int(gguf["cycle_bytes"])) + self.page_cache
        for least in (weights, dense + least_cache if is_moe else 0):
            if self.fixed(CONTEXT_MIN, parallel) + least <= self.total:
                while context > CONTEXT_MIN and self.fixed(context, parallel) + least > self.total:
                    context //= 2
                break
        context = self.choose(
            "context",
            context,
            f"{context} tokens take {mib(self.kv_bytes(context, parallel))}"
            + (f"; the model was trained for {trained}." if context == wanted else f"; {wanted} would not fit."),
            f"{overrides.get('context', 0)} tokens take {mib(self.kv_bytes(overrides.get('context', 0), parallel))}.",
        )
        if context > trained:
            self.reasons["context"] += f" The model was trained for {trained} tokens: beyond them text degrades."
        fixed = self.fixed(context, parallel)
        if fixed > self.total:
            raise PlanError(
                f"a context of {context} does not fit: system {mib(self.system)} + buffers {mib(self.compute)} + "
                f"keys and values {mib(self.kv_bytes(context, parallel))}"
                + (f" + CUDA {mib(CUDA_BYTES)}" if self.n_gpu_layers > 0 else "")
                + f" = {mib(fixed)} of {mib(self.total)}; a smaller context is needed"
            )

        resident_need = fixed + weights
        decision, why, cycles, cache_mib = self._decide(is_moe, dense, experts_total, fixed, resident_need)
        streamed = decision != "resident"
        self.reasons["decision"] = why

        if decision == "cache":
            # More compute threads than this wait for the same reads and take cores from the readers.
            threads = max(1, (2 * self.cores + 1) // 3) if self.cores > 2 else self.cores
            reason = f"{self.cores} cores: with a cache the reads have threads of their own, more compute threads lose."
        elif decision == "mmap":
            threads = max(6, 2 * self.cores)
            reason = "each thread that waits for a page is one more read in flight, so more threads than cores win."
        else:
            threads = self.cores
            reason = f"the board has {self.cores} cores and nothing waits for the drive."
        threads = self.choose(
            "threads",
            threads,
            reason,
            self._threads_consequence(decision, overrides.get("threads", 0), threads),
        )
        unused = "" if decision == "cache" else "Only a cache reads this way, so it changes nothing here."
        io_depth = self.choose(
            "io_depth",
            IO_DEPTH,
            "one thread keeps this many reads under way at the drive.",
            unused
            or (
                "A deeper queue serves whole layers no faster and single experts later."
                if overrides.get("io_depth", 0) > IO_DEPTH
                else "Fewer reads are in flight, which a drive with queues does not fill."
            ),
        )
        read_kib = self.choose(
            "read_kib",
            READ_KIB,
            "large reads beat small ones wherever the drive allows them.",
            unused
            or (
                "One read then spans more than one piece of an expert can use."
                if overrides.get("read_kib", 0) > READ_KIB
                else "Each expert takes more reads."
            ),
        )
        read_ahead_kb = self.choose(
            "read_ahead_kb",
            READ_AHEAD_KB[decision],
            {
                "resident": "the kernel's default: the file is read once.",
                "cache": "the cache reads by itself; only prompts and dense weights fault, in longer runs.",
                "mmap": "larger read-ahead reads bytes of experts that nobody asked for.",
            }[decision],
            "8192 has made this path 13 times slower." if overrides.get("read_ahead_kb", 0) > 512 and streamed else "",
        )
        on_cpu = is_moe and streamed
        floor = self.choose(
            "floor",
            on_cpu,
            "experts are computed on the CPU while the GPU waits, so its governor would keep it at its lowest clock."
            if on_cpu
            else "the GPU is not kept waiting by experts on the CPU, so its governor is right by itself.",
            "Nothing on the CPU asks for it, so the service will not raise the clock."
            if not on_cpu
            else "The GPU will decode at its lowest clock.",
        )

        arguments = ["--load-mode", "mmap", "--fit", "off"]
        if streamed:
            # The weights must stay where the file is mapped, and a warm-up run would read every expert there is.
            arguments += ["--no-host", "--no-repack", "--no-warmup"]
        if on_cpu:
            arguments += ["--cpu-moe", "--no-op-offload"]
        arguments += ["-ngl", str(self.n_gpu_layers), "-t", str(threads), "-c", str(context)]
        arguments += ["-b", str(BATCH), "-ub", str(BATCH), "--parallel", str(parallel)]
        # Old prompts would be kept in up to 8 GiB, and states of recurrent layers beside them.
        arguments += ["--cache-ram", "0", "--ctx-checkpoints", "0" if streamed else "1"]
        arguments += ["--metrics", "--no-ui", "-lv", "4", *overrides.get("extra_args", [])]
        if "extra_args" in overrides:
            self.reasons["extra_args"] = "set by an override, placed last, so they win over the plan's own arguments."
        environment = {
            "EDGE_MOE_CACHE_MIB": str(cache_mib),
            "EDGE_MOE_IO_DEPTH": str(io_depth),
            "EDGE_MOE_READ_KIB": str(read_kib),
        }
        chosen = {}
        if "lookahead" in overrides:
            chosen["lookahead"] = self.choose(
                "lookahead", "auto", "what it reads ahead is compared as it runs.", unused
            )
            environment["EDGE_MOE_LOOKAHEAD"] = chosen["lookahead"]
        return {
            "decision": decision,
            "cache_mib": cache_mib,
            "cycles": cycles,
            "threads": threads,
            "io_depth": io_depth,
            "read_kib": read_kib,
            **chosen,
            "read_ahead_kb": read_ahead_kb,
            "context": context,
            "parallel": parallel,
            "floor": floor,
            "n_gpu_layers": self.n_gpu_layers,
            "server_args": arguments,
            "environment": environment,
            "context_max": self._context_max(decision, context, parallel, cache_mib),
            "budget": self._budget(decision, context, parallel, cache_mib),
            "estimate": self._estimate(decision, floor, fixed, cache_mib),
            "would_change": self._would_change(is_moe, decision, resident_need, parallel, context, fixed),
            "reasons": self.reasons,
            "overridden": sorted(set(overrides) - set(self.tuned)),
            "tuned": sorted(self.tuned),
        }

    def _decide(
        self, is_moe: bool, dense: int, experts_total: int, fixed: int, resident_need: int
    ) -> tuple[str, str, float, int]:
        """Decision, its sentence, token cycles and MiB of the cache."""
        asked = self.overrides.get("decision")
        asked_mib = self.overrides.get("cache_mib")
        # Naming a size means wanting the cache; naming 0 means not wanting it.
        if asked is None and asked_mib and is_moe:
            asked = "cache"
        if asked == "cache" and asked_mib == 0:
            raise PlanError("override decision is cache and override cache_mib is 0: name a size, or leave it out")
        weights = dense + experts_total
        if asked == "cache" and not is_moe:
            raise PlanError(f"override decision is cache and {self.gguf['path']} has no experts: nothing to cache")
        if resident_need <= self.total:
            natural = "resident"
            why = (
                f"weights {mib(weights)} and all else fit: {mib(resident_need)} of {mib(self.total)}, "
                "so nothing is read while decoding."
            )
        else:
            natural, why = "", ""
        if asked == "resident" and not natural:
            raise PlanError(
                f"override decision is resident: {mib(weights)} of weights + {mib(fixed)} for everything else = "
                f"{mib(resident_need)}, and the board has {mib(self.total)}"
            )

        if natural and asked in (None, "resident"):
            if asked:
                why = f"{self.source('decision')}; {why}"
            if asked_mib:
                why += " The override of cache_mib has no effect: there is nothing to stream."
            self.reasons["cache_mib"] = "no cache: all experts are in memory."
            return "resident", why, 0.0, 0
        if not is_moe:
            self.reasons["cache_mib"] = "no cache: the model has no experts."
            if natural:
                return "mmap", f"{self.source('decision')}; the plan had resident: {why}", 0.0, 0
            short = resident_need - self.total
            return (
                "mmap",
                f"the model is dense, every token needs all of its {mib(weights)}, and {mib(short)} do not fit: "
                "each token reads at least that much from the drive; a smaller quantisation would be far faster.",
                0.0,
                0,
            )
        return self._stream(asked, asked_mib, dense, experts_total, fixed, natural, why)

    def _stream(
        self,
        asked: str | None,
        asked_mib: int | None,
        dense: int,
        experts_total: int,
        fixed: int,
        natural: str,
        natural_why: str,
    ) -> tuple[str, str, float, int]:
        cycle = int(self.gguf["cycle_bytes"])
        free = self.total - fixed - dense
        room = max(0, min(free - self.page_cache, int(self.total * CACHE_MAX_SHARE), experts_total))
        fits = room / cycle
        page_share = max(0.0, min(1.0, free / experts_total))
        # Whole cycles, and quarters only where less than two fit: a half-used cycle is memory the page cache lacks.
        planned_cycles = float(int(fits)) if fits >= 2 else int(fits * 4) / 4
        if fits < MIN_CYCLES:
            decision = "mmap"
            why = (
                f"the model does not fit and {mib(room)} are left for a cache: {fits:.2f} token cycles of "
                f"{mib(cycle)}, and below {MIN_CYCLES} a cache only costs, so experts are read through the page cache."
            )
        elif fits < SURE_CYCLES and page_share > PAGE_CACHE_WINS_SHARE:
            decision = "mmap"
            why = (
                f"a cache would hold {fits:.1f} token cycles of {mib(cycle)} (experts of "
                f"{mib(self.gguf['expert_bytes'])}), while the page cache can keep {page_share:.0%} of all experts by "
                f"itself: below {SURE_CYCLES} cycles such a cache has been measured to lose."
            )
        else:
            decision = "cache"
            why = (
                f"the model does not fit; a cache of {planned_cycles:g} token cycles of {mib(cycle)} does, and holds "
                f"{planned_cycles * cycle / experts_total:.0%} of all experts."
            )
        if natural:
            decision, why = natural, natural_why
        if asked_mib == 0 and asked is None and decision == "cache":
            asked = "mmap"
        planned = decision
        if asked is not None:
            decision = asked
            why = f"{self.source('decision')}; the plan had {planned}: {why}"

        if decision != "cache":
            self.reasons["cache_mib"] = "no cache: experts are read through the page cache."
            return decision, why, 0.0, 0
        planned_mib = -(-int(planned_cycles * cycle) // MIB)
        reason = (
            f"{planned_cycles:g} token cycles of {mib(cycle)}: {mib(free)} are free beside dense weights and buffers, "
            f"{mib(self.page_cache)} of them stay with the page cache, and no more than a third of memory is taken."
        )
        cache_mib = planned_mib if asked_mib is None else asked_mib
        cycles = cache_mib * MIB / cycle
        arithmetic = (
            f"system, buffers, keys and values {mib(fixed)} + dense {mib(dense)} + cache {mib(cache_mib * MIB)} "
            f"= {mib(fixed + dense + cache_mib * MIB)} of {mib(self.total)}"
        )
        if fixed + dense + cache_mib * MIB > self.total:
            raise PlanError(f"a cache of {cache_mib} MiB does not fit: {arithmetic}")
        if cycles < 1:
            raise PlanError(
                f"a cache of {cache_mib} MiB is {cycles:.2f} token cycles: a token needs {mib(cycle)} of experts, and "
                "a cache below one cycle is not started; ask for more, or for decision mmap"
            )
        if asked_mib is None:
            self.reasons["cache_mib"] = reason
        else:
            left = self.total - fixed - dense - cache_mib * MIB
            consequence = f"{cycles:.1f} token cycles; {mib(left)} are left for the page cache."
            if left < self.page_cache:
                consequence += (
                    f" That is below {mib(self.page_cache)}: dense weights may be evicted and speed collapse."
                )
            if cycles < MIN_CYCLES:
                consequence += " Below 1.25 cycles a cache only costs."
            self.reasons["cache_mib"] = f"{self.source('cache_mib')}; the plan had {planned_mib}: {consequence}"
        return decision, why, round(cycles, 2), cache_mib

    def _threads_consequence(self, decision: str, asked: int, planned: int) -> str:
        if decision == "mmap":
            return "Fewer threads are fewer reads in flight." if asked < planned else "Each thread costs a switch."
        if asked > self.cores:
            worse = "halve a cache's speed" if decision == "cache" else "wait for one another"
            return f"More compute threads than cores {worse}."
        return "Some cores stay idle." if asked < planned else "They take cores from the readers."

    def _context_max(self, decision: str, context: int, parallel: int, cache_mib: int) -> int:
        """The longest context for which this decision still fits, at least the one that was chosen."""
        per_token = int(self.gguf["kv_bytes_per_token"])
        trained = int(self.gguf.get("context_train") or CONTEXT_DEFAULT)
        taken = self.fixed(0, parallel)
        if decision == "resident":
            taken += int(self.gguf["dense_bytes"]) + int(self.gguf["experts_total_bytes"])
        elif decision == "cache":
            taken += int(self.gguf["dense_bytes"]) + cache_mib * MIB + self.page_cache
        room = max(0, self.total - taken) // per_token if per_token else trained
        return max(context, min(trained, room))

    def _estimate(self, decision: str, floor: bool, fixed: int, cache_mib: int) -> dict[str, Any]:
        gguf = self.gguf
        dense, experts, cycle = (int(gguf[key]) for key in ("dense_bytes", "experts_total_bytes", "cycle_bytes"))
        is_moe = experts > 0 and cycle > 0

        def reads(cache_bytes: float) -> float:
            return _estimate.mib_per_token(
                decision, is_moe, cycle, experts, dense, int(cache_bytes), self.total - fixed
            )

        if decision == "cache":
            read = _estimate.cache_reads(self.points, cache_mib, lambda size: reads(size * MIB))
        else:
            read = reads(0)
        gpu_board = self.jetson.get("board") if self.cuda else None
        return _estimate.estimate(decision, read, (dense + cycle) / MIB, floor, gpu_board, self.points)

    def _would_change(
        self, is_moe: bool, decision: str, resident_need: int, parallel: int, context: int, fixed: int
    ) -> list[str]:
        """What would have to be different for another decision, with the figures."""
        gguf = self.gguf
        dense, experts, cycle = (int(gguf[key]) for key in ("dense_bytes", "experts_total_bytes", "cycle_bytes"))
        weights = dense + experts
        sentences: list[str] = []
        if resident_need > self.total:
            fits = self.total - fixed
            sentences.append(
                f"A board with {mib(resident_need)} of memory or more would keep the whole model: this one lacks "
                f"{mib(resident_need - self.total)}."
            )
            if fits > 0:
                sentences.append(
                    f"A file of at most {mib(fits)} would stay in memory here: a quantisation of "
                    f"{fits / weights:.0%} of this one's size, or a smaller model."
                )
        else:
            spare = self.total - resident_need
            per_token = int(gguf["kv_bytes_per_token"])
            if per_token:
                longest = context + spare // per_token
                trained = int(gguf.get("context_train") or CONTEXT_DEFAULT)
                if longest < trained:
                    sentences.append(
                        f"A context of more than {longest} tokens would push weights out of memory: each takes "
                        f"{per_token / 1024:.0f} KiB and {mib(spare)} are left."
                    )
                else:
                    sentences.append(f"No context that the model was trained for changes it: {mib(spare)} are left.")
            else:
                sentences.append(f"{mib(spare)} are left: a model larger by that would be streamed.")
        if is_moe and resident_need > self.total:
            least = min(SURE_CYCLES * cycle, experts)
            needed = max(fixed + dense + least + self.page_cache, int(least / CACHE_MAX_SHARE))
            if decision == "mmap" and needed > self.total:
                sentences.append(
                    f"A cache becomes worth it with {SURE_CYCLES} token cycles, {mib(least)}: that takes a board with "
                    f"about {mib(needed)}."
                )
            elif decision == "cache":
                sentences.append(
                    f"Below {MIN_CYCLES} token cycles, {mib(MIN_CYCLES * cycle)}, a cache only costs, and "
                    "the page cache would read the experts."
                )
        if not self.points:
            sentences.append("A measurement of this board would replace the published line: run edge.moe.verify.")
        return sentences

    def _budget(self, decision: str, context: int, parallel: int, cache_mib: int) -> list[dict[str, Any]]:
        gguf = self.gguf
        lines = [("memory of the board", self.total), ("system and services", -self.system)]
        if self.n_gpu_layers > 0:
            lines.append(("CUDA context and libraries", -CUDA_BYTES))
        lines.append((f"compute buffers, batch of {BATCH}", -self.compute))
        lines.append((f"keys and values, {context} tokens", -int(gguf["kv_bytes_per_token"]) * context))
        if gguf.get("recurrent_bytes"):
            lines.append((f"recurrent state, {parallel} slots", -int(gguf["recurrent_bytes"]) * parallel))
        resident_experts = int(gguf["experts_total_bytes"]) if decision == "resident" else 0
        lines.append(("dense weights", -int(gguf["dense_bytes"])))
        if resident_experts:
            lines.append(("experts", -resident_experts))
        if cache_mib:
            lines.append(("expert cache", -cache_mib * MIB))
        left = sum(size for _item, size in lines)
        lines.append(("left for the page cache" if decision != "resident" else "left", left))
        return [{"item": item, "bytes": size} for item, size in lines]


def largest_cache_mib(plan: dict[str, Any], experts_total: int) -> int:
    """The largest cache that leaves the page cache what every plan leaves it, at most all experts."""
    total, left = plan["budget"][0]["bytes"], plan["budget"][-1]["bytes"]
    spare = left - int(total * PAGE_CACHE_SHARE)
    return min(int(plan["cache_mib"]) + max(0, spare) // MIB, -(-experts_total // MIB))


def _tuned_setting(
    tuned: dict[str, Any], jetson: dict[str, Any], model_sha256: str, release_kind: str
) -> tuple[dict[str, Any], str]:
    """The values of a tuned result that was found for this board and model, and the sentence that goes with each.

    Raises PlanError with why it is not taken: nothing in it is trusted, it may come from anywhere.
    """
    if tuned.get("problem"):
        raise PlanError(str(tuned["problem"])[:300])
    if tuned.get("format") != 1:
        raise PlanError(f"its format is {str(tuned.get('format'))[:40]!r} and this collection reads 1")
    mode = jetson.get("power_mode") or {}
    for what, found, wanted in (
        ("model_sha256", tuned.get("model_sha256"), model_sha256),
        ("board", tuned.get("board"), jetson.get("board")),
        ("power_mode", (_dict(tuned.get("power_mode")) or {}).get("name"), _dict(mode).get("name")),
        ("release_kind", tuned.get("release_kind"), release_kind),
    ):
        if found != wanted:
            raise PlanError(f"it was found for {what} {str(found)[:80]!r} and this is {str(wanted)[:80]!r}")
    gain, setting = _dict(tuned.get("gain")), _dict(tuned.get("setting"))
    if gain.get("confirmed") is not True:
        return {}, ""
    ratio = gain.get("ratio")
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 1 < ratio < 1000:
        raise PlanError(f"its gain.ratio is {str(ratio)[:40]!r}; it must be a number above 1")
    unknown = sorted(str(key)[:40] for key in set(setting) - set(TUNED))
    if unknown or setting.get("decision") not in ("cache", "mmap"):
        raise PlanError(f"its setting holds {unknown or setting.get('decision')!r}, which is no value of a setting")
    try:
        checked = check_overrides(setting)
    except PlanError as error:
        raise PlanError(f"its setting's {str(error).removeprefix('override ')}"[:400]) from None
    when = str(tuned.get("when"))[:40]
    return checked, f"measured {ratio - 1:.0%} faster than the plan's own setting on {when}"


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def make_plan(
    gguf: dict[str, Any],
    jetson: dict[str, Any],
    devfreq: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    measurements: Sequence[Any] = (),
    tuned: dict[str, Any] | None = None,
    model_sha256: str = "",
    release_kind: str = "",
) -> dict[str, Any]:
    """The plan, the same for the same arguments. Raises PlanError with the arithmetic.

    `tuned` is a result of edge.moe.tune. Where it was found for this model, board, power mode and kind of release its
    values stand below the overrides and above the rules; otherwise it is ignored and the reason says why.
    """
    overrides = overrides or {}

    def planned(setting: dict[str, Any], why: str = "") -> dict[str, Any]:
        return _Planner(gguf, jetson, devfreq or {}, overrides, measurements, setting, why).plan()

    plan = planned({})
    said = ""
    if tuned:
        try:
            setting, why = _tuned_setting(tuned, jetson, model_sha256, release_kind)
            if not setting:
                said = "the search on this board found nothing faster than the plan's own setting."
            elif {"decision", "cache_mib"} & set(plan["overridden"]) and plan["decision"] != setting["decision"]:
                said = f"ignored: it is for {setting['decision']}, and an override wants {plan['decision']}."
            else:
                path = {"decision": setting["decision"]} if plan["decision"] != setting["decision"] else {}
                rules = planned(path)
                news = {key: value for key, value in setting.items() if value != rules.get(key, "auto")}
                most = largest_cache_mib(rules, int(gguf["experts_total_bytes"]))
                if news.get("cache_mib", 0) > most:
                    raise PlanError(f"its cache of {news['cache_mib']} MiB is too large here, where {most} MiB fit")
                plan = planned({**news, **path}, why)
                said = f"{why}."
        except PlanError as error:
            said = f"ignored: {error}."
    if said:
        plan["reasons"]["tuned"] = said
    estimate = plan["estimate"]
    estimate["without_overrides"] = None
    if plan["overridden"]:
        try:
            own = make_plan(gguf, jetson, devfreq, {}, measurements, tuned, model_sha256, release_kind)
        except PlanError:
            return plan
        estimate["without_overrides"] = own["estimate"]["tokens_per_s"]
        estimate["sentence"] += f" Without the overrides it would be {estimate['without_overrides']:.1f}."
    return plan
