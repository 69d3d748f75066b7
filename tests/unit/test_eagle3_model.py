"""The head's unrolled drafts against drafting one token at a time, and what batches say of them."""

from __future__ import annotations

import pytest
import torch
from heads import CONFIG, HIDDEN, LAYERS, VOCAB, conversations
from torch.nn import functional

from drafters.batches import batches_from, make_batch, num_anchors
from drafters.eagle3.model import Eagle3Config, Eagle3Head

STEPS = 4


@pytest.fixture(scope="module")
def head() -> Eagle3Head:
    torch.manual_seed(1)
    made = Eagle3Head(Eagle3Config.of(CONFIG, 20, LAYERS)).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


@pytest.fixture(scope="module")
def embeddings() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def one_by_one(
    head: Eagle3Head, states: torch.Tensor, embeds: torch.Tensor, anchor: int
) -> list[torch.Tensor]:
    """Draft as an engine does: a cache of keys and values, one position at a time (EAGLE-3, section 3.1)."""
    layer, attention, c = head.midlayer, head.midlayer.self_attn, head.config
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []

    def rotate(x: torch.Tensor, position: int) -> torch.Tensor:
        half = c.head_dim // 2
        out = x.clone()
        for i in range(half):
            angle = torch.tensor(position * c.rope_theta ** (-i / half), dtype=torch.float64)
            left, right = x[..., i], x[..., half + i]
            out[..., i] = left * angle.cos() - right * angle.sin()
            out[..., half + i] = right * angle.cos() + left * angle.sin()
        return out

    def forward(hidden: torch.Tensor, embed: torch.Tensor, position: int) -> torch.Tensor:
        mixed = torch.cat([layer.input_layernorm(embed), layer.hidden_norm(hidden)])
        keys.append(rotate(attention.k_proj(mixed).view(c.num_key_value_heads, c.head_dim), position))
        values.append(attention.v_proj(mixed).view(c.num_key_value_heads, c.head_dim))
        query = rotate(attention.q_proj(mixed).view(c.num_attention_heads, c.head_dim), position)
        groups = c.num_attention_heads // c.num_key_value_heads
        out = []
        for h in range(c.num_attention_heads):
            scores = torch.stack([query[h] @ key[h // groups] for key in keys]) / c.head_dim**0.5
            weights = scores.softmax(0)
            out.append(sum(w * value[h // groups] for w, value in zip(weights, values, strict=True)))
        hidden = hidden + attention.o_proj(torch.cat(out))
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    outputs = []
    for position in range(anchor + 1):
        parts = states[position].split(c.hidden_size)
        fused = head.fc(torch.cat([norm(part) for norm, part in zip(head.fc_norm, parts, strict=True)]))
        hidden = forward(fused, embeds[position], position)
    outputs.append(head.norm(hidden))
    for step in range(1, STEPS):
        hidden = forward(hidden, embeds[anchor + step], anchor + step)
        outputs.append(head.norm(hidden))
    return outputs


def test_unrolled_drafts_are_those_of_one_token_at_a_time(head: Eagle3Head, embeddings: torch.Tensor) -> None:
    said = conversations(3, embeddings)
    batch = make_batch(said, STEPS)
    embeds = functional.embedding(batch.token_ids[:, 1:], embeddings)
    states = batch.states.double()
    unrolled = head.unroll(states, embeds, batch.anchors, STEPS)
    for row in range(len(said)):
        for a in (0, num_anchors(said[row]) // 2, num_anchors(said[row]) - 1):
            wanted = one_by_one(head, states[row], embeds[row], int(batch.anchors[row, a]))
            for step in range(STEPS):
                torch.testing.assert_close(unrolled[step][row, a], wanted[step], atol=1e-6, rtol=1e-5)


def test_later_tokens_do_not_reach_earlier_anchors(head: Eagle3Head, embeddings: torch.Tensor) -> None:
    batch = make_batch(conversations(1, embeddings), STEPS)
    embeds = functional.embedding(batch.token_ids[:, 1:], embeddings)
    before = head.unroll(batch.states.double(), embeds, batch.anchors[:, :1], 2)
    at = int(batch.anchors[0, 0])
    states = batch.states.double().clone()
    states[:, at + 1 :] = 9.0
    embeds = embeds.clone()
    embeds[:, at + 2 :] = 9.0
    after = head.unroll(states, embeds, batch.anchors[:, :1], 2)
    for x, y in zip(before, after, strict=True):
        torch.testing.assert_close(x, y)


def test_anchors_are_the_places_to_draft_from_in_an_answer(embeddings: torch.Tensor) -> None:
    said = conversations(4, embeddings, seed=2)
    batch = make_batch(said, STEPS)
    for row, conversation in enumerate(said):
        for step in range(STEPS):
            anchors = batch.anchors[row][batch.valid(step)[row]].tolist()
            # The first draft follows the answer's first token; each needs a token to be compared with.
            assert anchors == list(range(conversation.answer - 1, len(conversation) - 2 - step))


def test_a_resumed_order_is_the_order(embeddings: torch.Tensor) -> None:
    said = conversations(11, embeddings)
    whole = batches_from(said, 4, seed=5, first_step=0, max_steps=2)
    tokens = [next(whole).token_ids for _ in range(9)]
    for first in (1, 3, 7):
        resumed = batches_from(said, 4, seed=5, first_step=first, max_steps=2)
        for wanted in tokens[first:]:
            assert torch.equal(next(resumed).token_ids, wanted)
    seen = sorted(row for batch in tokens[:3] for row in batch[:, 0].tolist())
    assert seen == sorted(int(c.token_ids[0]) for c in said)  # an epoch is all of them, once
