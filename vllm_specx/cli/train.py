"""`specx train`: draft heads for a target, from data that the target makes itself."""

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from vllm_specx.cli._edge import OneLineErrors, edge
from vllm_specx.train.settings import Eagle3Settings, MedusaSettings, TrainSettings

app = typer.Typer(
    cls=OneLineErrors,
    help="Train a draft head for a model, from conversations that the model writes itself.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_HELP = {"model": "Folder of the target, a Llama-type chat model.", "out": "Folder of the head to write."}


def _command(kind: str, settings_type: type[TrainSettings], text: str) -> None:
    """Register a command with an option for each knob of its settings."""

    def command(as_json: bool, **given: Any) -> None:
        from rich.console import Console

        from vllm_specx.bench.meter import meter
        from vllm_specx.bench.provenance import provenance

        with edge():
            settings = settings_type(**given)
            train = getattr(import_module(f"vllm_specx.train.{kind}"), f"train_{kind}")
            with meter(Console(stderr=True)) as tell:
                document = train(settings, provenance(sys.argv), tell)
            if settings.plot is not None:
                from vllm_specx.train.plot import plot_training

                plot_training(document["history"], Path(settings.plot))
            if as_json:
                print(json.dumps(document, allow_nan=False))
                return
            last = document["history"][-1]["acceptance"]
            print(f"head: {settings.out}")
            print(f"held-out acceptance by draft token: {' '.join(f'{x:.3f}' for x in last)}")

    types = get_type_hints(settings_type)
    options = []
    for knob in fields(settings_type):
        names = (f"--{knob.name}",) if knob.name in ("force", "ray") else ()
        option = typer.Option(*names, help=_HELP.get(knob.name) or knob.metadata["help"])
        default = inspect.Parameter.empty if knob.default is MISSING else knob.default
        options.append((knob.name, default, Annotated[types[knob.name], option]))
    as_json = typer.Option("--json", help="Print what was measured as one JSON object.")
    options.append(("as_json", False, Annotated[bool, as_json]))
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, default, annotation in options
    ]
    _give_signature(command, parameters)
    app.command(kind, help=f"{text} The same command goes on where an earlier one was stopped.")(command)


def _give_signature(command: Callable[..., None], parameters: list[inspect.Parameter]) -> None:
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


_command("eagle3", Eagle3Settings, "Train an EAGLE-3 head, as vLLM loads it.")
_command("medusa", MedusaSettings, "Train Medusa heads, for vllm_specx.MedusaProposer.")
