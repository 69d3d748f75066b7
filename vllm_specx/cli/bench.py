"""`specx bench`: compare vLLM configurations on the same prompts."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.settings import default, help_text
from vllm_specx.cli._edge import edge, run_and_show, whole_numbers, words


def bench(
    model: Annotated[str, typer.Option(help="Model folder or name, as for vLLM.")],
    prompts: Annotated[
        list[Path], typer.Option(help="JSON-lines file of prompts; repeat for more workloads.")
    ],
    methods: Annotated[str, typer.Option(help=help_text("methods"))] = ",".join(default("methods")),
    concurrency: Annotated[str, typer.Option(help=help_text("concurrency"))] = ",".join(
        map(str, default("concurrency"))
    ),
    repeats: Annotated[int, typer.Option(help=help_text("repeats"))] = default("repeats"),
    turns: Annotated[int, typer.Option(help=help_text("turns"))] = default("turns"),
    limit: Annotated[int | None, typer.Option(help=help_text("limit"))] = default("limit"),
    rounds: Annotated[int, typer.Option(help=help_text("rounds"))] = default("rounds"),
    dtype: Annotated[str, typer.Option(help=help_text("dtype"))] = default("dtype"),
    max_model_len: Annotated[int | None, typer.Option(help=help_text("max_model_len"))] = default(
        "max_model_len"
    ),
    max_tokens: Annotated[int, typer.Option(help=help_text("max_tokens"))] = default("max_tokens"),
    num_speculative_tokens: Annotated[int, typer.Option(help=help_text("num_speculative_tokens"))] = default(
        "num_speculative_tokens"
    ),
    head: Annotated[str | None, typer.Option(help=help_text("head"))] = default("head"),
    specx_options: Annotated[str | None, typer.Option(help=help_text("specx_options"))] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write every run and where it comes from.")
    ] = None,
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching", help=help_text("prefix_caching"))
    ] = False,
    kv_cache_gib: Annotated[int | None, typer.Option(help=help_text("kv_cache_gib"))] = default(
        "kv_cache_gib"
    ),
    warm: Annotated[bool, typer.Option("--warm", help=help_text("warm"))] = False,
    natural: Annotated[bool, typer.Option("--natural", help=help_text("natural"))] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Spread the workloads over the nodes of the Ray cluster.")
    ] = False,
) -> None:
    """Measure vLLM configurations side by side: same prompts, methods interleaved within each cell."""
    from vllm_specx.bench.cluster import run_bench_on_ray
    from vllm_specx.bench.prompts import workloads
    from vllm_specx.bench.provenance import provenance
    from vllm_specx.bench.report import show
    from vllm_specx.bench.runner import run_bench
    from vllm_specx.bench.settings import BenchSettings

    with edge():
        settings = BenchSettings(
            model=model,
            prompts=workloads(prompts),
            methods=tuple(words(methods)),
            concurrency=whole_numbers(concurrency, "--concurrency"),
            repeats=repeats,
            turns=turns,
            limit=limit,
            rounds=rounds,
            dtype=dtype,
            max_model_len=max_model_len,
            max_tokens=max_tokens,
            num_speculative_tokens=num_speculative_tokens,
            head=head,
            specx_options=_options(specx_options),
            prefix_caching=prefix_caching,
            kv_cache_gib=kv_cache_gib,
            warm=warm,
            natural=natural,
        )
        run = run_bench_on_ray if ray else run_bench
        run_and_show(
            lambda tell, save: run(settings, provenance(sys.argv), tell, save), show, json_path, "every run"
        )


def _options(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise BenchError(f"--specx-options is not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(options, dict):
        raise BenchError(f"--specx-options must be a JSON object, got {text}")
    return options
