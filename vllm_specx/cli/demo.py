"""`specx demo`: see it work, on a small model that the demo brings along."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vllm_specx.cli._edge import FAILED, edge, fail


def demo(
    model: Annotated[Path | None, typer.Option(help="Model folder to use instead of the demo's own.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts per workload.")] = 5,
) -> None:
    """Compare plain vLLM, its n-gram lookup and vllm-specx on three small workloads, in minutes."""
    from subprocess import CalledProcessError

    from vllm_specx.bench.meter import meter
    from vllm_specx.bench.provenance import provenance
    from vllm_specx.bench.report import console
    from vllm_specx.bench.runner import run_bench
    from vllm_specx.demo.model import demo_model_dir
    from vllm_specx.demo.show import demo_settings, show_demo

    with edge():
        try:
            folder = model or demo_model_dir()
        except (OSError, CalledProcessError) as error:
            fail(f"the demo model could not be made: {error}", FAILED)
        settings = demo_settings(folder, limit)
        terminal = console()
        terminal.print(
            f"{folder.name} in {settings.dtype}, one request at a time, {limit} prompts each of code edit, "
            "structured output and open chat.\nThree vLLM engines are started; they answer the same prompts "
            "in turns, greedily, each with empty draft memory.",
            highlight=False,
        )
        with meter(terminal) as tell:
            document = run_bench(settings, provenance(sys.argv), tell)
        show_demo(document, terminal)
