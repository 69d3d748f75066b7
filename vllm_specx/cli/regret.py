"""`specx regret`: the tuner against the best that could have been chosen."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from vllm_specx.cli._edge import edge, whole_numbers
from vllm_specx.regret.settings import default, help_text


def regret(
    traces: Annotated[
        list[Path],
        typer.Option(help='JSON-lines file of {"id", "prompt", "output"}; repeat for more workloads.'),
    ],
    tokenizer: Annotated[Path, typer.Option(help="Folder with the target's tokenizer.json.")],
    costs: Annotated[
        Path | None,
        typer.Option(help="Measured step times (JSON); a 2-core CPU's, which come along, if not given."),
    ] = None,
    batch: Annotated[str, typer.Option(help=help_text("batch"))] = ",".join(map(str, default("batch"))),
    seeds: Annotated[int, typer.Option(help=help_text("seeds"))] = default("seeds"),
    steps: Annotated[int, typer.Option(help=help_text("steps"))] = default("steps"),
    phase: Annotated[int, typer.Option(help=help_text("phase"))] = default("phase"),
    max_n: Annotated[int, typer.Option(help=help_text("max_n"))] = default("max_n"),
    noise: Annotated[float, typer.Option(help=help_text("noise"))] = default("noise"),
    stalls: Annotated[float, typer.Option(help=help_text("stalls"))] = default("stalls"),
    limit: Annotated[int | None, typer.Option(help="Use only the first rows of each trace file.")] = None,
    jobs: Annotated[int, typer.Option(help=help_text("jobs"))] = default("jobs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare the tuner with fixed lengths, an oracle and published rules on the same requests, without an engine."""
    from vllm_specx.bench.costs import load_costs
    from vllm_specx.regret import PACKAGED, RegretSettings, run_regret
    from vllm_specx.regret.report import show
    from vllm_specx.regret.workloads import load_workloads

    with edge():
        settings = RegretSettings(
            batch=whole_numbers(batch, "--batch"),
            seeds=seeds,
            steps=steps,
            phase=phase,
            max_n=max_n,
            noise=noise,
            stalls=stalls,
            jobs=jobs,
        )
        table = load_costs(costs or PACKAGED)
        workloads = load_workloads(traces, tokenizer, limit)
        document = run_regret(settings, workloads, table, _tell)
        if as_json:
            print(json.dumps(document, allow_nan=False))
        else:
            show(document)


def _tell(name: str, done: int, total: int) -> None:
    print(f"[{done}/{total}] {name}", file=sys.stderr)
