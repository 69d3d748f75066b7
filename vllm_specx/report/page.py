"""The page of a bench: what it says in one sentence, the speedups, the formula against them, their origin."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from vllm_specx.bench.document import Row
from vllm_specx.bench.ranking import mean_text, ranking
from vllm_specx.bench.report import notes, number, ratio_text
from vllm_specx.recommend import recommend
from vllm_specx.report.chart import bar, calibration, curve, trend
from vllm_specx.report.formula import Fit, fits, step_cost
from vllm_specx.report.html import Html, document, join, table, tag

_ROOM: Final = 1.15
_FEW: Final = 20
_FORMULA: Final = "S(N) = E(N) / (1 + d + a·N), E(N) = 1 + p + p² + ... + pᴺ"


def page(bench: Mapping[str, Any], name: str) -> str:
    """The page of a checked document (`read_document`) that came from the file `name`."""
    title = f"specx bench: {bench['settings']['model']}"
    parts = [tag("h1", title), *_overview(bench), *_speedups(bench), *_steps(bench)]
    parts += [*_lengths(bench), *_formula(bench), *_calibration(bench)]
    return document(title, join([*parts, *_origin(bench, name)]))


def _overview(bench: Mapping[str, Any]) -> list[Html]:
    phases = _by_phase(bench["summary"])
    parts = [tag("p", recommend(next(iter(phases.values()))).sentence, "lead")]
    for phase, rows in phases.items():
        ranked = ranking(rows)
        top = _ROOM * max([1.0, *(entry.ratio.geometric_mean for entry in ranked)])
        lines = [
            (
                entry.method,
                Html(bar(asdict(entry.ratio), entry.ratio.geometric_mean, top)),
                entry.text,
                len(entry.rows),
            )
            for entry in ranked
        ]
        parts.append(
            table(
                lines,
                ("method", "", "over plain decoding [95 %]", "cells"),
                ("text", "wide"),
                f"all cells with {phase} memory, geometric mean",
            )
        )
    said = join(tag("li", note) for note in notes(bench))
    return [*parts, tag("ul", said)]


def _speedups(bench: Mapping[str, Any]) -> list[Html]:
    top = _ROOM * max(1.0, *(row["ratio"]["median"] for row in bench["summary"]))
    parts = [
        tag("h2", "Speedup by cell"),
        tag(
            "p",
            "Median over the repeats; the tick is plain decoding, intervals are cut at the end of the scale.",
            "soft",
        ),
    ]
    for title, rows in _by_workload(bench):
        lines = [
            (
                row["concurrency"],
                row["method"],
                Html(bar(row["ratio"], row["ratio"]["median"], top)),
                ratio_text(row["ratio"]),
                number(row["tokens_per_s"], 1),
                f"{row['identical']}/{row['compared']}",
            )
            for row in rows
        ]
        head = ("requests", "method", "", "over plain [95 %]", "tokens/s", "identical")
        parts.append(table(lines, head, ("", "text", "wide"), title))
    return parts


def _steps(bench: Mapping[str, Any]) -> list[Html]:
    parts = [
        tag("h2", "Tokens per step"),
        tag(
            "p",
            "Per request and step: output tokens, draft tokens (the mean of N), accepted ones. The speedup is the "
            "tokens over what the step took, in plain decode steps.",
            "soft",
        ),
    ]
    for title, rows in _by_workload(bench):
        lines = [
            (
                row["concurrency"],
                row["method"],
                number(row["tokens_per_step"]),
                number(row["draft_tokens_per_step"]),
                number(_accepted(row)),
                number(row["acceptance"], percent=True),
                number(step_cost(row)),
            )
            for row in rows
        ]
        head = ("requests", "method", "tokens", "drafted", "accepted", "share", "step took")
        parts.append(table(lines, head, ("", "text"), title))
    return parts


def _lengths(bench: Mapping[str, Any]) -> list[Html]:
    known = [row for row in bench["summary"] if any(row["lengths_over_time"])]
    if not known:
        return []
    top = max(max(row["lengths_over_time"]) for row in known)
    said = f"Draft tokens per request from the first step of a cell to its last, first repeat; from 0 to {top:g}."
    parts = [tag("h2", "Draft lengths over time"), tag("p", said, "soft")]
    for title, rows in _by_workload(bench):
        lines = [
            (
                row["concurrency"],
                row["method"],
                Html(trend(row["lengths_over_time"], top)),
                number(row["draft_tokens_per_step"]),
            )
            for row in rows
            if any(row["lengths_over_time"])
        ]
        if lines:
            parts.append(table(lines, ("requests", "method", "", "mean"), ("", "text", "wide"), title))
    return parts


def _calibration(bench: Mapping[str, Any]) -> list[Html]:
    by_method: dict[str, list[Row]] = {}
    for row in bench["summary"]:
        if row["kept"]:
            by_method.setdefault(row["method"], []).append(row)
    if not by_method:
        return []
    said = (
        "Of the draft tokens that promised so much, the share that was accepted, over all cells and repeats; what has "
        f"fewer than {_FEW} tokens is left out."
    )
    cards = []
    for method, rows in by_method.items():
        tokens, promised, kept = np.sum([row["kept"] for row in rows], axis=0)
        shares = [(p / t, k / t, t) for t, p, k in zip(tokens, promised, kept, strict=True) if t >= _FEW]
        picture = Html(calibration([p for p, _, _ in shares], [k for _, k, _ in shares], method))
        lines = [(number(p), number(k), int(t)) for p, k, t in shares]
        values = table(lines, ("promised", "kept", "tokens"))
        cards.append(tag("section", join((tag("h3", method), picture, values))))
    return [tag("h2", "Calibration"), tag("p", said, "soft"), tag("div", join(cards), "cards")]


def _formula(bench: Mapping[str, Any]) -> list[Html]:
    found = fits(bench["summary"], bench["methods"])
    parts = [tag("h2", "The formula against the measurement"), tag("p", _FORMULA)]
    if not found:
        said = (
            "Not in this file: it takes a drafter of vLLM's own at two fixed lengths or more, for example "
            "--methods none,eagle3:1,eagle3:2,eagle3:4."
        )
        return [*parts, tag("p", said, "soft")]
    said = (
        "p (acceptance), a (cost of one more draft token) and d (cost of drafting at all), in plain decode steps, are "
        "fitted to the points of each picture; the line is the formula with them, the bars are 95 % intervals."
    )
    return [*parts, tag("p", said, "soft"), tag("div", join(map(_fit, found)), "cards")]


def _fit(fit: Fit) -> Html:
    row = fit.rows[0]
    title = f"{fit.drafter}, {_title(row)} at {row['concurrency']}"
    lines = [
        (
            n,
            number(row["tokens_per_step"]),
            number(fit.expected_tokens[n]),
            mean_text(row["ratio"]),
            number(fit.speedups[n]),
        )
        for n, row in zip(fit.lengths.tolist(), fit.rows, strict=True)
    ]
    head = ("N", "tokens", "E(N)", "speedup", "S(N)")
    values = f"p = {fit.p:.2f}, a = {fit.alpha:.3f}, d = {fit.draft_cost:.3f}"
    best = f"best by the formula: N = {fit.optimum.n}, {fit.optimum.speedup:.2f}x"
    parts = (tag("h3", title), Html(curve(fit, title)), tag("p", f"{values}; {best}"), table(lines, head))
    return tag("section", join(parts))


def _origin(bench: Mapping[str, Any], name: str) -> list[Html]:
    origin = dict(bench["provenance"])
    lines: list[tuple[str, object]] = [("file", name), ("command", shlex.join(origin.pop("command")))]
    for key, value in [*origin.items(), ("settings", bench["settings"])]:
        lines += _flat(key, value)
    lines += [
        (f"vLLM's options for {method}", _text(options)) for method, options in bench["methods"].items()
    ]
    return [tag("h2", "Where it comes from"), table(lines, kinds=("key", "long"))]


def _flat(key: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        return [(key, _text(value))]
    return [(f"{key}: {inner}", _text(item)) for inner, item in value.items()]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _by_phase(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {
        phase: [row for row in rows if row["phase"] == phase]
        for phase in dict.fromkeys(r["phase"] for r in rows)
    }


def _by_workload(bench: Mapping[str, Any]) -> list[tuple[str, list[Row]]]:
    titles = dict.fromkeys(_title(row) for row in bench["summary"])
    return [(title, [row for row in bench["summary"] if _title(row) == title]) for title in titles]


def _title(row: Row) -> str:
    return str(row["workload"]) if row["phase"] == "cold" else f"{row['workload']}, {row['phase']} memory"


def _accepted(row: Row) -> float | None:
    drafted, share = row["draft_tokens_per_step"], row["acceptance"]
    return None if drafted is None or share is None else drafted * share
