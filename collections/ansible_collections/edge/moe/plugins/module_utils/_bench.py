# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A benchmark of variants on one board: an ordered list of steps, and a file that a cut run goes on from.

Private to this collection: it may change in any release.

Each step starts its server anew, so that all are equally cold. A step is either whole in the file or not there; one
that failed is there with its error, and the others are still measured.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ansible_collections.edge.moe.plugins.module_utils import _measure, _run_file
from ansible_collections.edge.moe.plugins.module_utils._host import read_bounded
from ansible_collections.edge.moe.plugins.module_utils._variants import (
    Base,
    Stage,
    StageError,
    Variant,
    VariantError,
    with_room,
)

STARTED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
ORDERS = ("interleaved", "blocks")
TEXT_LIMIT = 64 * 1024 * 1024
# Text that is made from tokens may give a few more when it is read again.
SLACK_TOKENS = 64
# What the number of a step is called, by the list in which its entry stands.
KINDS: dict[str, str | None] = {"legs": "round", "load": "at_once", "depth": "depth", "perplexity": None}


@dataclass(frozen=True)
class Perplexity:
    """`file` is a text on the board, `context` the tokens of a chunk, of which at most `chunks` are taken."""

    file: str
    chunks: int
    context: int

    def text_sha256(self) -> str:
        """Raises StageError where there is no such text."""
        text = read_bounded(self.file, TEXT_LIMIT)
        if not text:
            raise StageError(f"perplexity.file is {self.file!r}; it must be a text file on the board")
        return hashlib.sha256(text).hexdigest()


