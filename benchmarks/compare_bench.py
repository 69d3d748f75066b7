"""One method of `specx bench` against each other one: ratios by cell, and over all cells.

    python benchmarks/compare_bench.py RUN.json ... --method suffix-tree

Several files are one run with several settings. Ratios are paired within a repeat; brackets are 95 % intervals. The mix
is all cells done one after the other: lengths are the same for all methods, so it weighs a cell by its time.
"""

import argparse
import json
from math import exp, fsum, log
from typing import Any

from vllm_specx.bench.stats import Ratio, paired_ratio

Rates = dict[int, float]  # by repeat


def main() -> None:
    """Print a line per cell and one per rival."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--method", default="suffix-tree")
    args = parser.parse_args()
    cells: dict[tuple[str, int, str], dict[str, Rates]] = {}
    weights: dict[tuple[str, int, str], int] = {}  # output tokens
    for name in args.runs:
        with open(name) as file:
            runs = json.load(file)["runs"]
        add(cells, runs)
        weights |= {(r["workload"], r["concurrency"], r["phase"]): r["output_tokens"] for r in runs}
    rivals = sorted({method for cell in cells.values() for method in cell} - {args.method})
    ratios: dict[str, list[Ratio]] = {rival: [] for rival in rivals}
    num_repeats = min(len(rates) for cell in cells.values() for rates in cell.values())
    print("workload concurrency repeats", *(f"over:{rival}" for rival in rivals), sep="\t")
    for (workload, concurrency, phase), methods in sorted(cells.items()):
        line = [f"{workload}{'' if phase == 'cold' else ' ' + phase}", concurrency, len(methods[args.method])]
        for rival in rivals:
            ratio = over(methods[args.method], methods[rival])
            ratios[rival].append(ratio)
            line.append(text(ratio))
        print(*line, sep="\t")
    for rival, values in ratios.items():
        mean = exp(fsum(log(value.geometric_mean) for value in values) / len(values))
        print(f"geometric mean over {rival}, {len(values)} cells: {mean:.3f}")
    for rival in rivals:
        ours, theirs = (
            [fsum(weights[key] / cell[method][n] for key, cell in cells.items()) for n in range(num_repeats)]
            for method in (args.method, rival)
        )
        print(f"mix over {rival}: {text(paired_ratio(theirs, ours))}")


def add(cells: dict[tuple[str, int, str], dict[str, Rates]], runs: list[dict[str, Any]]) -> None:
    """Sort the runs of a file into the cells; repeats of later files are counted on."""
    shifts: dict[tuple[str, int, str], int] = {}
    for run in runs:
        key = run["workload"], run["concurrency"], run["phase"]
        cell = cells.setdefault(key, {})
        shift = shifts.setdefault(key, 1 + max((n for rates in cell.values() for n in rates), default=-1))
        cell.setdefault(run["method"], {})[shift + run["repeat"]] = run["tokens_per_s"]


def over(ours: Rates, theirs: Rates) -> Ratio:
    """Ratio over the repeats that both have."""
    both = sorted(ours.keys() & theirs.keys())
    return paired_ratio([ours[n] for n in both], [theirs[n] for n in both])


def text(ratio: Ratio) -> str:
    """'1.024 [1.001, 1.047]'."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.geometric_mean:.3f}"
    return f"{ratio.geometric_mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


if __name__ == "__main__":
    main()
