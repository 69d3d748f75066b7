"""`specx top`: a running server's speculation, live."""

import time
from typing import Annotated

import typer

from vllm_specx.cli._edge import edge


def top(
    url: Annotated[str, typer.Argument(help="Address of the server.")] = "http://localhost:8000",
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show the totals since the start, and end.")] = False,
) -> None:
    """Show what speculation does in a running server: lengths, acceptance, speedup, and why. Ctrl-C ends it."""
    from rich.live import Live

    from vllm_specx.bench.errors import BenchError
    from vllm_specx.bench.report import console
    from vllm_specx.top.scrape import Scrape, scrape
    from vllm_specx.top.view import view

    with edge():
        last = scrape(url)
        if once:
            console().print(view(Scrape(0.0, {}), last))
            return
        with Live(view(last, last), console=console(), screen=False, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(every)
                    try:
                        now = scrape(url)
                    except BenchError as error:  # it may come back
                        live.update(f"{error}; trying again", refresh=True)
                        continue
                    live.update(view(last, now), refresh=True)
                    last = now
            except KeyboardInterrupt:
                return
