# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the measurements of one run say, and what changed between two runs. Pure functions of the result files.

Private to this collection: it may change in any release.

A record is a run file (`legs`, `load`, `depth`, `perplexity` of several variants) or a result of the verify role, which
counts as a run of two variants. Records come from files that a cut run may have left and anybody may have edited: a
value that is none is as good as missing, and what is missing makes a figure None, never an error.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.edge.moe.plugins.module_utils import _verdict

MIB = 1024 * 1024
METHOD = (
    "geometric mean of the ratios of the same prompt and round, with the 95 % interval of Student's t on their "
    "logarithms, one value for each prompt (for each round where there is one prompt)"
)
# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond, 1.96 + 2.4 / n is right to 0.003.
STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
# A line needs points that lie apart: by this much of their mean, and by a MiB.
LEAST_POINTS, LEAST_SPREAD = 3, 0.05
# Above these a reader should know before believing a figure.
UNSTEADY_CV = 0.15
LOOSE_FIT_R2 = 0.5
FEW_PROMPTS = 3
NEAR_HOT_CELSIUS = 5.0
LONG_PROMPT_SHARE = 0.25
# Variants share a line if each lies this close to it: a clock or an overlap of its own moves a variant off it.
LINE_TOLERANCE = 0.05
MOST_DIFFERENCES = 3
LEAST_SPEED = 1e-6
# Settings of a plan that make one run differ from another.
PLAN_SETTINGS = (
    "decision", "cache_mib", "threads", "context", "parallel", "io_depth", "read_kib", "read_ahead_kb", "floor",
    "n_gpu_layers", "lookahead", "server_args", "environment",
)  # fmt: skip
VARIANT_SETTINGS = ("args", "environment", "floor", "read_ahead_kb")
RUN_SETTINGS = ("host", "board", "l4t", "power_mode", "release", "model", "model_sha256")

Key = tuple[str, int, int]  # prompt, round of the leg, round inside its measurement


