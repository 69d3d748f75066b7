"""`specx calibrate`: measure what steps cost, for one model on this machine."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_specx.calibrate.settings import default, help_text
from vllm_specx.cli._edge import edge, whole_numbers

if TYPE_CHECKING:
    from vllm_specx.tuner import CostTable


def _text(name: str) -> str:
    return ",".join(map(str, default(name)))


def calibrate(
    model: Annotated[str, typer.Option(help="Model folder or name, as for vLLM.")],
    out: Annotated[Path, typer.Option(help="Cost table to write (JSON).")],
    batch: Annotated[str, typer.Option(help=help_text("batch"))] = _text("batch"),
    drafts: Annotated[str, typer.Option(help=help_text("drafts"))] = _text("drafts"),
    repeats: Annotated[int, typer.Option(help=help_text("repeats"))] = default("repeats"),
    steps: Annotated[int, typer.Option(help=help_text("steps"))] = default("steps"),
    prompt_tokens: Annotated[int, typer.Option(help=help_text("prompt_tokens"))] = default("prompt_tokens"),
    dtype: Annotated[str, typer.Option(help=help_text("dtype"))] = default("dtype"),
    max_model_len: Annotated[int | None, typer.Option(help=help_text("max_model_len"))] = default(
        "max_model_len"
    ),
    kv_cache_gib: Annotated[int | None, typer.Option(help=help_text("kv_cache_gib"))] = default(
        "kv_cache_gib"
    ),
    force: Annotated[bool, typer.Option("--force", help=help_text("force"))] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as one JSON object.")] = False,
) -> None:
    """Measure step times by requests and draft tokens on a real engine, and write them as a cost table."""
    from rich.console import Console

    from vllm_specx.bench.meter import meter
    from vllm_specx.bench.provenance import provenance
    from vllm_specx.calibrate import CalibrateSettings, run_calibrate

    with edge():
        settings = CalibrateSettings(
            model=model,
            out=out,
            batch=whole_numbers(batch, "--batch"),
            drafts=whole_numbers(drafts, "--drafts"),
            repeats=repeats,
            steps=steps,
            prompt_tokens=prompt_tokens,
            dtype=dtype,
            max_model_len=max_model_len,
            kv_cache_gib=kv_cache_gib,
            force=force,
        )
        with meter(Console(stderr=True)) as tell:
            table = run_calibrate(settings, provenance(sys.argv), tell)
        if as_json:
            print(json.dumps(json.loads(out.read_text(encoding="utf-8")), allow_nan=False))
        else:
            _show(table, out)


def _show(made: "CostTable", out: Path) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from vllm_specx.bench.report import console

    table = Table("requests", *(f"N={n}" for n in made.drafts.tolist()), box=SIMPLE)
    for column in table.columns:
        column.justify = "right"
    for requests, row in zip(made.requests.tolist(), made.seconds.tolist(), strict=True):
        table.add_row(str(requests), *(f"{1e3 * seconds:.1f}" for seconds in row))
    terminal = console()
    terminal.print("milliseconds of a step with N draft tokens a request", soft_wrap=True)
    terminal.print(table)
    terminal.print(f"cost table: {out}", highlight=False, markup=False, soft_wrap=True)
