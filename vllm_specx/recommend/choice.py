"""Which method the measurements support. Pure: rows of a bench in, one sentence and a ranking out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_specx.bench.document import Row, count, one_line
from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.methods import BASELINE
from vllm_specx.bench.ranking import Ranked, ranking
from vllm_specx.bench.settings import closest

_PHASE: Final = "cold"  # a warm cell saw the same prompts and answers just before: no traffic is like that


@dataclass(frozen=True)
class Recommendation:
    """`method` is the baseline's name where speculation does not pay; `ranking` holds all others, best first."""

    method: str
    sentence: str
    ranking: tuple[Ranked, ...]


def select(
    document: Mapping[str, Any], workloads: Sequence[str] = (), concurrency: Sequence[int] = ()
) -> list[Row]:
    """The rows of cold cells, of these workloads and numbers of requests where any are named.

    Raises:
        BenchError: none is left.

    """
    rows = [row for row in document["summary"] if row["phase"] == _PHASE]
    for name, wanted, key in (
        ("--workload", workloads, "workload"),
        ("--concurrency", concurrency, "concurrency"),
    ):
        known = tuple(dict.fromkeys(row[key] for row in document["summary"]))
        for value in wanted:
            if value not in known:
                hint = closest(value, known) if isinstance(value, str) else ""
                raise BenchError(
                    f"{name} {value!r} leaves no cell{hint}; measured are {', '.join(map(str, known))}"
                )
        rows = [row for row in rows if not wanted or row[key] in wanted]
    if not rows:
        raise BenchError("no cell with cold memory is left: name fewer of --workload and --concurrency")
    return rows


def recommend(rows: Sequence[Row]) -> Recommendation:
    """The largest geometric mean among the methods whose interval lies above the baseline."""
    ranked = ranking(rows)
    pick = next((entry for entry in ranked if entry.is_gain), None)
    if pick is None:
        return Recommendation(BASELINE, f"do not speculate: {_why_not(ranked)}", ranked)
    return Recommendation(
        pick.method,
        f"{one_line(pick.method)}: {pick.text} over plain decoding, geometric mean of "
        f"{count(len(pick.rows), 'cell')}",
        ranked,
    )


def _why_not(ranked: Sequence[Ranked]) -> str:
    if not ranked:
        return "nothing else was measured"
    best = f"{one_line(ranked[0].method)} at {ranked[0].text}"
    if ranked[0].ratio.low is None:
        return f"one repeat gives no interval, so that the best, {best}, may be noise; bench with --repeats 3"
    return f"no method beats plain decoding beyond its 95 % interval; the best is {best}"
