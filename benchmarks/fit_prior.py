"""Fit the weights that a drafter's calibration starts from, and print drafters/_prior.py or _lookahead_prior.py.

    python benchmarks/fit_prior.py --drafter suffix-tree --tokenizer DIR TRACES.jsonl ... > drafters/_prior.py
    python benchmarks/fit_prior.py --drafter lookahead RECORDINGS ... > drafters/_lookahead_prior.py

A trace row is {"prompt", "output"}; a folder of recordings is what `specx train` leaves in HEAD.work. Each output is
drafted for in full length, as serving would; the features of every draft token whose outcome is known are regressed on
it, all texts alike. What only an engine could tell (Lookahead's guesses) keeps a guess of ours.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from scipy.optimize import minimize

from drafters import LookaheadDrafter, SuffixTreeDrafter, _lookahead_kernels, _suffix_tree_kernels
from drafters.recordings import Recordings

MAX_PROMPT, MAX_OUTPUT = 3000, 600
PENALTY = 5.0
GUESS = -2.0  # of a Jacobi guess, and of an n-gram that only a rejected branch said
Pair = tuple[list[int], list[int]]


def suffix_tree() -> tuple[Any, Any]:
    """A drafter, and a function from a live request to the features of its draft."""
    drafter = SuffixTreeDrafter(min_reach=0.0)
    return drafter, lambda request: drafter._slots.features[drafter._requests[request].slot]


def lookahead() -> tuple[Any, Any]:
    """A drafter, and a function from a live request to the features of its draft."""
    drafter = LookaheadDrafter(min_reach=0.0)
    return drafter, lambda request: drafter._features[drafter._slot_of[request]]


DRAFTERS = {
    "suffix-tree": (suffix_tree, _suffix_tree_kernels, "the reach model"),
    "lookahead": (lookahead, _lookahead_kernels, "Lookahead's reach model"),
}


def outcomes(
    drafter: Any, features_of: Any, num_fitted: int, pairs: Iterable[Pair]
) -> Iterator[tuple[Any, bool]]:
    """Features of each draft token that was reached, and whether it was right."""
    for request, (prompt, output) in enumerate(pairs):
        drafter.start(request, prompt)
        drafter.observe(request, output[:1])
        at = 1
        while at < len(output):
            token_ids = drafter.propose([request], drafter.max_n)[0].token_ids.tolist()
            features = features_of(request)
            right = 0
            for k, (drafted, true) in enumerate(zip(token_ids, output[at:], strict=False)):
                yield features[k, :num_fitted].astype(np.int64), drafted == true
                if drafted != true:
                    break
                right += 1
            drafter.observe(request, output[at : at + right + 1])
            at += right + 1
        drafter.stop(request)


def fit(features: np.ndarray, right: np.ndarray, num_features: int) -> np.ndarray:
    """Weights of the ridge logistic regression on one-hot groups; features (n, groups), right (n,)."""

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        chance = 1 / (1 + np.exp(-weights[features].sum(axis=1)))
        gradient = PENALTY * weights
        for group in features.T:
            gradient = gradient + np.bincount(group, chance - right, num_features)
        likelihood = np.log(np.where(right, chance, 1 - chance) + 1e-12).sum()
        return PENALTY / 2 * weights @ weights - likelihood, gradient

    return minimize(loss, np.zeros(num_features), jac=True, method="L-BFGS-B", options={"maxiter": 500}).x


def read(path: Path, tokenizer: Path | None) -> Iterator[Pair]:
    """Prompts and outputs, as token ids."""
    if path.is_dir():
        origin = json.loads((path / "recordings.json").read_text())
        for said in Recordings(path, origin).read():
            yield said.token_ids[: said.answer].tolist(), said.token_ids[said.answer :].tolist()
        return
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode
    for row in map(json.loads, path.read_text().splitlines()):
        yield encode(row["prompt"]).ids, encode(row["output"]).ids


def unseen(kernels: ModuleType, weights: np.ndarray) -> None:
    """What replay cannot meet: order 0, and a count of 0."""
    for order in range(kernels.ORDERS + 1):
        for count in range(kernels.NUM_COUNTS):
            if order == 0 or count == 0:
                weights[order * kernels.NUM_COUNTS + count] = GUESS


def main() -> None:
    """Read, fit, print the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drafter", choices=DRAFTERS, required=True)
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json; for traces")
    parser.add_argument("texts", type=Path, nargs="+")
    options = parser.parse_args()
    make, kernels, name = DRAFTERS[options.drafter]
    samples = []
    for path in options.texts:
        cut = (
            (prompt[-MAX_PROMPT:], output[:MAX_OUTPUT]) for prompt, output in read(path, options.tokenizer)
        )
        pairs = (pair for pair in cut if len(pair[1]) > 2)
        samples += list(outcomes(*make(), kernels.NUM_FITTED, pairs))
    features, right = np.stack([f for f, _ in samples]), np.array([r for _, r in samples], dtype=float)
    weights = fit(features, right, kernels.NUM_FEATURES)
    if options.drafter == "lookahead":
        unseen(kernels, weights)
    print(f'"""Prior weights of {name}, by group: made by benchmarks/fit_prior.py."""\n')
    print("WEIGHTS: tuple[tuple[float, ...], ...] = (")
    fitted = slice(kernels.NUM_FITTED)
    for offset, size in zip(kernels.OFFSETS[fitted], kernels.GROUP_SIZES[fitted], strict=True):
        print("    (" + ", ".join(f"{w:.2f}" for w in weights[offset : offset + size]) + "),")
    print(")")


if __name__ == "__main__":
    main()
