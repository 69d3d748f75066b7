"""Numba kernels of the reach model: a logistic sum of one weight per group of features, moved by every outcome.

All kernels take flat arrays and scalars. Every value is int64 unless said.
"""

import numpy as np
from numba import njit

from drafters._index_kernels import _mix

NUM_TOKEN_BUCKETS = 512
LEARNING_RATE = 1.0  # of a Newton step for each feature by itself
FIRST_EVIDENCE = 8.0  # Fisher information that the prior is worth
MOST_EVIDENCE = 500.0  # and at which old outcomes begin to fade


@njit(cache=True)
def _bucket(edges, value):
    b = 0
    while b < edges.shape[0] and value >= edges[b]:
        b += 1
    return b


@njit(cache=True)
def _chance(features, model):
    """Chance that a draft token with these features is accepted, given that its place is reached."""
    z = 0.0
    for g in range(features.shape[0]):
        z += model[0, features[g]]
    return 1.0 / (1.0 + np.exp(-z))


@njit(cache=True)
def _token_bucket(token_id, tag, seed):
    """Feature of a token id: keyed by namespace, and none for a request that shares nothing."""
    if tag < 0:
        return np.int64(0)
    return 1 + _mix(seed + np.int64(token_id), NUM_TOKEN_BUCKETS - 1)


@njit(cache=True)
def _judge(draft_ids, features, length, token_ids, model):
    """Hold a draft against the tokens that the target committed; return how many were right.

    Every position up to and including the first wrong one has a known outcome, also those that were never
    verified: the token after the last verified one was drawn by the target itself. Each outcome moves the
    weights of its features (model[0]) by a Newton step each, damped by their information so far (model[1]).
    """
    k = 0
    while k < length and k < token_ids.shape[0]:
        right = draft_ids[k] == token_ids[k]
        p = _chance(features[k], model)
        error = (1.0 if right else 0.0) - p
        for g in range(features.shape[1]):
            f = features[k, g]
            model[1, f] = min(model[1, f] + p * (1.0 - p), MOST_EVIDENCE)
            model[0, f] += LEARNING_RATE * error / model[1, f]
        if not right:
            break
        k += 1
    return k
