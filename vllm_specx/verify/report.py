"""What a reader sees: a table of each part, what they do not say, and the verdict in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from vllm_specx.bench.document import count
from vllm_specx.verify.judge import BLIND, IDLE, OK, WRONG
from vllm_specx.verify.laws import ALPHA
from vllm_specx.verify.plan import NOT_OURS

_MOST_SHOWN = 5


def show(document: Mapping[str, Any], terminal: Console) -> None:
    """Print the tables, the notes and the verdict."""
    for title, columns, rows in (
        ("greedy, against plain decoding", _GREEDY, _rows(document, "greedy", _greedy_row)),
        (
            "sampled, three tokens, against their exact law",
            _SAMPLED,
            _rows(document, "sampled", _sampled_row),
        ),
    ):
        if rows:
            table = Table(*columns, title=title, title_justify="left", box=SIMPLE)
            for column in table.columns:
                column.justify = "left" if column.header in ("method", "verdict") else "right"
            for row in rows:
                table.add_row(*row)
            terminal.print(table)
    for note in notes(document):
        terminal.print(f"- {note}", highlight=False, markup=False, soft_wrap=True)
    terminal.print(f"verdict: {sentence(document)}", highlight=False, markup=False, soft_wrap=True)


def notes(document: Mapping[str, Any]) -> list[str]:
    """What the numbers do not say by themselves."""
    settings, cells = document["settings"], document["cells"]
    greedy = [cell for cell in cells if cell["part"] == "greedy"]
    said = [f"{name} left out: {reason}" for name, reason in document["left_out"].items()]
    if "num_prompts" in document and document["num_prompts"] < settings["num_prompts"]:
        said.append(f"the files hold {count(document['num_prompts'], 'prompt')} only")
    if greedy:
        said.append(
            f"a tie: where it leaves plain decoding's output, the method's token is within {document['epsilon']:g} of "
            "plain decoding's own, by plain decoding's log-probabilities; what follows is not compared"
        )
    if settings["dtype"] != "float32":
        said.append(
            f"{settings['dtype']}: rounding hides small faults; --dtype float32 gives a sharp verdict"
        )
    if settings["config"] is not None:
        said.append(f"the recipe as it is, but for {', '.join(NOT_OURS)}: nothing is kept, and nobody told")
    shown = [
        f"{cell['method']}, N={cell['n']}, {cell['batch']} at a time: {entry['id']} differs at token "
        f"{entry['position']}: {entry['method']} for {entry['plain']}, {_gap(entry['gap'])}"
        for cell in greedy
        for entry in cell["differences"]
        if not entry["is_tie"]
    ]
    said += shown[:_MOST_SHOWN]
    if len(shown) > _MOST_SHOWN:
        said.append(f"and {len(shown) - _MOST_SHOWN} more, see --json")
    if faults := sum(cell["faults"] for cell in cells):
        said.append(f"{faults} faults in drafting were turned into empty drafts")
    if not document["complete"]:
        said.append("interrupted: not all cells were verified")
    return said


def sentence(document: Mapping[str, Any]) -> str:
    """The verdict, and what it rests on."""
    cells = [cell for cell in document["cells"] if cell["method"] != "none"]
    wrong = sum(cell["verdict"] == WRONG for cell in document["cells"])
    greedy = [cell for cell in cells if cell["part"] == "greedy" and cell["verdict"] == OK]
    sampled = [cell for cell in cells if cell["part"] == "sampled" and cell["verdict"] == OK]
    parts = []
    if greedy:
        ties = sum(cell["ties"] for cell in greedy)
        parts.append(
            f"{sum(cell['prompts'] for cell in greedy):,} outputs and "
            f"{sum(cell['num_draft_tokens'] for cell in greedy):,} draft tokens compared in "
            f"{count(len(greedy), 'cell')}, {count(ties, 'tie')}"
        )
    if sampled:
        parts.append(
            f"{sum(cell['samples'] for cell in sampled):,} samples in {count(len(sampled), 'cell')} follow the law"
        )
    unproved = {
        verdict: number
        for verdict in (IDLE, BLIND)
        if (number := sum(cell["verdict"] == verdict for cell in cells))
    }
    parts += [f"{count(number, 'cell')} {verdict}" for verdict, number in unproved.items()]
    start = (
        f"WRONG in {count(wrong, 'cell')}"
        if wrong
        else "nothing wrong"
        if parts and (greedy or sampled)
        else "nothing was proved"
    )
    return "; ".join([start, *parts])


_GREEDY = (
    "method", "N", "at a\ntime", "prompts", "identical", "ties", "wrong", "draft\ntokens", "accepted", "verdict"
)  # fmt: skip
_SAMPLED = (
    "method", "N", "temp.", "samples", "outcomes", "p", "p against\nplain", "p if\nbroken", "draft\ntokens",
    "accepted", "verdict",
)  # fmt: skip


def _rows(document: Mapping[str, Any], part: str, row: Any) -> list[Sequence[str]]:
    return [row(cell) for cell in document["cells"] if cell["part"] == part]


def _greedy_row(cell: Mapping[str, Any]) -> Sequence[str]:
    numbers = (cell[name] for name in ("n", "batch", "prompts", "identical", "ties", "wrong"))
    return [cell["method"], *map(str, numbers), *_drafts(cell), cell["verdict"]]


def _sampled_row(cell: Mapping[str, Any]) -> Sequence[str]:
    p_values = [cell.get(name) for name in ("p_value", "p_value_against_plain", "broken_p_value")]
    return [
        cell["method"],
        str(cell["n"] or "-"),
        f"{cell['temperature']:g}",
        f"{cell['samples']:,}",
        str(cell["outcomes"]),
        *("-" if value is None else "<1e-6" if value < ALPHA else f"{value:.2g}" for value in p_values),
        *_drafts(cell),
        cell["verdict"],
    ]


def _drafts(cell: Mapping[str, Any]) -> tuple[str, str]:
    return f"{cell['num_draft_tokens']:,}", f"{cell['num_accepted_tokens']:,}"


def _gap(gap: float | None) -> str:
    return "which is not among plain decoding's choices" if gap is None else f"a gap of {gap:.3g}"
