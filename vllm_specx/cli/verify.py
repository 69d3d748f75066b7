"""`specx verify`: does speculation change what the model says?"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vllm_specx.bench.errors import BenchError
from vllm_specx.cli._edge import FAILED, edge, run_and_show, whole_numbers, words
from vllm_specx.verify.settings import default, help_text


def _text(name: str) -> str:
    return ",".join(map(str, default(name)))


def verify(
    model: Annotated[str, typer.Option(help="Model folder or name, as for vLLM.")],
    config: Annotated[str | None, typer.Option(help=help_text("config"))] = None,
    methods: Annotated[
        str | None, typer.Option(help=help_text("methods"), show_default=_text("methods"))
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSON-lines file of prompts; repeat for more.", show_default="those of `specx demo`"
        ),
    ] = None,
    num_prompts: Annotated[int, typer.Option(help=help_text("num_prompts"))] = default("num_prompts"),
    tokens: Annotated[int, typer.Option(help=help_text("tokens"))] = default("tokens"),
    lengths: Annotated[
        str | None, typer.Option(help=help_text("lengths"), show_default=_text("lengths"))
    ] = None,
    batch: Annotated[str, typer.Option(help=help_text("batch"))] = _text("batch"),
    dtype: Annotated[str, typer.Option(help=help_text("dtype"))] = default("dtype"),
    epsilon: Annotated[float | None, typer.Option(help=help_text("epsilon"))] = None,
    samples: Annotated[int, typer.Option(help=help_text("samples"))] = default("samples"),
    temperature: Annotated[str, typer.Option(help=help_text("temperature"))] = _text("temperature"),
    top_p: Annotated[float, typer.Option(help=help_text("top_p"))] = default("top_p"),
    top_k: Annotated[int, typer.Option(help=help_text("top_k"))] = default("top_k"),
    head: Annotated[str | None, typer.Option(help=help_text("head"))] = None,
    medusa_heads: Annotated[str | None, typer.Option(help=help_text("medusa_heads"))] = None,
    max_model_len: Annotated[int | None, typer.Option(help=help_text("max_model_len"))] = None,
    kv_cache_gib: Annotated[int | None, typer.Option(help=help_text("kv_cache_gib"))] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write every cell and where it comes from.")
    ] = None,
) -> None:
    """Compare speculative with plain decoding: greedy token by token, sampled by its law; 1 if anything is wrong."""
    from vllm_specx.bench.prompts import workloads
    from vllm_specx.bench.provenance import provenance
    from vllm_specx.verify import VerifySettings, run_verify
    from vllm_specx.verify.judge import OK
    from vllm_specx.verify.report import show
    from vllm_specx.verify.settings import built_in_prompts

    with edge():
        for name, given in (
            ("--methods", methods),
            ("--lengths", lengths),
            ("--head", head),
            ("--medusa-heads", medusa_heads),
        ):
            if config is not None and given is not None:
                raise BenchError(
                    f"{name} has no effect with --config: the recipe says it; remove one of them"
                )
        settings = VerifySettings(
            model=model,
            prompts=workloads(prompts) if prompts else built_in_prompts(),
            config=config,
            methods=tuple(words(_text("methods") if methods is None else methods)),
            num_prompts=num_prompts,
            tokens=tokens,
            lengths=whole_numbers(_text("lengths") if lengths is None else lengths, "--lengths"),
            batch=whole_numbers(batch, "--batch"),
            dtype=dtype,
            epsilon=epsilon,
            samples=samples,
            temperature=_numbers(temperature, "--temperature"),
            top_p=top_p,
            top_k=top_k,
            head=head,
            medusa_heads=medusa_heads,
            max_model_len=max_model_len,
            kv_cache_gib=kv_cache_gib,
        )
        document = run_and_show(
            lambda tell, save: run_verify(settings, provenance(sys.argv), tell, save),
            show,
            json_path,
            "every cell",
        )
        if document["verdict"] != OK:
            raise typer.Exit(FAILED)


def _numbers(text: str, flag: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in words(text))
    except ValueError as error:
        raise BenchError(
            f"{flag} {text!r} must be numbers separated by commas, for example 0.6,1.0"
        ) from error
