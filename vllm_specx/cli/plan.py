"""`specx plan`: the best draft length by the formula, and its ceilings."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_specx.bench.errors import BenchError
from vllm_specx.cli._edge import edge

if TYPE_CHECKING:
    from vllm_specx.plan import Plan


def plan(
    p: Annotated[
        str,
        typer.Option(
            help="Acceptance of a draft token that is reached; by position: 0.9,0.8,0.7 (and so on)."
        ),
    ],
    alpha: Annotated[
        float | None,
        typer.Option(help="Cost of verifying one draft token, relative to a plain decode step."),
    ] = None,
    draft_cost: Annotated[
        float, typer.Option(help="Cost of drafting one token, in the same unit (autoregressive drafters).")
    ] = 0.0,
    draft_cost_fixed: Annotated[
        float, typer.Option(help="Cost of drafting that does not grow with N, in the same unit.")
    ] = 0.0,
    costs: Annotated[
        Path | None, typer.Option(help="Measured step times (JSON), instead of --alpha.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Requests in flight, for --costs.")] = None,
    max_n: Annotated[int, typer.Option(help="Largest draft length to look at.")] = 32,
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture (.png, .svg, .pdf); needs matplotlib.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the draft length with the largest speedup, and what no draft length can exceed."""
    from vllm_specx.plan import PlanSettings, make_plan
    from vllm_specx.plan.plot import plot_plan

    with edge():
        settings = PlanSettings(
            p=_numbers(p),
            alpha=alpha,
            draft_cost=draft_cost,
            draft_cost_fixed=draft_cost_fixed,
            costs=costs,
            batch=batch,
            max_n=max_n,
        )
        made = make_plan(settings)
        if plot is not None:
            plot_plan(made, plot)
        if as_json:
            print(json.dumps(made.as_json(), allow_nan=False))
        else:
            _show(made)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise BenchError(f"--p {text!r} must be a number, or several separated by commas") from error


def _show(made: "Plan") -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from vllm_specx.bench.report import console
    from vllm_specx.plan.plot import title

    table = Table("N", "tokens/step", "cost", "speedup", box=SIMPLE)
    for column in table.columns:
        column.justify = "right"
    for row in made.as_json()["curve"]:
        best = row["n"] == made.optimal_n
        table.add_row(
            str(row["n"]),
            f"{row['expected_tokens']:.3f}",
            f"{row['cost']:.3f}",
            f"{row['speedup']:.3f}",
            style="bold" if best else None,
        )
    terminal = console()
    terminal.print(title(made), highlight=False, markup=False, soft_wrap=True)
    terminal.print(table)
    for line in (
        f"best: N = {made.optimal_n}, speedup {made.speedup:.3f}",
        f"ceiling if every draft were right: {made.ceiling:.3f}",
        f"ceiling if drafts were free: {made.free_ceiling:.3f}",
    ):
        terminal.print(line, highlight=False, markup=False, soft_wrap=True)
