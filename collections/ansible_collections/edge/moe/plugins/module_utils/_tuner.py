# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The search of `_tune` on a board: each trial is served on the stage and measured, and a cut run goes on from a file.

Private to this collection: it may change in any release.

A trial is what the plan would serve with that setting, so what wins is what the plan will serve.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.edge.moe.plugins.module_utils import _measure, _plan, _run_file, _tune, _verdict
from ansible_collections.edge.moe.plugins.module_utils._variants import Base, Stage, StageError, Variant

# Of a request, what another's text is compared with.
TEXT_KEYS = ("id", "round", "text", "text_sha256", "tokens", "n_decoded")


@dataclass(frozen=True)
class Work:
    """What is searched for which board. `arguments` and `environment` are the user's own, behind the plan's.

    `start` is an earlier result's setting, empty if there is none. `labels` are what else the result shall say.
    """

    gguf: dict[str, Any]
    jetson: dict[str, Any]
    devfreq: dict[str, Any]
    overrides: dict[str, Any]
    arguments: tuple[str, ...]
    environment: dict[str, str]
    start: dict[str, Any]
    prompts: tuple[dict[str, Any], ...]
    n_predict: int
    budget_s: float
    labels: dict[str, Any] = field(default_factory=dict)

    def space(self, block_device: str | None) -> _tune.Space:
        """Raises TuneError and PlanError. Without a drive that is known its read-ahead is not searched."""
        held = _tune.held_values(self.overrides, self.environment, self.arguments)
        if not block_device:
            held.add("read_ahead_kb")
        return _tune.space_of(self.gguf, self.jetson, self.devfreq, self.overrides, self.start, held)

    def variant(self, setting: _tune.Setting, block_device: str | None) -> Variant:
        plan = _plan.make_plan(self.gguf, self.jetson, self.devfreq, {**self.overrides, **setting})
        # the mapping is the reference, which no variable of the user's may give a cache
        stock = {"EDGE_MOE_CACHE_MIB": "0"} if setting["decision"] == "mmap" else {}
        return Variant(
            "trial",
            _tune.name_of(setting),
            (*plan["server_args"], *self.arguments),
            {**plan["environment"], **self.environment, **stock},
            plan["floor"],
            plan["read_ahead_kb"] if block_device else None,
        )


def key_of(work: Work, base: Base, model_sha256: str) -> str:
    """The same for the same inputs. What of the board's facts changes by itself does not count."""
    facts = {name: work.jetson.get(name) for name in ("board", "cores", "cuda", "power_mode", "l4t")}
    inputs = asdict(work) | {
        "jetson": {**facts, "memory": (work.jetson.get("memory") or {}).get("total_bytes")},
        "devfreq": None,
        "search": _tune.FORMAT,
    }
    return _run_file.key_of(inputs, base, model_sha256)


def new_state(work: Work, key: str) -> dict[str, Any]:
    return {
        **_run_file.new_state("tune", key, work.labels, "when"),
        "budget_s": work.budget_s,
        "spent_s": 0.0,
        "reference": None,
        "trials": [],
    }


def read_state(path: str, work: Work, space: _tune.Space, key: str) -> tuple[dict[str, Any] | None, str]:
    """The state to go on from, or None and why there is none: empty where there is no file at all."""

    def restore(found: dict[str, Any]) -> dict[str, Any]:
        state = new_state(work, key) | {name: found[name] for name in ("when", "spent_s", "reference", "trials")}
        state["spent_s"], state["when"] = float(state["spent_s"]), str(state["when"])[:40]
        try:
            _tune.Search(space).replay(state["trials"])
        except _tune.TuneError as error:
            raise ValueError("trials") from error
        if state["trials"] and not isinstance(state["reference"]["requests"], list):
            raise ValueError("reference")
        return state

    return _run_file.read(path, "tune", key, restore)


def speed_of(measurement: dict[str, Any]) -> float | None:
    """Decoded tokens a second over all requests of a measurement."""
    requests = measurement.get("requests") or []
    tokens = sum(int(request.get("n_decoded") or 0) for request in requests)
    times = [request.get("decode_ms") for request in requests]
    if not tokens or not all(times):
        return None
    return tokens / sum(times) * 1000


@dataclass
class Tuner:
    """The run. `session` makes a measurement of what is served; `save` gets the state after each trial.

    `say` gets a line about the progress, `clock` gives seconds.
    """

    work: Work
    stage: Stage
    session: Callable[[], _measure.Session]
    save: Callable[[dict[str, Any]], None]
    say: Callable[[str], None]
    ready_s: float
    clock: Callable[[], float] = time.monotonic

    def run(self, state: dict[str, Any]) -> None:
        """Search until the time is spent or nothing is left, and leave the result in the state.

        Raises TuneError where there is nothing to compare with and StageLost when the board is gone.
        """
        space = self.work.space(self.stage.base.block_device)
        search = _tune.Search(space)
        search.replay(state["trials"])
        with self.stage:
            began, before = self.clock(), float(state["spent_s"])

            def spent() -> float:
                return before + self.clock() - began

            while (setting := search.next(self.work.budget_s - spent())) is not None:
                best = _tune.name_of(search.leader)
                self.say(
                    f"trial {len(search.trials) + 1}, {spent():.0f} of {self.work.budget_s:.0f} s: "
                    f"{_tune.name_of(setting)}" + (f" (best so far: {best})" if search.trials else "")
                )
                started = self.clock()
                speed, text_equal, evidence = self._trial(setting, search.limit_s, state)
                search.tell(setting, speed, text_equal, self.clock() - started, evidence)
                state["trials"] = [asdict(trial) for trial in search.trials]
                state["spent_s"] = spent()
                self.save(state)
        state["complete"] = True  # also one that failed: the next begins anew
        try:
            state |= search.result()
        finally:
            self.save(state)

    def _trial(self, setting: _tune.Setting, limit_s: float, state: dict[str, Any]) -> tuple[float | None, bool, str]:
        """Tokens a second, whether the texts are the reference's, and what speaks against it."""
        variant = self.work.variant(setting, self.stage.base.block_device)
        with self._limited(limit_s) as over:
            try:
                self.stage.serve(variant, min(self.ready_s, limit_s))
                measurement = self.session().run(list(self.work.prompts), self.work.n_predict, 1, 30.0)
            except (StageError, _measure.MeasureError) as error:
                self.stage.check()
                slow = f"not done after {limit_s:.0f} s, which is clearly slower than others; " if over.is_set() else ""
                return None, False, slow + str(error)
        texts = {"requests": [{key: request.get(key) for key in TEXT_KEYS} for request in measurement["requests"]]}
        if state["reference"] is None:
            state["reference"] = texts
        _compared, differences = _verdict.compare_texts(state["reference"], texts)
        return speed_of(measurement), not differences, "; ".join(differences[:2])

    @contextlib.contextmanager
    def _limited(self, limit_s: float) -> Iterator[threading.Event]:
        """Kill the server of a trial that takes too long; the request under way then ends with an error."""
        over = threading.Event()

        def end() -> None:
            over.set()
            self.stage.host.command(["systemctl", "kill", "--signal=SIGKILL", "--", self.stage.base.unit], 30.0)

        # an endless limit is that of the very first trial
        timer = threading.Timer(min(limit_s, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        timer.start()
        try:
            yield over
        finally:
            timer.cancel()
            timer.join()
