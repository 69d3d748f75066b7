"""`specx replay`: known outputs through a drafter, no engine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from vllm_specx.cli._edge import edge


def replay(
    traces: Annotated[Path, typer.Option(help='JSON-lines file of {"id", "prompt", "output"}.')],
    tokenizer: Annotated[Path, typer.Option(help="Folder with the target's tokenizer.json.")],
    drafter: Annotated[
        str, typer.Option(help="suffix-tree, or a peer: arctic, prompt-lookup, oracle.")
    ] = "suffix-tree",
    alpha: Annotated[
        float, typer.Option(help="Cost of verifying one draft token, relative to a plain decode step.")
    ] = 0.1,
    max_n: Annotated[int, typer.Option(help="Most draft tokens a step.")] = 32,
    draft_cost: Annotated[
        float, typer.Option(help="Cost of drafting in each step, relative to a plain decode step.")
    ] = 0.0,
    options: Annotated[str | None, typer.Option(help="A peer's options, as a JSON object.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay known outputs through a drafter: tokens per step and the speedup that the formula gives."""
    from vllm_specx.replay import ReplaySettings, load_traces, run_replay
    from vllm_specx.replay.settings import parse_options

    with edge():
        settings = ReplaySettings(
            drafter=drafter,
            alpha=alpha,
            max_n=max_n,
            draft_cost=draft_cost,
            options=None if options is None else parse_options(options),
        )
        result = run_replay(settings, load_traces(traces, tokenizer))
        if as_json:
            print(json.dumps(result))
        else:
            _show(f"{traces.name}, {drafter}, alpha {alpha:g}", result)


def _show(title: str, result: dict[str, float | None]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from vllm_specx.bench.report import console

    table = Table(box=SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in result.items():
        table.add_row(name.replace("_", " "), "-" if value is None else str(value))
    terminal = console()
    terminal.print(title, highlight=False, markup=False, soft_wrap=True)
    terminal.print(table)
