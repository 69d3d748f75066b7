"""The progress bar of a bench run."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_specx.bench.runner import Tell


@contextmanager
def meter(terminal: Console) -> Iterator[Tell]:
    """Yields the runner's `tell`: a bar on a terminal, else a line for each piece of work.

    The bar is redrawn once a second: on few cores a lively one would be measured too.
    """
    if not terminal.is_terminal:
        yield lambda what, done, total: terminal.print(
            f"[{done}/{total}] {what}", markup=False, highlight=False, soft_wrap=True
        )
        return
    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=terminal, refresh_per_second=1, transient=True) as progress:
        task = progress.add_task("")

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield tell
