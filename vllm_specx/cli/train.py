"""`specx train`: draft heads for a target, from data that the target makes itself."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from vllm_specx.cli._edge import OneLineErrors, edge
from vllm_specx.train.settings import default, help_text

app = typer.Typer(
    cls=OneLineErrors,
    help="Train a draft head for a model, from conversations that the model writes itself.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("eagle3")
def eagle3(
    model: Annotated[str, typer.Option(help="Folder of the target, a Llama-type chat model.")],
    out: Annotated[Path, typer.Option(help="Folder of the head to write, as vLLM loads it.")],
    work: Annotated[str | None, typer.Option(help=help_text("work"))] = default("work"),
    conversations: Annotated[int, typer.Option(help=help_text("conversations"))] = default("conversations"),
    held_out: Annotated[int, typer.Option(help=help_text("held_out"))] = default("held_out"),
    answer_tokens: Annotated[int, typer.Option(help=help_text("answer_tokens"))] = default("answer_tokens"),
    greedy_share: Annotated[float, typer.Option(help=help_text("greedy_share"))] = default("greedy_share"),
    temperature: Annotated[float, typer.Option(help=help_text("temperature"))] = default("temperature"),
    slots: Annotated[int, typer.Option(help=help_text("slots"))] = default("slots"),
    steps: Annotated[int, typer.Option(help=help_text("steps"))] = default("steps"),
    batch: Annotated[int, typer.Option(help=help_text("batch"))] = default("batch"),
    learning_rate: Annotated[float, typer.Option(help=help_text("learning_rate"))] = default("learning_rate"),
    unroll: Annotated[int, typer.Option(help=help_text("unroll"))] = default("unroll"),
    draft_vocab: Annotated[int, typer.Option(help=help_text("draft_vocab"))] = default("draft_vocab"),
    seed: Annotated[int, typer.Option(help=help_text("seed"))] = default("seed"),
    evaluate_every: Annotated[int, typer.Option(help=help_text("evaluate_every"))] = default(
        "evaluate_every"
    ),
    checkpoint_every: Annotated[int, typer.Option(help=help_text("checkpoint_every"))] = default(
        "checkpoint_every"
    ),
    dtype: Annotated[str, typer.Option(help=help_text("dtype"))] = default("dtype"),
    plot: Annotated[str | None, typer.Option(help=help_text("plot"))] = default("plot"),
    force: Annotated[bool, typer.Option("--force", help=help_text("force"))] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was measured as one JSON object.")
    ] = False,
) -> None:
    """Train an EAGLE-3 head. The same command goes on where an earlier one was stopped."""
    from rich.console import Console

    from vllm_specx.bench.meter import meter
    from vllm_specx.bench.provenance import provenance
    from vllm_specx.train.eagle3 import train_eagle3
    from vllm_specx.train.settings import TrainSettings

    with edge():
        settings = TrainSettings(
            model=model,
            out=out,
            work=work,
            conversations=conversations,
            held_out=held_out,
            answer_tokens=answer_tokens,
            greedy_share=greedy_share,
            temperature=temperature,
            slots=slots,
            steps=steps,
            batch=batch,
            learning_rate=learning_rate,
            unroll=unroll,
            draft_vocab=draft_vocab,
            seed=seed,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            dtype=dtype,
            plot=plot,
            force=force,
        )
        with meter(Console(stderr=True)) as tell:
            document = train_eagle3(settings, provenance(sys.argv), tell)
        if plot is not None:
            from vllm_specx.train.plot import plot_training

            plot_training(document["history"], Path(plot))
        if as_json:
            print(json.dumps(document, allow_nan=False))
            return
        last = document["history"][-1]["acceptance"]
        print(f"head: {out}")
        print(f"held-out acceptance by draft token: {' '.join(f'{x:.3f}' for x in last)}")
