"""The methods of a bench over several cells at once: geometric means of their ratios to the baseline. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import exp, fsum, log
from typing import Any

from vllm_specx.bench.document import Row, one_line
from vllm_specx.bench.methods import BASELINE
from vllm_specx.bench.report import ratio_text
from vllm_specx.bench.stats import Ratio, paired_ratio


@dataclass(frozen=True)
class Ranked:
    """One method. `ratio` has a value per repeat, the geometric mean over the cells; `rows` are those cells."""

    method: str
    ratio: Ratio
    rows: tuple[Row, ...]

    @property
    def is_gain(self) -> bool:
        """Whether the whole interval lies above the baseline; without an interval it does not."""
        return self.ratio.low is not None and self.ratio.low > 1

    @property
    def text(self) -> str:
        """See `mean_text`."""
        return mean_text(asdict(self.ratio))


def ranking(rows: Iterable[Row]) -> tuple[Ranked, ...]:
    """All methods but the baseline, the largest geometric mean first.

    The interval is that of the repeats, each of which visits every cell: it says what measuring again would give on
    these cells, not what other workloads would.
    """
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        if row["method"] != BASELINE:
            by_method.setdefault(row["method"], []).append(row)
    ranked = [Ranked(method, _over_cells(cells), tuple(cells)) for method, cells in by_method.items()]
    return tuple(sorted(ranked, key=lambda entry: -entry.ratio.geometric_mean))


def mean_text(ratio: Mapping[str, Any]) -> str:
    """'1.52x [1.48, 1.57]': the geometric mean with its interval."""
    return ratio_text({**ratio, "median": ratio["geometric_mean"]})


def where_text(row: Row) -> str:
    """'chat at 8': a cell, for a sentence."""
    return f"{one_line(row['workload'])} at {row['concurrency']}"


def _over_cells(cells: list[Row]) -> Ratio:
    repeats = zip(*(row["ratio"]["values"] for row in cells), strict=True)
    means = [exp(fsum(map(log, values)) / len(values)) for values in repeats]
    return paired_ratio(means, [1.0] * len(means))
