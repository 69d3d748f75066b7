"""Write the tables of what was run where, from the tests: `python tests/support_matrix.py`; with --check, compare only.

One in docs/model-runners.md says what was executed, one in README.md in short where. A test says what it runs by
`@pytest.mark.runs(proposer, where, what)`; nothing is collected that is not there.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- from the tests -->\n", "<!-- end -->"
WHERE = ("vLLM 0.32, V1 on the CPU", "vLLM 0.32, V2 on the CPU (interpreted)")
_NO_PROPOSER = "rejection sampler"

Found = dict[tuple[str, str], set[tuple[str, str]]]


class _Collector:
    def __init__(self) -> None:
        self.found: Found = defaultdict(set)

    def pytest_collection_finish(self, session: Any) -> None:
        for item in session.items:
            for marker in item.iter_markers("runs"):
                proposers, where, what = marker.args
                for proposer in re.split(", | and ", proposers):
                    self.found[proposer, where].add((what, item.path.relative_to(ROOT).as_posix()))


def executed(found: Found) -> str:
    """Markdown, a row for each proposer and runner: what, and in which tests."""
    lines = ["| proposer | runs on | executed | in |", "|---|---|---|---|"]
    for (proposer, where), cells in sorted(found.items()):
        what = sorted({what for what, _ in cells})
        files = sorted({f"`{path}`" for _, path in cells})
        lines.append(f"| {proposer} | {where} | {'; '.join(what)} | {', '.join(files)} |")
    return "\n".join(lines) + "\n"


def in_short(found: Found) -> str:
    """Markdown, a row for each proposer: where it was run; and what is known of where nothing was."""
    unknown = {where for _, where in found} - {*WHERE}
    assert not unknown, f"no column for {unknown}"
    lines = [f"| | {' | '.join(WHERE)} |", "|---|---|---|"]
    for proposer in sorted({proposer for proposer, _ in found} - {_NO_PROPOSER}):
        ran = ["run with every change" if (proposer, where) in found else "not run" for where in WHERE]
        lines.append(f"| {proposer} | {' | '.join(ran)} |")
    return "\n".join(lines) + "\n\n" + _elsewhere() + "\n"


def _elsewhere() -> str:
    from patching import diffs
    from vllm_contract import CONTRACT, imports

    from vllm_specx._compat.fingerprints import FINGERPRINTS

    names = len(CONTRACT) + sum(len(name.members) for name in CONTRACT)
    imported = len({(module, name) for _, module, name in imports()})
    text = (
        "vLLM 0.33 was not run: there is no CPU build of it yet. Of its sources, as of those of 0.32, the tests check "
        f"{names} names, fields and signatures that vllm-specx relies on, {imported} imports and {len(FINGERPRINTS)} "
        f"fingerprints, and that {len(diffs('0.33'))} diffs apply. Runner V2 was run in Triton's interpreter, too slow "
        "to be timed ([what was executed](docs/model-runners.md)). Nothing was run on a GPU here: "
        "`benchmarks/gpu_check.py` checks a machine that has one."
    )
    return "\n".join(textwrap.wrap(text, 125, break_long_words=False, break_on_hyphens=False))


def put(page: str, text: str) -> str:
    """The page with its table replaced."""
    assert page.count(BEGIN) == 1
    return re.sub(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: BEGIN + text + END, page, flags=re.DOTALL
    )


def main(*options: str) -> int:
    """Collect, and write or compare."""
    collector = _Collector()
    code = pytest.main(
        ["--collect-only", "-qq", "--no-header", "--no-summary", str(ROOT / "tests" / "integration")],
        [collector],
    )
    if code:
        return int(code)
    sys.path.insert(0, str(ROOT / "tests"))
    stale = []
    for page, text in (
        (ROOT / "docs" / "model-runners.md", executed(collector.found)),
        (ROOT / "README.md", in_short(collector.found)),
    ):
        old = page.read_text(encoding="utf-8")
        if put(old, text) == old:
            continue
        stale.append(page.name)
        if "--check" not in options:
            page.write_text(put(old, text), encoding="utf-8")
    if stale and "--check" in options:
        print(f"out of date: {', '.join(stale)}: run python tests/support_matrix.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