@dataclass(frozen=True)
class Work:
    """All that is to be measured. `reference` is the name of the variant that the others are compared with.

    `labels` are what else the file says: a run on a board that is another by then does not go on.
    """

    variants: tuple[Variant, ...]
    reference: str
    prompts: tuple[dict[str, Any], ...]
    n_predict: int
    rounds: int
    order: str = "interleaved"
    load: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    perplexity: Perplexity | None = None
    labels: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raises VariantError for what no benchmark can be made of."""
        names = [variant.name for variant in self.variants]
        if not names or len(set(names)) < len(names):
            raise VariantError(f"variants are {', '.join(names) or 'none'}; at least one is needed, each with its name")
        if self.reference not in names:
            raise VariantError(f"reference is {self.reference!r}; it must be one of the variants {', '.join(names)}")
        ids = [str(prompt["id"]) for prompt in self.prompts]
        if not ids or len(set(ids)) < len(ids):
            raise VariantError(f"prompts are {', '.join(ids) or 'none'}; at least one is needed, each with its id")
        if self.order not in ORDERS:
            raise VariantError(f"order is {self.order!r}; it must be one of {', '.join(ORDERS)}")
        for name, numbers, most in (("load", self.load, 256), ("depths", self.depths, 1 << 24)):
            if len(set(numbers)) < len(numbers) or not all(1 <= number <= most for number in numbers):
                raise VariantError(f"{name} is {list(numbers)}; it must be different numbers from 1 to {most}")


class Step(NamedTuple):
    """`number` is the round, the requests at once or the depth; None for a perplexity."""

    kind: str
    variant: str
    number: int | None

    def __str__(self) -> str:
        what = KINDS[self.kind]
        return f"{self.variant}, " + (f"{what.replace('_', ' ')} {self.number}" if what else self.kind)


def steps(work: Work) -> list[Step]:
    """In the order in which they are measured.

    Interleaved, every second round goes backwards: what drifts slowly, such as heat, falls on all variants alike.
    """
    names = [variant.name for variant in work.variants]
    if work.order == "blocks":
        legs = [Step("legs", name, number) for name in names for number in range(1, work.rounds + 1)]
    else:
        legs = [
            Step("legs", name, number)
            for number in range(1, work.rounds + 1)
            for name in (names if number % 2 else reversed(names))
        ]
    return [
        *legs,
        *(Step("load", name, number) for number in work.load for name in names),
        *(Step("depth", name, number) for number in work.depths for name in names),
        *(Step("perplexity", name, None) for name in names if work.perplexity),
    ]


# The state


def key_of(work: Work, base: Base, model_sha256: str) -> str:
    """The same for the same inputs, in whatever order the prompts are given."""
    inputs = asdict(work) | {
        "prompts": sorted(work.prompts, key=lambda prompt: str(prompt["id"])),
        "perplexity": work.perplexity and [asdict(work.perplexity), work.perplexity.text_sha256()],
    }
    return _run_file.key_of(inputs, base, model_sha256)


def new_state(work: Work, key: str) -> dict[str, Any]:
    return {
        **_run_file.new_state("bench", key, work.labels, "started"),
        "variants": [variant.as_dict() for variant in work.variants],
        "reference": work.reference,
        **{kind: [] for kind in KINDS},
    }


def _done(state: dict[str, Any]) -> Iterator[Step]:
    """The steps that a state holds. Raises ValueError, KeyError or TypeError where it is no state."""
    for kind, number in KINDS.items():
        for entry in state[kind]:
            if not isinstance(entry.get("error", ""), str) or not (
                "error" in entry or isinstance(entry["value" if kind == "perplexity" else "measurement"], (dict, float))
            ):
                raise ValueError(kind)
            yield Step(kind, entry["variant"], entry[number] if number else None)


def read_state(path: str, work: Work, key: str) -> tuple[dict[str, Any] | None, str]:
    """The state to go on from, or None and why there is none: empty where there is no file at all."""

    def restore(found: dict[str, Any]) -> dict[str, Any]:
        done = list(_done(found))
        if len(set(done)) < len(done) or not set(done) <= set(steps(work)):
            raise ValueError("steps")
        if not STARTED.fullmatch(found["started"]):
            raise ValueError("started")
        return new_state(work, key) | {name: found[name] for name in ("started", *KINDS)}

    return _run_file.read(path, "bench", key, restore)


def steps_left(work: Work, state: dict[str, Any]) -> list[Step]:
    done = set(_done(state))
    return [step for step in steps(work) if step not in done]


# The run


def measure(session: _measure.Session, work: Work, prompts: list[dict[str, Any]], at_once: int = 1) -> dict[str, Any]:
    """One measurement; with several requests at once at least two of each stream."""
    more: dict[str, Any] = {"at_once": at_once} if at_once > 1 else {}
    rounds = max(1, -(-2 * at_once // len(prompts))) if at_once > 1 else 1
    # The server is ready already.
    return session.run(prompts, work.n_predict, rounds, 30.0, **more)


def deep_prompt(client: _measure.Client, text: str, depth: int) -> dict[str, Any]:
    """A prompt of about `depth` tokens: the text over and over. How many it had stands in the request as n_prompt."""

    def ask(path: str, body: dict[str, Any], wanted: str) -> Any:
        try:
            _status, content = client.call("POST", path, body, 60.0)
            return json.loads(content)[wanted]
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise _measure.MeasureError(f"{client.url}{path} gives no {wanted} ({type(error).__name__})") from None

    tokens = ask("/tokenize", {"content": text}, "tokens")
    if not isinstance(tokens, list) or not tokens:
        raise _measure.MeasureError(f"{client.url}/tokenize makes no tokens of the prompts")
    padded = (tokens * -(-depth // len(tokens)))[:depth]
    return {"id": f"depth-{depth}", "lang": None, "text": str(ask("/detokenize", {"tokens": padded}, "content"))}


@dataclass
class Bench:
    """The run. `session` makes a measurement of what is served, with what to call after each request.

    `save` gets the state after each step, `say` a line about the progress.
    """

    work: Work
    stage: Stage
    session: Callable[[Callable[[dict[str, Any]], None]], _measure.Session]
    save: Callable[[dict[str, Any]], None]
    say: Callable[[str], None]
    ready_s: float
    perplexity_limit_s: float

    def run(self, state: dict[str, Any]) -> int:
        """Measure what the state lacks, until it is complete, and return how many steps that were.

        Raises StageLost when the board cannot be had or was taken away; what was measured is saved by then.
        """
        left = steps_left(self.work, state)
        total = len(steps(self.work))
        if not left:
            state["complete"] = True
            self.save(state)
            return 0
        with self.stage:
            for index, step in enumerate(left, total - len(left) + 1):
                where = f"step {index} of {total}, {step}"
                self.say(f"{where}: starting its server")
                entry: dict[str, Any] = {"variant": step.variant}
                number = KINDS[step.kind]
                if number:
                    entry[number] = step.number
                try:
                    entry.update(self._measured(step, where))
                except (StageError, _measure.MeasureError) as error:
                    self.stage.check()
                    entry["error"] = str(error)
                state[step.kind].append(entry)
                state["complete"] = step is left[-1]
                self.save(state)
        return len(left)

    def _measured(self, step: Step, where: str) -> dict[str, Any]:
        variant = next(variant for variant in self.work.variants if variant.name == step.variant)
        number = step.number or 1
        if step.kind == "perplexity" and self.work.perplexity:
            asked = self.work.perplexity
            value, margin = self.stage.perplexity(
                variant, asked.file, asked.chunks, asked.context, self.perplexity_limit_s
            )
            return {"value": value, "error_margin": margin}
        prompts = list(self.work.prompts)
        slots = number if step.kind == "load" else 1
        if step.kind != "legs":
            tokens = number + self.work.n_predict + SLACK_TOKENS if step.kind == "depth" else 0
            variant = with_room(variant, slots, tokens)
        self.stage.serve(variant, self.ready_s)
        if step.kind == "depth":
            prompts = [deep_prompt(self.stage.client, "\n".join(str(prompt["text"]) for prompt in prompts), number)]

        def progress(result: dict[str, Any]) -> None:
            self.say(f"{where}: {len(result['requests'])} requests answered")

        measurement = measure(self.session(progress), self.work, prompts, slots)
        if step.kind == "legs":
            # A leg is one round of the run; its measurement counts from one by itself.
            for request in measurement["requests"]:
                request["round"] = number
            return {"measurement": measurement}
        return {"args": list(variant.args), "measurement": measurement}
