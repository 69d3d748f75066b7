"""What a reader sees on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.box import SIMPLE
from rich.table import Table

from vllm_specx.bench.report import console, number

_RATES: Final = (("requests/s", "requests_per_s", 1), ("tokens/s", "tokens_per_s", 0))
_TIMES: Final = (
    ("first token, s", "first_token_s", 3),
    ("per token, ms", "per_token_ms", 1),
    ("end to end, s", "end_to_end_s", 2),
)
_DRAFTS: Final = (("tokens/step", "tokens_per_step", 3), ("draft tokens/step", "draft_tokens_per_step", 2))
# Where there are many rows:
_SHOWN: Final = ("p50", "p99")
_SHORT: Final = (("first", "s"), ("token", "ms"), ("all", "s"))
_IN_TIME: Final = 0.9  # of the requests, finished while others come: less is worth a word


def show(document: Mapping[str, Any]) -> None:
    """One table, and the notes that it needs to be read right."""
    terminal = console()
    for line in titles(document):
        terminal.print(line, highlight=False, markup=False, soft_wrap=True)
    terminal.print(_swept(document) if document["sweep"] else _single(document))
    for note in notes(document):
        terminal.print(f"- {note}", highlight=False, markup=False, soft_wrap=True)


def titles(document: Mapping[str, Any]) -> Iterator[str]:
    """What was simulated."""
    settings, run, texts = document["settings"], document["runs"][0], document["texts"]
    swept = document["sweep"] and document["sweep"]["name"].replace("_", "-")
    fleet = f"{settings['replicas']} replicas" if swept != "replicas" else "replicas"
    yield (
        f"{fleet}, {settings['routing']}, up to {settings['max_num_seqs']} requests each, {settings['drafting']} "
        f"drafts; sync every {settings['sync_interval']:g} s, {settings['churn']:g} restarts per replica and hour"
        + (f"; {swept} as in the table" if swept else "")
    )
    load = (
        ""
        if swept
        else f"{run['requests']:,} requests in {run['duration_s']:g} s, {run['tenants']} tenants; "
    )
    yield (
        f"{load}{texts['rows']} rows with prompts of {texts['prompt_tokens']:.0f} and answers of "
        f"{texts['output_tokens']:.0f} tokens; {document['costs']['prefill_us']:.0f} us per prompt token"
    )


def notes(document: Mapping[str, Any]) -> Iterator[str]:
    """What the numbers do not say by themselves."""
    runs, most = document["runs"], document["costs"]["most_requests"]
    sweep = document["sweep"]
    for run in runs:
        name = run["memory"] + (f" at {run[sweep['name']]:g}" if sweep else "")
        if run["finished"] < run["requests"]:
            yield (
                f"{name}: {run['requests'] - run['finished']:,} requests were not finished in twice the time: "
                "the fleet is overloaded; latencies are of the others"
            )
        elif run["finished_in_time"] < _IN_TIME * run["requests"]:
            yield f"{name}: {run['finished_in_time'] / run['requests']:.0%} of the requests were finished in time"
    largest = max(run["largest_batch"] for run in runs)
    if largest > most:
        yield f"batches of up to {largest} requests: the table was measured up to {most}, and goes on as a line"


def _single(document: Mapping[str, Any]) -> Table:
    runs = document["runs"]
    table = Table("", *(run["memory"] for run in runs), box=SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    for title, name, digits in _RATES:
        table.add_row(title, *(number(run[name], digits) for run in runs))
    for title, name, digits in _TIMES:
        for percent in ("p50", "p95", "p99"):
            table.add_row(f"{title}, {percent}", *(number(run[name][percent], digits) for run in runs))
    for title, name, digits in _DRAFTS:
        table.add_row(title, *(number(run[name], digits) for run in runs))
    table.add_row("accepted", *(number(run["acceptance"], percent=True) for run in runs))
    table.add_row("cold", *(number(_cold(run), percent=True) for run in runs))
    table.add_row("mean batch", *(number(run["batch"]) for run in runs))
    table.add_row("busy", *(number(run["busy"], percent=True) for run in runs))
    for title, part in (("first tenth", 0), ("last tenth", -1)):
        table.add_row(
            f"tokens/step, {title}", *(number(run["tokens_per_step_over_time"][part], 3) for run in runs)
        )
    return table


def _swept(document: Mapping[str, Any]) -> Table:
    name = document["sweep"]["name"]
    titles = [f"{short}\n{percent}, {unit}" for short, unit in _SHORT for percent in _SHOWN]
    table = Table(
        *(
            name.replace("_", "\n"),
            "memory",
            "tokens\n/s",
            "tokens\n/step",
            "accepted",
            "cold",
            "busy",
            *titles,
        ),
        box=SIMPLE,
        collapse_padding=True,
    )
    for column in table.columns:
        column.justify = "left" if column.header == "memory" else "right"
    before = None
    for run in document["runs"]:
        if before not in (None, run[name]):
            table.add_section()
        before = run[name]
        table.add_row(
            f"{run[name]:g}",
            run["memory"],
            number(run["tokens_per_s"], 0),
            number(run["tokens_per_step"], 3),
            number(run["acceptance"], percent=True),
            number(_cold(run), percent=True),
            number(run["busy"], percent=True),
            *(number(run[key][percent], digits) for _, key, digits in _TIMES for percent in _SHOWN),
        )
    return table


def _cold(run: Mapping[str, Any]) -> float | None:
    return None if run["memory"] == "plain" else run["cold"]
