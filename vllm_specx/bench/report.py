"""What a reader sees: tables on the terminal, and the JSON file they come from."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from vllm_specx.bench.errors import BenchError

_WIDTH = 118
_COLUMNS = (
    "conc.",
    "method",
    "tokens\n/s",
    "ms/token\np50",
    "ms/token\np99",
    "tokens\n/step",
    "accepted",
    "drafts\n/step",
    "ratio to none\n[95 %]",
    "identical",
)


def console() -> Console:
    """The terminal; where there is none, wide enough that no column is cut."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=_WIDTH)


def check_writable(path: Path, flag: str = "--json") -> None:
    """Refuse a path that could not be written in the end. Raises BenchError; leaves nothing behind."""
    if path.is_dir():
        raise BenchError(f"{flag} {path}: is a folder, give a file name")
    if not path.parent.is_dir():
        raise BenchError(f"{flag} {path}: the folder {path.parent} does not exist")
    try:
        handle, name = mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise BenchError(f"{flag} {path}: cannot be written: {error.strerror}") from error
    os.close(handle)
    os.unlink(name)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write atomically: readers see the old file or the whole new one."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """The same for a text. Raises OSError."""
    handle, name = mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def show(document: Mapping[str, Any], terminal: Console) -> None:
    """One table a workload, then the notes that it needs to be read right."""
    summary = document["summary"]
    phases = sorted({row["phase"] for row in summary})
    for workload in document["workloads"]:
        for phase in phases:
            title = workload if len(phases) == 1 else f"{workload}, {phase} memory"
            table = Table(*_COLUMNS, title=title, title_justify="left", box=SIMPLE)
            for column in table.columns:
                column.justify = "left" if column.header == "method" else "right"
            concurrency = None
            for row in summary:
                if (row["workload"], row["phase"]) == (workload, phase):
                    if concurrency not in (None, row["concurrency"]):
                        table.add_section()
                    concurrency = row["concurrency"]
                    table.add_row(*_cells(row))
            terminal.print(table)
    for note in notes(document):
        terminal.print(f"- {note}", highlight=False, soft_wrap=True)


def notes(document: Mapping[str, Any]) -> list[str]:
    """What the numbers do not say by themselves."""
    settings, summary = document["settings"], document["summary"]
    said = [f"{name} left out: {reason}" for name, reason in document["left_out"].items()]
    if settings["natural"]:
        said.append("natural ends: methods may have generated different numbers of tokens")
    else:
        said.append(
            "fixed lengths: every method generates what plain decoding did by itself, end tokens ignored"
        )
    if settings["repeats"] == 1:
        said.append("one repeat: no interval; use --repeats 3 or more")
    if document["provenance"]["engine"]["dtype"] != "float32" and any(
        row["identical"] < row["compared"] for row in summary
    ):
        said.append(
            "outputs that differ: in half precision near-ties flip with the number of tokens in a step; "
            "use --dtype float32 to check identity"
        )
    if settings["warm"]:
        said.append("warm cells saw the same prompts and answers just before: the best case for any memory")
    if preemptions := sum(row["num_preemptions"] for row in summary):
        said.append(f"{preemptions} requests were preempted: the KV cache is too small to compare speeds")
    if faults := sum(row["faults"] for row in summary):
        said.append(f"{faults} faults in drafting were turned into empty drafts")
    if not document["complete"]:
        said.append("interrupted: not all repeats were measured")
    return said


def ratio_text(ratio: Mapping[str, Any]) -> str:
    """'1.52x [1.48, 1.57]', or without the interval where one repeat gave none."""
    text = f"{ratio['median']:.2f}x"
    if ratio["low"] is None:
        return text
    # Two repeats that disagree give an interval as wide as the world; its end is no news then.
    high = f"{ratio['high']:.2f}" if ratio["high"] < 100 else ">99"
    return f"{text} [{ratio['low']:.2f}, {high}]"


def number(value: float | None, digits: int = 2, percent: bool = False) -> str:
    """A fixed number of digits; '-' for what was not measured."""
    if value is None:
        return "-"
    return f"{value:.0%}" if percent else f"{value:.{digits}f}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        str(row["concurrency"]),
        row["method"],
        number(row["tokens_per_s"], 1),
        number(row["tpot_ms_p50"], 1),
        number(row["tpot_ms_p99"], 1),
        number(row["tokens_per_step"]),
        number(row["acceptance"], percent=True),
        number(row["draft_tokens_per_step"]),
        ratio_text(row["ratio"]),
        f"{row['identical']}/{row['compared']}",
    ]
