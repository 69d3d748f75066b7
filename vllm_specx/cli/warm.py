"""`specx warm`: a memory file from a corpus, no engine."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from vllm_specx.cli._edge import edge
from vllm_specx.config import SpecxConfig


def warm(
    corpus: Annotated[
        Path, typer.Option(help='JSON-lines file of {"prompt", "output"}, {"text"} or {"messages"}.')
    ],
    tokenizer: Annotated[Path, typer.Option(help="Folder with the target's tokenizer.")],
    out: Annotated[Path, typer.Option(help="Memory file to write, for the option memory_path.")],
    memory_bytes: Annotated[
        int, typer.Option(help="Budget of the memory; what was said last stays.")
    ] = SpecxConfig().memory_bytes,
    salt: Annotated[str | None, typer.Option(help="cache_salt of the tenant whose memory this is.")] = None,
    text_key: Annotated[str | None, typer.Option(help="Key of the text, if it is another one.")] = None,
    append: Annotated[bool, typer.Option("--append", help="Add to a memory file that exists.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fill a memory file with known answers, so that a server drafts from them at once."""
    from vllm_specx.warm import BadRow, WarmSettings, run_warm

    def complain(row: BadRow) -> None:
        print(f"specx: {row.where}: {row.reason}: left out", file=sys.stderr)

    with edge():
        settings = WarmSettings(
            corpus=corpus,
            tokenizer=tokenizer,
            out=out,
            memory_bytes=memory_bytes,
            salt=salt,
            text_key=text_key,
            append=append,
            force=force,
        )
        result = run_warm(settings, complain)
        if as_json:
            print(json.dumps(result))
        else:
            for name, number in result.items():
                print(f"{name.replace('_', ' '):16}{number:>14,}")
