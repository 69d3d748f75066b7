"""`specx simulate`: a fleet of replicas with private or shared draft memory, no engine."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vllm_specx.bench.errors import EngineFailed
from vllm_specx.cli._edge import edge
from vllm_specx.simulate.settings import default, help_text


def simulate(
    traces: Annotated[Path, typer.Option(help='JSON-lines file of {"id", "prompt", "output"}.')],
    tokenizer: Annotated[Path, typer.Option(help="Folder with the target's tokenizer.json.")],
    costs: Annotated[
        Path | None,
        typer.Option(help="Measured step times (JSON); a 2-core CPU's, which come along, if not given."),
    ] = None,
    replicas: Annotated[int, typer.Option(help=help_text("replicas"))] = default("replicas"),
    rate: Annotated[float | None, typer.Option(help=help_text("rate"))] = default("rate"),
    memory: Annotated[str, typer.Option(help=help_text("memory"))] = default("memory"),
    sync_interval: Annotated[float, typer.Option(help=help_text("sync_interval"))] = default("sync_interval"),
    transfer: Annotated[float, typer.Option(help=help_text("transfer"))] = default("transfer"),
    churn: Annotated[float, typer.Option(help=help_text("churn"))] = default("churn"),
    away: Annotated[float, typer.Option(help=help_text("away"))] = default("away"),
    routing: Annotated[str, typer.Option(help=help_text("routing"))] = default("routing"),
    max_num_seqs: Annotated[int, typer.Option(help=help_text("max_num_seqs"))] = default("max_num_seqs"),
    max_num_batched_tokens: Annotated[int, typer.Option(help=help_text("max_num_batched_tokens"))] = default(
        "max_num_batched_tokens"
    ),
    max_n: Annotated[int, typer.Option(help=help_text("max_n"))] = default("max_n"),
    prefill_us: Annotated[float | None, typer.Option(help=help_text("prefill_us"))] = default("prefill_us"),
    duration: Annotated[float | None, typer.Option(help=help_text("duration"))] = default("duration"),
    tenants: Annotated[int | None, typer.Option(help=help_text("tenants"))] = default("tenants"),
    drafting: Annotated[str, typer.Option(help=help_text("drafting"))] = default("drafting"),
    seed: Annotated[int, typer.Option(help=help_text("seed"))] = default("seed"),
    limit: Annotated[int | None, typer.Option(help="Use only the first rows of the trace file.")] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=V1,V2,...",
            help="Several values of one setting, for example replicas=1,10,100 (at the same load for each of them).",
        ),
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write every number and where it comes from.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a JSON file that exists.")] = False,
) -> None:
    """Simulate a fleet under load: throughput, latency and acceptance with private and with shared draft memory."""
    from rich.console import Console

    from vllm_specx.bench.costs import load_costs
    from vllm_specx.bench.document import check_out
    from vllm_specx.bench.meter import meter
    from vllm_specx.bench.provenance import provenance
    from vllm_specx.bench.report import write_json
    from vllm_specx.regret import PACKAGED
    from vllm_specx.simulate import SimulateSettings, Sweep, run_simulate
    from vllm_specx.simulate.report import show
    from vllm_specx.simulate.texts import load_texts

    with edge():
        settings = SimulateSettings(
            replicas=replicas,
            rate=rate,
            memory=memory,
            sync_interval=sync_interval,
            transfer=transfer,
            churn=churn,
            away=away,
            routing=routing,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_n=max_n,
            prefill_us=prefill_us,
            duration=duration,
            tenants=tenants,
            drafting=drafting,
            seed=seed,
        )
        several = None if sweep is None else Sweep.parse(sweep)
        if json_path is not None:
            check_out(json_path, [traces, costs or PACKAGED], force, "--json")
        table = load_costs(costs or PACKAGED)
        timed = rate is None and (several is None or several.name != "rate")
        texts = load_texts(traces, tokenizer, limit, timed=timed)
        with meter(Console(stderr=True)) as tell:
            document = run_simulate(settings, texts, table, provenance(sys.argv), sweep=several, tell=tell)
        show(document)
        if json_path is not None:
            try:
                write_json(json_path, document)
            except OSError as error:
                raise EngineFailed(
                    f"--json {json_path}: cannot be written: {error.strerror or error}"
                ) from error
            print(f"every number: {json_path}")
