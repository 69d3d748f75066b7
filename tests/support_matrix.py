"""Write the table of docs/model-runners.md from the tests: `python tests/support_matrix.py`.

A test says what it runs by `@pytest.mark.runs(proposer, where, what)`; nothing is collected that is not there.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "model-runners.md"
BEGIN, END = "<!-- from the tests -->\n", "<!-- end -->"


class _Collector:
    def __init__(self) -> None:
        self.found: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)

    def pytest_collection_finish(self, session: Any) -> None:
        for item in session.items:
            for marker in item.iter_markers("runs"):
                proposer, where, what = marker.args
                self.found[proposer, where].add((what, item.path.relative_to(ROOT).as_posix()))


def table(found: dict[tuple[str, str], set[tuple[str, str]]]) -> str:
    """Markdown, a row for each proposer and runner."""
    lines = ["| proposer | runs on | executed | in |", "|---|---|---|---|"]
    for (proposer, where), cells in sorted(found.items()):
        what = sorted({what for what, _ in cells})
        files = sorted({f"`{path}`" for _, path in cells})
        lines.append(f"| {proposer} | {where} | {'; '.join(what)} | {', '.join(files)} |")
    return "\n".join(lines) + "\n"


def put(page: str, text: str) -> str:
    """The page with its table replaced."""
    return re.sub(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: BEGIN + text + END, page, flags=re.DOTALL
    )


def main() -> int:
    """Collect, and write."""
    collector = _Collector()
    code = pytest.main(
        ["--collect-only", "-qq", "--no-header", "--no-summary", str(ROOT / "tests" / "integration")],
        [collector],
    )
    if code:
        return int(code)
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), table(collector.found)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
