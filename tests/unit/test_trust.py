"""Every case of docs/trust.md has a test, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| (\d+) \|(.+)\|$", (ROOT / "docs" / "trust.md").read_text(encoding="utf-8"), re.MULTILINE
)
NUM_CASES = 33


def test_every_case_once() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, NUM_CASES + 1))


def test_every_test_exists() -> None:
    named = {name for _, row in ROWS for name in re.findall(r"`(tests/[^`]+)`", row)}
    assert len(named) > NUM_CASES
    missing = {name for name in named if not exists(*name.partition("::")[::2])}
    assert missing == set()


def test_every_case_has_one() -> None:
    assert [number for number, row in ROWS if "`tests/" not in row] == []


def exists(path: str, name: str) -> bool:
    """Whether a test of that name is in the file."""
    if not (ROOT / path).is_file():
        return False
    module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in module.body)
