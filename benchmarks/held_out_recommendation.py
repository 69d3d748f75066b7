"""What `specx recommend` makes of one half of the prompts, judged on the other half.

    python benchmarks/held_out_recommendation.py RUN.json

The run is one `specx bench` of files that come in pairs, NAME-a.jsonl and NAME-b.jsonl. Per workload and number of
requests, and over all workloads: the method that the a-half supports, and its speed on the b-half over the best method
there, plain decoding included (1: it is the best). The best of several noisy figures is a little too good.
"""

import argparse
from pathlib import Path

from vllm_specx.bench.document import Row, read_document
from vllm_specx.bench.methods import BASELINE
from vllm_specx.bench.ranking import ranking
from vllm_specx.recommend import recommend, select


def main() -> None:
    """Print a line per cell, and one per number of requests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    document = read_document(parser.parse_args().run)
    names = {row["workload"] for row in document["summary"]}
    pairs = sorted(name[:-2] for name in names if name.endswith("-a") and f"{name[:-2]}-b" in names)
    print("workload concurrency recommended best ratio", sep="\t")
    for concurrency in sorted({row["concurrency"] for row in document["summary"]}):
        for group in [*([name] for name in pairs), pairs]:
            known, unknown = (
                select(document, [f"{name}-{half}" for name in group], [concurrency]) for half in "ab"
            )
            judge("all" if len(group) > 1 else group[0], concurrency, known, unknown)


def judge(name: str, concurrency: int, known: list[Row], unknown: list[Row]) -> None:
    """Print what was recommended from the known cells, and how it does in the others."""
    method = recommend(known).method
    ratios = {BASELINE: 1.0} | {entry.method: entry.ratio.geometric_mean for entry in ranking(unknown)}
    best = max(ratios, key=ratios.__getitem__)
    print(name, concurrency, method, best, f"{ratios[method] / ratios[best]:.3f}", sep="\t")


if __name__ == "__main__":
    main()
