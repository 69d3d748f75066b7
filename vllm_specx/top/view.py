"""What happened between two scrapes, as tables for a terminal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_specx.top.scrape import Scrape

if TYPE_CHECKING:
    from rich.console import RenderableType

_BAR: Final = 24
_NONE: Final = "-"


def view(before: Scrape, now: Scrape) -> RenderableType:
    """Rates and shares since `before`; totals where nothing happened since."""
    from rich.console import Group

    return Group(_summary(before, now), _positions(before, now), _reasons(before, now))


def _summary(before: Scrape, now: Scrape) -> RenderableType:
    from rich.table import Table

    def since(name: str) -> float:
        return now.sum(name) - before.sum(name)

    seconds = max(now.at - before.at, 1e-9)
    rows = {
        "requests running / waiting": f"{now.sum('vllm:num_requests_running'):.0f} / "
        f"{now.sum('vllm:num_requests_waiting'):.0f}",
        "tokens/s": f"{since('vllm:generation_tokens_total') / seconds:.1f}",
        "speedup, realised": _ratio(
            since("specx_plain_seconds_total"), since("specx_step_seconds_total"), "x"
        ),
        "speedup, estimated": _number(now.mean("specx_estimated_speedup"), "x"),
        "draft length, mean": _ratio(since("specx_draft_length_sum"), since("specx_draft_length_count")),
        "steps without a draft": _share(since("specx_steps_without_draft_total"), since("specx_steps_total")),
        "accepted of verified": _share(
            since("specx_accepted_tokens_total"), since("specx_draft_tokens_total")
        ),
        "alpha": _number(now.mean("specx_alpha")),
        "T_draft / T_decode": _ratio(
            since("specx_draft_seconds_total"), since("specx_plain_step_seconds_total")
        ),
        "shared memory": f"{now.sum('specx_memory_bytes') / 2**20:.1f} MiB, "
        f"{now.sum('specx_memory_answers'):.0f} answers",
        "drafting faults": f"{now.sum('specx_drafting_faults_total'):.0f}",
    }
    table = Table(title="speculation", show_header=False, min_width=48)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _positions(before: Scrape, now: Scrape) -> RenderableType:
    from rich.table import Table

    table = Table("position", "verified", "accepted", "", title="acceptance by position", min_width=48)
    tried, kept = (_since(before, now, f"specx_{what}_tokens_total") for what in ("draft", "accepted"))
    for position, number in tried.items():
        if number > 0:
            share = kept.get(position, 0.0) / number
            table.add_row(position, f"{number:.0f}", f"{share:.0%}", "#" * round(_BAR * share))
    return table


def _reasons(before: Scrape, now: Scrape) -> RenderableType:
    from rich.table import Table

    table = Table("steps", "number", title="why these lengths", min_width=48)
    for reason, number in _since(before, now, "specx_steps_total").items():
        if number > 0:
            table.add_row(reason, f"{number:.0f}")
    return table


def _since(before: Scrape, now: Scrape, name: str) -> dict[str, float]:
    old = before.by(name)
    return {label: value - old.get(label, 0.0) for label, value in now.by(name).items()}


def _ratio(part: float, whole: float, unit: str = "") -> str:
    return f"{part / whole:.2f}{unit}" if whole > 0 else _NONE


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else _NONE


def _number(value: float, unit: str = "") -> str:
    return f"{value:.2f}{unit}" if value else _NONE
