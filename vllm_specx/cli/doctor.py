"""`specx doctor`: what is wrong with an installation, and what to do about it."""

import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_specx.cli._edge import FAILED, edge

if TYPE_CHECKING:
    from vllm_specx.doctor import Finding

_STYLES = {"ok": "green", "warning": "yellow", "fault": "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the installation: one line a finding, with its remedy; exit code 1 if there is a fault."""
    from vllm_specx.doctor import diagnose

    with edge():
        with redirect_stdout(sys.stderr):  # vLLM logs to stdout while it is imported
            found = diagnose()
        is_sound = all(finding.level != "fault" for finding in found.values())
        if as_json:
            rows = [{"check": name, **asdict(finding)} for name, finding in found.items()]
            print(json.dumps({"ok": is_sound, "findings": rows}))
        else:
            _show(found)
        if not is_sound:
            raise typer.Exit(FAILED)


def _show(found: "Mapping[str, Finding]") -> None:
    from rich.text import Text

    from vllm_specx.bench.report import console

    terminal = console()
    for name, finding in found.items():
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        said = " ".join(f"{name}: {finding.text}{remedy}".split())
        terminal.print(Text.assemble((f"{finding.level:<8}", _STYLES[finding.level]), said), soft_wrap=True)
