"""`specx report`: a bench as one page."""

from pathlib import Path
from typing import Annotated

import typer

from vllm_specx.cli._edge import edge


def report(
    bench: Annotated[
        Path, typer.Argument(metavar="BENCH.json", help="File that `specx bench --json` wrote.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write (HTML, one file).")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a page with the speedups, the formula against them, and where they come from."""
    from vllm_specx.bench.document import check_out, read_document, write_out
    from vllm_specx.report import page

    with edge():
        check_out(out, [bench], force)
        write_out(out, page(read_document(bench), bench.name))
        print(f"page: {out}")
