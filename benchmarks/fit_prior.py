"""Fit the weights that calibration starts from, and print drafters/_prior.py.

    python benchmarks/fit_prior.py --tokenizer DIR TRACES.jsonl ... > drafters/_prior.py

A trace row is {"prompt", "output"}. Each output is drafted for in full length, as serving would; the features of every
draft token whose outcome is known are regressed on it, all traces alike.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from tokenizers import Tokenizer

from drafters import SuffixTreeDrafter
from drafters import _suffix_tree_kernels as kernels

MAX_PROMPT, MAX_OUTPUT = 3000, 600
PENALTY = 5.0


def outcomes(traces: Iterator[tuple[list[int], list[int]]]) -> Iterator[tuple[np.ndarray, bool]]:
    """Features of each draft token that was reached, and whether it was right."""
    drafter = SuffixTreeDrafter(min_reach=0.0)
    for request, (prompt, output) in enumerate(traces):
        drafter.start(request, prompt)
        drafter.observe(request, output[:1])
        at = 1
        while at < len(output):
            token_ids = drafter.propose([request], drafter.max_n)[0].token_ids.tolist()
            features = drafter._slots.features[drafter._requests[request].slot]
            right = 0
            for k, (drafted, true) in enumerate(zip(token_ids, output[at:], strict=False)):
                yield features[k, : kernels.NUM_FITTED].astype(np.int64), drafted == true
                if drafted != true:
                    break
                right += 1
            drafter.observe(request, output[at : at + right + 1])
            at += right + 1
        drafter.stop(request)


def fit(features: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Weights of the ridge logistic regression on one-hot groups; features (n, NUM_FITTED), right (n,)."""

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        chance = 1 / (1 + np.exp(-weights[features].sum(axis=1)))
        gradient = PENALTY * weights
        for group in features.T:
            gradient = gradient + np.bincount(group, chance - right, kernels.NUM_FEATURES)
        likelihood = np.log(np.where(right, chance, 1 - chance) + 1e-12).sum()
        return PENALTY / 2 * weights @ weights - likelihood, gradient

    start = np.zeros(kernels.NUM_FEATURES)
    return minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x


def main() -> None:
    """Read traces, fit, print the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("traces", type=Path, nargs="+")
    options = parser.parse_args()
    encode = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json")).encode
    samples = []
    for path in options.traces:
        rows = map(json.loads, path.read_text().splitlines())
        pairs = ((encode(r["prompt"]).ids[-MAX_PROMPT:], encode(r["output"]).ids[:MAX_OUTPUT]) for r in rows)
        samples += list(outcomes(pair for pair in pairs if len(pair[1]) > 2))
    weights = fit(np.stack([f for f, _ in samples]), np.array([r for _, r in samples], dtype=float))
    print('"""Prior weights of the reach model, by group: made by benchmarks/fit_prior.py."""\n')
    print("WEIGHTS: tuple[tuple[float, ...], ...] = (")
    fitted = slice(kernels.NUM_FITTED)
    for offset, size in zip(kernels.OFFSETS[fitted], kernels.GROUP_SIZES[fitted], strict=True):
        print("    (" + ", ".join(f"{w:.2f}" for w in weights[offset : offset + size]) + "),")
    print(")")


if __name__ == "__main__":
    main()