class _Answer(NamedTuple):
    key: Key
    request: dict[str, Any]


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def entries(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def strings(value: Any) -> list[str]:
    """The texts of a list, each cut to a line's length."""
    return [entry[:300] for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def figure(value: Any) -> float | None:
    """A finite number that is not negative and that a board can have reached; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e16:
        return None
    return float(value)


def _whole(value: Any, otherwise: int = 0) -> int:
    number = figure(value)
    return otherwise if number is None else int(number)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _total(values: Iterable[Any]) -> float | None:
    known = _known(figure(value) for value in values)
    return sum(known) if known else None


def _highest(values: Iterable[Any]) -> float | None:
    return max(_known(figure(value) for value in values), default=None)


def _quotient(part: float | None, whole: float | None) -> float | None:
    if part is None or not whole:
        return None
    value = part / whole
    return value if math.isfinite(value) else None


def spread(values: Sequence[float]) -> dict[str, Any] | None:
    """Mean, median, coefficient of variation (None for one value) and how many there are."""
    if not values:
        return None
    mean = statistics.fmean(values)
    cv = statistics.stdev(values) / mean if len(values) > 1 and mean else None
    return {"mean": mean, "median": statistics.median(values), "cv": cv, "n": len(values)}


def paired_ratio(base: Mapping[Key, float], other: Mapping[Key, float]) -> dict[str, Any] | None:
    """`other` over `base` by METHOD: value, low, high (None for a single pair) and the number of pairs."""
    by_prompt: dict[str, list[float]] = {}
    for key in sorted(base.keys() & other.keys()):
        by_prompt.setdefault(key[0], []).append(math.log(other[key] / base[key]))
    if not by_prompt:
        return None
    # Rounds of one prompt route alike, so they are no independent witnesses.
    logs = [statistics.fmean(values) for values in by_prompt.values()]
    if len(by_prompt) == 1:
        logs = next(iter(by_prompt.values()))
    middle = statistics.fmean(logs)
    ratio: dict[str, Any] = {"value": math.exp(middle), "low": None, "high": None}
    if len(logs) > 1:
        freedom = len(logs) - 1
        quantile = STUDENT_T[freedom - 1] if freedom <= len(STUDENT_T) else 1.96 + 2.4 / freedom
        half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
        ratio.update(low=math.exp(middle - half), high=math.exp(middle + half))
    return {**ratio, "pairs": sum(map(len, by_prompt.values())), "prompts": len(by_prompt)}


def fit_line(points: Sequence[tuple[float, float]]) -> dict[str, Any] | None:
    """Least squares through (MiB a token, ms a token); None where the points do not lie apart.

    `ceiling_tokens_per_s` is what would be left if nothing were read; None if the line says that this took no time, or
    falls: it was measured while something else changed.
    """
    if len(points) < LEAST_POINTS:
        return None
    reads, times = [point[0] for point in points], [point[1] for point in points]
    mean_read, mean_time = statistics.fmean(reads), statistics.fmean(times)
    if max(reads) - min(reads) <= max(1.0, LEAST_SPREAD * mean_read):
        return None
    slope = sum((read - mean_read) * (time - mean_time) for read, time in points) / sum(
        (read - mean_read) ** 2 for read in reads
    )
    fixed = mean_time - slope * mean_read
    around = sum((time - mean_time) ** 2 for time in times)
    left = sum((fixed + slope * read - time) ** 2 for read, time in points)
    return {
        "fixed_ms": fixed,
        "ms_per_mib": slope,
        "ceiling_tokens_per_s": 1000 / fixed if fixed > 0 and slope >= 0 else None,
        "points": len(points),
        "r2": 1 - left / around if around else None,
    }


def shared_line(groups: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Any] | None:
    """The line through the points of all variants; None where one of them lies apart from it."""
    line = fit_line([point for group in groups for point in group])
    if line is None:
        return None
    for group in filter(None, groups):
        read, time = (statistics.fmean(point[axis] for point in group) for axis in (0, 1))
        if abs(line["fixed_ms"] + line["ms_per_mib"] * read - time) > LINE_TOLERANCE * time:
            return None
    return line


def as_run(record: Any) -> dict[str, Any]:
    """A run file as it is; a result of the verify role as a run of its reference and of what was served."""
    record = mapping(record)
    if "legs" in record or not ("reference" in record and "served" in record):
        return record
    reference, served = mapping(record["reference"]), mapping(record["served"])
    sides = {"reference": reference, "served": served}
    return {
        **{key: record.get(key) for key in RUN_SETTINGS},
        "kind": "verify",
        "started": served.get("started"),
        "complete": all(side.get("complete") is True for side in sides.values()),
        "variants": [{"name": "reference", "title": "stock mmap"}, {"name": "served", "title": "as served"}],
        "reference": "reference",
        "legs": [{"variant": name, "round": 1, "measurement": side} for name, side in sides.items()],
    }


def started(record: Any) -> str:
    """When a record was measured, ISO 8601 in UTC; empty if it does not say."""
    text = as_run(record).get("started")
    return text[:32] if isinstance(text, str) else ""


class _Variant:
    """What one variant was measured with, from all its legs."""

    def __init__(self, name: str, says: dict[str, Any], legs: list[dict[str, Any]]) -> None:
        self.name = name
        self.says = says
        self.errors = [str(leg["error"])[:300] for leg in legs if leg.get("error")]
        self.measurements = [mapping(leg["measurement"]) for leg in legs if isinstance(leg.get("measurement"), dict)]
        answers: dict[Key, dict[str, Any]] = {}
        for leg in legs:
            for request in entries(mapping(leg.get("measurement")).get("requests")):
                key = (str(request.get("id")), _whole(leg.get("round"), 1), _whole(request.get("round"), 1))
                answers[key] = request
        self.answers = [_Answer(key, answers[key]) for key in sorted(answers)]

    def speeds(self, field: str = "decode_tokens_per_s") -> dict[Key, float]:
        found = {answer.key: figure(answer.request.get(field)) for answer in self.answers}
        # ratios and logarithms stay finite
        return {key: value for key, value in found.items() if value and value > LEAST_SPEED}

    def points(self) -> list[tuple[float, float]]:
        found = []
        for _key, request in self.answers:
            speed = figure(request.get("decode_tokens_per_s"))
            read = _quotient(figure(request.get("nvme_bytes")), _whole(request.get("n_decoded")))
            if speed and speed > LEAST_SPEED and read is not None:
                found.append((read / MIB, 1000 / speed))
        return found

    def part(self, name: str) -> list[dict[str, Any]]:
        return [mapping(measurement.get(name)) for measurement in self.measurements if measurement.get(name)]

    def texts(self) -> dict[str, Any]:
        """The measurement as the verdict compares it: each round apart, and nothing that is no text or token."""
        return {
            "requests": [
                {
                    "id": key[0],
                    "round": key[2] if key[1] == 1 else f"{key[1]}.{key[2]}",
                    "text": str(request.get("text", "")),
                    "tokens": request["tokens"] if isinstance(request.get("tokens"), list) else [],
                    "text_sha256": request.get("text_sha256"),
                    "n_decoded": _whole(request.get("n_decoded")),
                }
                for key, request in self.answers
            ]
        }

    def clocks(self) -> dict[str, Any] | None:
        """Share of the samples at each clock (None where only the highest was counted), over all legs."""
        parts = [part for part in self.part("gpu") if _whole(part.get("samples"))]
        total = sum(_whole(part.get("samples")) for part in parts)
        if not total:
            return None
        shares: dict[int, float] = {}
        for part in parts:
            weight = _whole(part.get("samples")) / total
            for hz, share in mapping(part.get("shares")).items():
                known = figure(share)
                if str(hz).isdecimal() and len(str(hz)) < 15 and known is not None and known <= 1:
                    shares[int(hz)] = shares.get(int(hz), 0.0) + known * weight
        at_max = [(figure(part.get("share_at_max")), _whole(part.get("samples"))) for part in parts]
        load = _known(figure(mapping(part.get("load")).get("mean")) for part in parts)
        return {
            "shares": dict(sorted(shares.items())) or None,
            "share_at_max": sum(share * samples for share, samples in at_max if share is not None) / total
            if any(share is not None for share, _samples in at_max)
            else None,
            "highest_hz": _highest(part.get("highest_hz") for part in parts),
            "samples": total,
            "load": statistics.fmean(load) if load else None,
        }

    def power(self) -> dict[str, Any] | None:
        parts = [(figure(part.get("mean_w")), part) for part in self.part("power")]
        watts = [(mean, max(1, _whole(part.get("samples"), 1))) for mean, part in parts if mean]
        if not watts:
            return None
        decoded = _total(request.get("n_decoded") for _key, request in self.answers)
        return {
            "mean_w": sum(mean * samples for mean, samples in watts) / sum(samples for _mean, samples in watts),
            "max_w": _highest(part.get("max_w") for _mean, part in parts),
            # With prompts; known for all legs or not at all.
            "joules_per_token_with_prompts": _quotient(_total(part.get("joules") for _mean, part in parts), decoded)
            if len(watts) == len(self.measurements)
            else None,
        }

    def hit_share(self) -> float | None:
        hits = _total(mapping(part.get("hits")).get("decode") for part in self.part("cache"))
        misses = _total(mapping(part.get("misses")).get("decode") for part in self.part("cache"))
        return None if hits is None or misses is None else _quotient(hits, hits + misses)


def _variants(run: dict[str, Any]) -> dict[str, _Variant]:
    said = {str(entry["name"]): entry for entry in entries(run.get("variants")) if entry.get("name") is not None}
    legs: dict[str, list[dict[str, Any]]] = {name: [] for name in said}
    for leg in entries(run.get("legs")):
        legs.setdefault(str(leg.get("variant")), []).append(leg)
    return {name: _Variant(name, said.get(name, {}), own) for name, own in legs.items()}


def _watched(variant: _Variant) -> dict[str, Any]:
    """What else happened to the board while this variant ran."""
    events: dict[str, float] = {}
    cooling: dict[str, float] = {}
    for part in variant.part("throttle"):
        for name, count in mapping(part.get("events")).items():
            if figure(count):
                events[str(name)] = events.get(str(name), 0.0) + float(count)
        for name, state in mapping(part.get("cooling")).items():
            if figure(state):
                cooling[str(name)] = max(cooling.get(str(name), 0.0), float(state))
    heat, memory, cpu = variant.part("heat"), variant.part("memory"), variant.part("cpu")
    return {
        "max_celsius": _highest(part.get("max_celsius") for part in heat),
        "hot_celsius": min(_known(figure(part.get("hot_celsius")) for part in heat), default=None),
        "events": dict(sorted(events.items())),
        "cooling": dict(sorted(cooling.items())),
        "oom_kills": _total(part.get("oom_kills") for part in memory),
        "swap_bytes": _highest(part.get("swap_bytes") for part in memory),
        "peak_bytes": _highest(part.get("peak_bytes") for part in memory),
        "cpu_lowered_share": _highest(part.get("lowest_allowed_share") for part in cpu),
    }


def _describe(variant: _Variant, reference: _Variant | None) -> dict[str, Any]:
    decode = spread(list(variant.speeds().values()))
    power = variant.power()
    ratio = paired_ratio(reference.speeds(), variant.speeds()) if reference else None
    if variant is reference and ratio:
        ratio.update(low=1.0, high=1.0)
    reads = [(figure(request.get("nvme_bytes")), figure(request.get("n_decoded"))) for _key, request in variant.answers]
    read = [(amount, tokens) for amount, tokens in reads if amount is not None and tokens]
    return {
        "name": variant.name,
        "title": str(variant.says.get("title") or variant.name)[:120],
        "legs": len(variant.measurements),
        "errors": variant.errors,
        "decode": decode,
        "prefill": spread(list(variant.speeds("prefill_tokens_per_s").values())),
        "prefill_ms": spread(list(variant.speeds("prefill_ms").values())),
        "ttft": spread(list(variant.speeds("ttft_ms").values())),
        "ratio": ratio,
        "nvme_mib_per_token": _quotient(sum(part[0] for part in read) / MIB, sum(part[1] for part in read)),
        "power": power,
        "joules_per_token": _quotient(power["mean_w"], decode["mean"]) if power and decode else None,
        "clocks": variant.clocks(),
        "hit_share": variant.hit_share(),
        "points": variant.points(),
        "line": fit_line(variant.points()),
        "watched": _watched(variant),
        "settings": {key: said(variant.says[key]) for key in VARIANT_SETTINGS if variant.says.get(key) is not None},
    }


def _load(run: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for entry in entries(run.get("load")):
        measured = mapping(entry.get("measurement"))
        requests = entries(measured.get("requests"))
        rows.append(
            {
                "variant": str(entry.get("variant")),
                "at_once": _whole(entry.get("at_once"), 1),
                "error": str(entry["error"])[:300] if entry.get("error") else None,
                "throughput_tokens_per_s": _quotient(
                    figure(measured.get("total_decoded")), figure(measured.get("wall_s"))
                ),
                "latency_ms": spread(_known(figure(request.get("latency_ms")) for request in requests)),
                "ttft_ms": spread(_known(figure(request.get("ttft_ms")) for request in requests)),
            }
        )
    return sorted(rows, key=lambda row: (row["variant"], row["at_once"]))


def _depth(run: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for entry in entries(run.get("depth")):
        requests = entries(mapping(entry.get("measurement")).get("requests"))
        rows.append(
            {
                "variant": str(entry.get("variant")),
                "depth": _whole(entry.get("depth")),
                "error": str(entry["error"])[:300] if entry.get("error") else None,
                "decode": spread(_known(figure(request.get("decode_tokens_per_s")) or None for request in requests)),
                "prefill_ms": spread(_known(figure(request.get("prefill_ms")) for request in requests)),
            }
        )
    return sorted(rows, key=lambda row: (row["variant"], row["depth"]))


def _perplexity(run: dict[str, Any], reference: str | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "variant": str(entry.get("variant")),
            "value": figure(entry.get("value")),
            "error_margin": figure(entry.get("error_margin")),
            "error": str(entry["error"])[:300] if entry.get("error") else None,
        }
        for entry in entries(run.get("perplexity"))
    ]
    base = next((row["value"] for row in rows if row["variant"] == reference), None)
    for row in rows:
        against = _quotient(row["value"], base)
        row["change"] = None if against is None else against - 1
    return rows


def _texts(variants: dict[str, _Variant], reference: _Variant | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for variant in variants.values():
        if variant is reference or reference is None or not reference.answers or not variant.answers:
            continue
        compared, differences = _verdict.compare_texts(reference.texts(), variant.texts())
        rows.append(
            {
                "variant": variant.name,
                "compared": compared,
                "equal": not differences,
                "different": len(differences),
                "differences": differences[:MOST_DIFFERENCES],
            }
        )
    return rows


def _warnings(run: dict[str, Any], variants: dict[str, _Variant], described: list[dict[str, Any]]) -> list[str]:
    """What a reader should know before believing the figures, each once."""
    lines = []
    if run.get("complete") is not True:
        lines.append("The run was cut or is still going on: figures are of what had been measured.")
    for row in described:
        name, watched = row["name"], row["watched"]
        lines += [f"{name}: a leg failed: {error}" for error in row["errors"]]
        if watched["events"] or watched["cooling"]:
            parts = [f"{kind} {count:.0f}" for kind, count in {**watched["events"], **watched["cooling"]}.items()]
            lines.append(f"{name}: the board throttled ({', '.join(parts)}): slower than it is when cool.")
        hot, limit = watched["max_celsius"], watched["hot_celsius"]
        if hot is not None and limit is not None and hot > limit - NEAR_HOT_CELSIUS:
            lines.append(f"{name}: it got {hot:.0f} °C hot, and {limit:.0f} °C is the limit.")
        if watched["oom_kills"]:
            lines.append(f"{name}: the kernel killed for memory {watched['oom_kills']:.0f} times.")
        if watched["swap_bytes"]:
            lines.append(f"{name}: {watched['swap_bytes'] / MIB:.0f} MiB of the server were in swap.")
        if (watched["cpu_lowered_share"] or 0) > 0:
            lines.append(f"{name}: CPU clocks were held down in {watched['cpu_lowered_share']:.0%} of the samples.")
        said = [line for measurement in variants[name].measurements for line in strings(measurement.get("warnings"))]
        lines += [f"{name}: {line}" for line in said]
    unsteady = [row for row in described if row["decode"] and (row["decode"]["cv"] or 0) > UNSTEADY_CV]
    if unsteady:
        parts = [f"{row['name']} by {row['decode']['cv']:.0%}" for row in unsteady]
        lines.append(f"Decode varies between requests: {', '.join(parts)}.")
    prompts = min((row["ratio"]["prompts"] for row in described if row["ratio"]), default=FEW_PROMPTS)
    if prompts < FEW_PROMPTS:
        lines.append(f"Ratios rest on {prompts} prompt{'s' if prompts > 1 else ''}: they say little of others.")
    requests = [answer.request for variant in variants.values() for answer in variant.answers]
    prompt, decoded = (sum(_whole(request.get(field)) for request in requests) for field in ("n_prompt", "n_decoded"))
    if decoded and prompt > LONG_PROMPT_SHARE * decoded:
        lines.append(
            f"Requests had {prompt / len(requests):.0f} tokens of prompt for {decoded / len(requests):.0f} decoded "
            "ones: MiB a token hold much that was read for prompts."
        )
    return list(dict.fromkeys(lines))


def analyse(record: Any) -> dict[str, Any]:
    """Every figure of one run.

    `variants`: decode and prefill (tokens/s), prefill_ms and ttft (ms) as {mean, median, cv, n}; `ratio` to the
    reference as {value, low, high, pairs, prompts}; joules_per_token is mean power over decode speed, so it is that of
    decoding alone. `line` is fitted through (MiB a token, ms a token) of all requests, where the bytes are those of the
    whole request, prompt included; it is None where variants lie on lines of their own, which each of them has too.
    None stands wherever nothing was measured.
    """
    run = as_run(record)
    variants = _variants(run)
    name = run.get("reference")
    reference = variants.get(name) if isinstance(name, str) else None
    described = [_describe(variant, reference) for variant in variants.values()]
    line = shared_line([row["points"] for row in described])
    warnings = _warnings(run, variants, described)
    if line and line["r2"] is not None and line["r2"] < LOOSE_FIT_R2:
        warnings.append(f"Bytes read explain {max(0.0, line['r2']):.0%} of the decode time: the line says little.")
    return {
        "kind": str(run.get("kind") or ""),
        "started": started(run),
        "reference": reference.name if reference else None,
        "method": METHOD,
        "variants": described,
        "line": line,
        "load": _load(run),
        "depth": _depth(run),
        "perplexity": _perplexity(run, reference.name if reference else None),
        "texts": _texts(variants, reference),
        "warnings": warnings,
    }


# Two records


def said(value: Any) -> str | None:
    """A setting as text: a list as words, a dict as NAME=VALUE words; None if there is none."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{key}={entry}" for key, entry in sorted(value.items()))
    return str(value)


def settings(record: Any) -> dict[str, str]:
    """Whatever makes one run another one, by a name to show."""
    record = mapping(record)
    found: dict[str, Any] = {key: record.get(key) for key in RUN_SETTINGS}
    mode = record.get("power_mode")
    found["power_mode"] = mode.get("name") if isinstance(mode, dict) else mode
    plan = mapping(record.get("plan"))
    found.update({f"plan: {key}": plan.get(key) for key in PLAN_SETTINGS})
    for variant in entries(record.get("variants")):
        for key in VARIANT_SETTINGS:
            found[f"{variant.get('name')}: {key}"] = variant.get(key)
    shown = {key: said(value) for key, value in found.items()}
    return {key: value for key, value in shown.items() if value is not None}


def verdict_of(record: Any) -> str | None:
    """`passed`, or the classes of failures; None for a record without a verdict."""
    verdict = mapping(mapping(record).get("verdict"))
    if not verdict:
        return None
    classes = [str(failure.get("class")) for failure in entries(verdict.get("failures"))]
    return "passed" if verdict.get("passed") is True else ", ".join(dict.fromkeys(classes)) or "failed"


def _compare_variant(old: _Variant, new: _Variant) -> dict[str, Any]:
    means = [spread(list(side.speeds().values())) for side in (old, new)]
    same = bool(old.measurements) and old.measurements == new.measurements
    return {
        "variant": new.name,
        "old": means[0] and means[0]["mean"],
        "new": means[1] and means[1]["mean"],
        "ratio": paired_ratio(old.speeds(), new.speeds()),
        # verify keeps a reference as long as nothing that it depends on changes
        "same_measurement": same,
    }


def _earlier_and_later(difference: str) -> str:
    """A line of compare_texts, whose sides are the reference and what is served, for two runs."""
    called = {"reference": "earlier", "served": "later"}
    line = difference.removesuffix(" (the reference itself does not repeat)")
    return re.sub(
        r": reference round (\S+) against (reference|served) round",
        lambda match: f": earlier round {match[1]} against {called[match[2]]} round",
        line,
        count=1,
    )


def _compare_texts(old: _Variant, new: _Variant) -> dict[str, Any]:
    sides = [old.texts()["requests"], new.texts()["requests"]]
    shared = {request["id"] for request in sides[0]} & {request["id"] for request in sides[1]}
    compared, differences = _verdict.compare_texts(
        *({"requests": [request for request in side if request["id"] in shared]} for side in sides)
    )
    return {
        "variant": new.name,
        "compared": compared,
        "equal": not differences if compared else None,
        "differences": [_earlier_and_later(line) for line in differences[:MOST_DIFFERENCES]],
    }


def compare(old: Any, new: Any) -> dict[str, Any]:
    """What changed from one record to another: settings, speeds with their ratio, texts, verdict.

    Variants are matched by name. Texts are compared where model and number of tokens are the same; elsewhere
    `texts` is empty and `texts_apart` says why.
    """
    before, after = settings(old), settings(new)
    changed = [
        {"what": key, "old": before.get(key), "new": after.get(key)}
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]
    sides = _variants(as_run(old)), _variants(as_run(new))
    shared = [name for name in sides[0] if name in sides[1]]
    lengths = [
        {_whole(request.get("n_decoded")) for name in shared for _key, request in side[name].answers} for side in sides
    ]
    apart = None
    if before.get("model_sha256") != after.get("model_sha256"):
        apart = "they are of different models"
    elif lengths[0] != lengths[1]:
        apart = "they are of different lengths"
    verdicts = [verdict_of(old), verdict_of(new)]
    return {
        "old": {"host": before.get("host"), "started": started(old), "verdict": verdicts[0]},
        "new": {"host": after.get("host"), "started": started(new), "verdict": verdicts[1]},
        "changed": changed,
        "speeds": [_compare_variant(sides[0][name], sides[1][name]) for name in shared],
        "only_old": [name for name in sides[0] if name not in sides[1]],
        "only_new": [name for name in sides[1] if name not in sides[0]],
        "texts": [] if apart else [_compare_texts(sides[0][name], sides[1][name]) for name in shared],
        "texts_apart": apart,
    }


def history(results: Iterable[Any]) -> list[dict[str, Any]]:
    """Decode speed of each result of the verify role over time, oldest first; what has no date is left out."""
    rows = [
        {
            "started": started(result),
            "served": figure(mapping(mapping(result).get("served")).get("decode_tokens_per_s")),
            "reference": figure(mapping(mapping(result).get("reference")).get("decode_tokens_per_s")),
            "verdict": verdict_of(result),
            "release": said(mapping(result).get("release")),
            "model": said(mapping(result).get("model")),
        }
        for result in results
    ]
    return sorted((row for row in rows if row["started"]), key=lambda row: str(row["started"]))
