"""The head: three of the target's states fused, one decoder layer, an output matrix over a reduced vocabulary.

Parameters are named as in the checkpoints that vLLM loads (architecture LlamaForCausalLMEagle3). At position t the head
reads the state of token t and the embedding of token t+1, and says what token t+2 is; a further draft token is had from
the head's own state instead of the target's (Li et al. 2025, EAGLE-3, section 3.1).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Eagle3Config:
    """Sizes of a head; `layers` are the target's layers whose inputs it reads."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    vocab_size: int
    draft_vocab_size: int
    num_target_layers: int
    layers: tuple[int, ...]

    @classmethod
    def of(cls, target: dict[str, Any], draft_vocab_size: int, layers: tuple[int, ...]) -> Eagle3Config:
        """The sizes that fit a target's config.json."""
        hidden, heads = target["hidden_size"], target["num_attention_heads"]
        rope = target.get("rope_parameters") or {}
        return cls(
            hidden_size=hidden,
            intermediate_size=target.get("intermediate_size", 4 * hidden),
            num_attention_heads=heads,
            num_key_value_heads=target.get("num_key_value_heads") or heads,
            head_dim=target.get("head_dim") or hidden // heads,
            rms_norm_eps=target.get("rms_norm_eps", 1e-6),
            rope_theta=float(rope.get("rope_theta") or target.get("rope_theta") or 10_000.0),
            max_position_embeddings=target.get("max_position_embeddings", 2048),
            vocab_size=target["vocab_size"],
            draft_vocab_size=draft_vocab_size,
            num_target_layers=target["num_hidden_layers"],
            layers=layers,
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "layers": list(self.layers)}


class RMSNorm(nn.Module):
    """As in Llama; computed in the precision of its weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps)


class _Attention(nn.Module):
    def __init__(self, c: Eagle3Config) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2 * c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)


class _MLP(nn.Module):
    def __init__(self, c: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, c: Eagle3Config) -> None:
        super().__init__()
        self.self_attn = _Attention(c)
        self.mlp = _MLP(c)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.hidden_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)


class Eagle3Head(nn.Module):
    """The trainable parameters; embeddings are the target's and not among them."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        self.fc_norm = nn.ModuleList(RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in config.layers)
        self.fc = nn.Linear(len(config.layers) * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = _Layer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def unroll(
        self, states: torch.Tensor, embeds: torch.Tensor, anchors: torch.Tensor, num_steps: int
    ) -> list[torch.Tensor]:
        """Draft from every anchor at once, the true tokens given (training-time test, EAGLE-3, section 3.2).

        Args:
            states: (batch, tokens, layers * hidden), the target's.
            embeds: (batch, tokens + num_steps, hidden); row t is the embedding of token t+1.
            anchors: int64 (batch, anchors), positions to draft from, ascending in each row.
            num_steps: draft tokens of each anchor.

        Returns:
            num_steps tensors (batch, anchors, hidden), what `lm_head` is applied to: row a of the k-th says what
            token anchors[a] + 2 + k is.

        """
        layer, attention = self.midlayer, self.midlayer.self_attn
        chunks = states.split(self.config.hidden_size, dim=-1)
        hidden = self.fc(
            torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], dim=-1)
        )
        batch, num_tokens, size = hidden.shape
        positions = torch.arange(num_tokens, device=hidden.device).expand(batch, -1)
        mixed = torch.cat([layer.input_layernorm(embeds[:, :num_tokens]), layer.hidden_norm(hidden)], dim=-1)
        keys = self._rotated(self._split(attention.k_proj(mixed)), positions)
        values = self._split(attention.v_proj(mixed))
        # Of a position's own drafts an anchor sees all; of the target's states those up to its own position.
        hides = positions[:, None, None, :] > anchors[:, None, :, None]
        at = anchors[..., None].expand(-1, -1, size)
        hidden = hidden.gather(1, at)
        mixed = mixed.gather(1, anchors[..., None].expand(-1, -1, 2 * size))
        own_keys: list[torch.Tensor] = []
        own_values: list[torch.Tensor] = []
        outputs = []
        for step in range(num_steps):
            if step:
                embeds_here = embeds.gather(1, at + step)
                mixed = torch.cat([layer.input_layernorm(embeds_here), layer.hidden_norm(hidden)], dim=-1)
                own_keys.append(self._rotated(self._split(attention.k_proj(mixed)), anchors + step))
                own_values.append(self._split(attention.v_proj(mixed)))
            queries = self._rotated(self._split(attention.q_proj(mixed)), anchors + step)
            mixed_values = self._attend(queries, keys, values, hides, own_keys, own_values)
            hidden = hidden + attention.o_proj(mixed_values)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            outputs.append(self.norm(hidden))
        return outputs

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, heads * head_dim) to (batch, heads, tokens, head_dim)."""
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary position embedding, halves rotated. x: (batch, heads, tokens, head_dim)."""
        half = self.config.head_dim // 2
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        powers = torch.arange(half, device=x.device, dtype=wide) / half
        angles = positions[:, None, :, None].to(wide) * self.config.rope_theta**-powers
        sin, cos = angles.sin(), angles.cos()
        left, right = x.to(angles.dtype).split(half, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)

    def _attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        hides: torch.Tensor,
        own_keys: list[torch.Tensor],
        own_values: list[torch.Tensor],
    ) -> torch.Tensor:
        groups = self.config.num_attention_heads // self.config.num_key_value_heads
        num_tokens = keys.shape[2]

        def wide(x: torch.Tensor) -> torch.Tensor:
            return x.repeat_interleave(groups, dim=1)

        scores = (queries @ wide(keys).transpose(-1, -2)).float().masked_fill(hides, -torch.inf)
        own = [(queries * wide(key)).sum(-1, keepdim=True).float() for key in own_keys]
        weights = (
            (torch.cat([scores, *own], dim=-1) * self.config.head_dim**-0.5).softmax(-1).to(values.dtype)
        )
        out = weights[..., :num_tokens] @ wide(values)
        for i, value in enumerate(own_values):
            out = out + weights[..., num_tokens + i, None] * wide(value)
        return out.transpose(1, 2).flatten(2)
