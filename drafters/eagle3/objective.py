"""What a head is trained for, and how good it is at it."""

from __future__ import annotations

import torch
from torch.nn import functional

from drafters.batches import Batch
from drafters.eagle3.model import Eagle3Head


def loss(
    head: Eagle3Head, batch: Batch, embeddings: torch.Tensor, output: torch.Tensor, num_steps: int
) -> torch.Tensor:
    """Cross-entropy with the target's distribution over the draft vocabulary, by draft token, weighted.

    Args:
        head: the head.
        batch: what it is trained on.
        embeddings: (vocab, hidden), the target's.
        output: (draft_vocab, hidden), the target's output matrix, rows of the draft vocabulary only.
        num_steps: unrolled draft tokens.

    Returns:
        float32 (num_steps,), the mean loss of each draft token.

    """
    hidden = head.unroll(
        batch.states, functional.embedding(batch.token_ids[:, 1:], embeddings), batch.anchors, num_steps
    )
    losses = []
    for step, rows in enumerate(hidden):
        valid = batch.valid(step)
        logits = head.lm_head(rows[valid])
        with torch.no_grad():
            wanted = (batch.finals_of(step)[valid].to(output.dtype) @ output.T).float().softmax(-1)
        losses.append(functional.cross_entropy(logits.float(), wanted))
    return torch.stack(losses)


@torch.no_grad()
def accepted(
    head: Eagle3Head,
    batch: Batch,
    target: tuple[torch.Tensor, torch.Tensor],
    ids: torch.Tensor,
    num_steps: int,
) -> torch.Tensor:
    """Count greedy acceptances: int64 (num_steps, 2), anchors that reached a draft token, and that accepted it.

    A draft token is accepted where the head's first choice is the target's, all earlier ones of the anchor included.

    Args:
        head: the head.
        batch: what it is measured on.
        target: embeddings and output matrix, (vocab, hidden) each.
        ids: int64 (draft_vocab,), the target's ids of the draft vocabulary.
        num_steps: draft tokens.

    """
    embeddings, output = target
    hidden = head.unroll(
        batch.states, functional.embedding(batch.token_ids[:, 1:], embeddings), batch.anchors, num_steps
    )
    counts = torch.zeros(num_steps, 2, dtype=torch.int64)
    alive = torch.ones_like(batch.valid(0))
    for step, rows in enumerate(hidden):
        valid = batch.valid(step) & alive
        choices = ids[head.lm_head(rows[valid]).argmax(-1)]
        wanted = (batch.finals_of(step)[valid].to(output.dtype) @ output.T).argmax(-1)
        counts[step, 0] = valid.sum()
        counts[step, 1] = (choices == wanted).sum()
        alive = torch.zeros_like(alive).masked_scatter(valid, choices == wanted)
    return counts
