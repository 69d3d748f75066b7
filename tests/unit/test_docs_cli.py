"""docs/cli.md is what typer writes of the command line now: `make docs` renews it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from vllm_specx.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
COMMAND = ("typer", "vllm_specx.cli.main", "utils", "docs", "--name", "specx", "--title", "Command line")


def commands(command: Any, name: str) -> Iterator[str]:
    for child in getattr(command, "commands", {}).values():
        yield f"{name} {child.name}"
        yield from commands(child, f"{name} {child.name}")


def test_the_page_is_current() -> None:
    done = subprocess.run([sys.executable, "-m", *COMMAND], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip() == PAGE.read_text().rstrip(), "run `make docs`"


def test_every_command_has_a_section() -> None:
    headings = set(re.findall(r"^##+ `(specx .+)`$", PAGE.read_text(), re.MULTILINE))
    assert headings == set(commands(typer.main.get_command(app), "specx"))
    assert "specx train eagle3" in headings
