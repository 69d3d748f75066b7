"""`specx recommend`: from a bench to the recipe that it supports."""

from pathlib import Path
from typing import Annotated

import typer

from vllm_specx.cli._edge import edge, whole_numbers


def recommend(
    bench: Annotated[
        Path, typer.Argument(metavar="BENCH.json", help="File that `specx bench --json` wrote.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Recipe to write, for `vllm serve --config`.")],
    workload: Annotated[
        list[str] | None, typer.Option(help="Only this workload; repeat for more (all if unset).")
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(help="Only these numbers of requests, for example 1,8 (all if unset).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write the recipe with the largest measured gain; one that does not speculate where there is none."""
    from vllm_specx.bench.document import check_out, read_document, write_out
    from vllm_specx.recommend import recipe, recommend, select

    with edge():
        check_out(out, [bench], force)
        document = read_document(bench)
        numbers = () if concurrency is None else whole_numbers(concurrency, "--concurrency")
        rows = select(document, workload or (), numbers)
        made = recommend(rows)
        write_out(out, recipe(document, rows, made, out))
        print(made.sentence)
        print(f"recipe: {out}")
