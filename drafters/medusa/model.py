"""The heads: residual blocks on the target's last hidden state, one chain a head, all heads in one product.

Head k says what comes k+2 tokens after the token of the state; the target itself says what comes next. Its blocks are
x + SiLU(W x + b) (Cai et al. 2024, equation 1). With `token_input` the first block also reads the embedding of the next
token, which is known by the time of drafting (as in Ankner et al. 2024, Hydra, section 3.1, for the first head).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class MedusaConfig:
    """Sizes; `draft_vocab_size` is that of the output matrix, and `has_output`: each head has one of its own."""

    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    num_heads: int
    num_layers: int = 1
    token_input: bool = False
    has_output: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class MedusaHeads(nn.Module):
    """The parameters of all heads; embeddings, and the output matrix unless the heads have it, are the target's."""

    def __init__(self, config: MedusaConfig) -> None:
        """Begin with heads that say what the target says of the next token."""
        super().__init__()
        self.config = c = config
        widths = [c.hidden_size * (2 if c.token_input and layer == 0 else 1) for layer in range(c.num_layers)]
        # As products take them: (heads, in, out).
        self.weight = nn.ParameterList(torch.zeros(c.num_heads, width, c.hidden_size) for width in widths)
        self.bias = nn.ParameterList(torch.zeros(c.num_heads, 1, c.hidden_size) for _ in widths)
        if c.has_output:
            self.output = nn.Parameter(torch.zeros(c.num_heads, c.hidden_size, c.draft_vocab_size))

    def states(self, hidden: torch.Tensor, embeds: torch.Tensor | None, n: int) -> torch.Tensor:
        """Return what the output matrix is applied to, (n, rows, hidden), of the first n heads.

        Args:
            hidden: (rows, hidden), the target's last states.
            embeds: (rows, hidden), embeddings of the tokens after them; needed with `token_input`.
            n: number of heads.

        """
        x = hidden.expand(n, -1, -1)
        for layer, (weight, bias) in enumerate(zip(self.weight, self.bias, strict=True)):
            read = x
            if layer == 0:
                read = self.first_input(hidden, embeds).expand(n, -1, -1)
            x = x + functional.silu(torch.baddbmm(bias[:n], read, weight[:n]))
        return x

    def first_input(self, hidden: torch.Tensor, embeds: torch.Tensor | None) -> torch.Tensor:
        """What the first block reads: (rows, in)."""
        if not self.config.token_input:
            return hidden
        assert embeds is not None
        return torch.cat([hidden, embeds], dim=-1)

    def logits(self, states: torch.Tensor, shared: torch.Tensor | None) -> torch.Tensor:
        """Return (n, rows, draft_vocab) of `states`; shared: (draft_vocab, hidden), unless the heads have their own."""
        if self.config.has_output:
            return torch.bmm(states, self.output[: len(states)])
        assert shared is not None
        return functional.linear(states, shared)
