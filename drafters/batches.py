"""Conversations into padded batches, in an order that a seed and an epoch fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from drafters.recordings import Conversation

_POOL = 32  # batches whose conversations are put in order of length, so that little is padding


@dataclass(frozen=True)
class Batch:
    """Conversations, padded at the right.

    token_ids: int64 (batch, tokens); states: bf16 (batch, tokens, layers * hidden); finals: bf16 (batch, tokens,
    hidden); anchors: int64 (batch, anchors), where drafts start; counts: int64 (batch,), how many of a row's anchors
    are real; ends: int64 (batch,), lengths of the conversations.
    """

    token_ids: torch.Tensor
    states: torch.Tensor
    finals: torch.Tensor
    anchors: torch.Tensor
    counts: torch.Tensor
    ends: torch.Tensor

    def valid(self, step: int) -> torch.Tensor:
        """Bool (batch, anchors): anchors whose draft token number `step` (from 0) has a token to be compared with."""
        index = torch.arange(self.anchors.shape[1])
        return (index < self.counts[:, None]) & (self.anchors + 2 + step < self.ends[:, None])

    def finals_of(self, step: int) -> torch.Tensor:
        """The target's states that say what draft token number `step` should have been: (batch, anchors, hidden)."""
        at = (self.anchors + 1 + step)[..., None].expand(-1, -1, self.finals.shape[-1])
        return self.finals.gather(1, at)


def num_anchors(conversation: Conversation) -> int:
    """Positions to draft from: from the one before the answer on, up to the last but two."""
    return max(0, len(conversation) - 2 - (conversation.answer - 1))


def make_batch(conversations: Sequence[Conversation], max_steps: int) -> Batch:
    """Pad conversations; the tokens get room for the look-ahead of `max_steps` draft tokens."""
    width = max(map(len, conversations))
    widest = max(map(num_anchors, conversations))
    first = conversations[0]
    shape = (len(conversations), width)
    token_ids = torch.zeros(shape[0], width + max_steps + 1, dtype=torch.int64)
    states = torch.zeros(*shape, first.states.shape[1], dtype=first.states.dtype)
    finals = torch.zeros(shape[0], width + max_steps + 1, first.finals.shape[1], dtype=first.finals.dtype)
    anchors = torch.zeros(len(conversations), widest, dtype=torch.int64)
    for row, conversation in enumerate(conversations):
        length = len(conversation)
        token_ids[row, :length] = torch.from_numpy(conversation.token_ids)
        states[row, :length] = conversation.states
        finals[row, :length] = conversation.finals
        anchors[row] = (torch.arange(widest) + conversation.answer - 1).clamp(max=length - 1)
    return Batch(
        token_ids,
        states,
        finals,
        anchors,
        torch.tensor([num_anchors(c) for c in conversations]),
        torch.tensor([len(c) for c in conversations]),
    )


def epoch_order(lengths: NDArray[np.int64], batch: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Indices of the conversations of each batch of an epoch; the same for the same arguments."""
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(order), batch * _POOL):
        pool = order[start : start + batch * _POOL]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[i : i + batch] for i in range(0, len(pool), batch)]
    return [batches[i] for i in random.permutation(len(batches))]


def batches_from(
    conversations: Sequence[Conversation], batch: int, seed: int, first_step: int, max_steps: int
) -> Iterator[Batch]:
    """Batches without end, from step `first_step` on."""
    lengths = np.array([len(c) for c in conversations])
    per_epoch = -(-len(conversations) // batch)
    epoch, skip = divmod(first_step, per_epoch)
    while True:
        for indices in epoch_order(lengths, batch, seed, epoch)[skip:]:
            yield make_batch([conversations[i] for i in indices], max_steps)
        epoch, skip = epoch + 1, 0
