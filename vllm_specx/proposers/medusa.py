"""`vllm_specx.MedusaProposer`: Medusa heads on the target's last hidden state, through vLLM's custom_class hook."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from drafters import NO_DRAFT, Draft
from drafters.head_reach import HeadReach
from vllm_specx import medusa_heads
from vllm_specx.config import ConfigError
from vllm_specx.proposers._base import DrafterProposer
from vllm_specx.proposers._depth import DepthRule
from vllm_specx.proposers._lengths import MeasuredCosts
from vllm_specx.proposers._nothing import NoText
from vllm_specx.proposers._outcomes import Drafted, no_drafts
from vllm_specx.proposers._pass_times import Line
from vllm_specx.tuner import Step


class MedusaProposer(DrafterProposer):
    """Draft one token with each head, as many heads as are worth it, all of them and all requests in one product.

    It runs on model runner V1; vLLM chooses that by itself for it.

    Args:
        vllm_config: the engine's configuration; options come from its additional_config["specx"].

    Raises:
        ConfigError: options, heads or draft length that cannot be honoured.

    """

    kind = "medusa"

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        assert isinstance(self._policy, MeasuredCosts)  # a stated cost has no effect here, and is refused
        self._costs = self._policy
        self._heads, ids = medusa_heads.load(vllm_config)
        self._ids: torch.Tensor | None = ids
        self._dtype: torch.dtype = vllm_config.model_config.dtype
        self._reach = HeadReach(self.num_speculative_tokens)
        self._depth = DepthRule(self.num_speculative_tokens)
        self._times = _HeadTimes()
        self._drafted = no_drafts()
        self._seconds = 0.0  # of drafting in the last step
        self._context: Any = None
        self._sampled: Sequence[Sequence[int]] = ()

    def load_model(self, target_model: Any) -> None:
        """Take the target's output matrix and embeddings, which the heads share.

        Raises:
            ConfigError: the target has none that could be shared.

        """
        super().load_model(target_model)
        output = getattr(getattr(target_model, "lm_head", None), "weight", None)
        embed = getattr(target_model, "embed_input_ids", None)
        vocab_size = self._heads.config.vocab_size
        if not isinstance(output, torch.Tensor) or not output.is_floating_point() or len(output) < vocab_size:
            raise ConfigError(
                f"{medusa_heads.NAME} shares the target's output matrix, and {type(target_model).__name__} has none "
                "that is not quantised"
            )
        if self._heads.config.token_input and embed is None:
            raise ConfigError(f"{type(target_model).__name__} has no embed_input_ids, which these heads need")
        self._embed = embed if self._heads.config.token_input else None
        self._heads.to(device=output.device, dtype=self._dtype)
        self._shared = None
        if not self._heads.config.has_output:
            rows = output.detach()[:vocab_size] if self._ids is None else output.detach()[self._ids]
            self._shared = rows.to(self._dtype).contiguous()
        if self._ids is not None:
            self._ids = self._ids.to(output.device)

    def reset_memory(self) -> None:
        """Forget calibration and what drafts earned; live requests go on."""
        super().reset_memory()
        self._reach.clear()
        self._depth.clear()

    def _make_drafter(self) -> Any:
        return NoText()

    def _learn(self, step: Step, context: Any, sampled: Sequence[Sequence[int]]) -> None:
        if step.seconds is not None:  # of which the costs are to know verification alone
            step = replace(step, seconds=step.seconds - self._seconds)
        self._seconds = 0.0
        super()._learn(step, context, sampled)
        self._drafted.teach(self._reach, context.req_ids, sampled)
        self._drafted = no_drafts()
        self._context, self._sampled = context, sampled

    def _draft(
        self, rows: Sequence[int], request_ids: Sequence[str], limits: Sequence[int]
    ) -> Sequence[Draft]:
        drafts = [NO_DRAFT] * len(rows)
        most = max(limits, default=0)
        if most == 0:
            return drafts
        can = np.array([limit > 0 for limit in limits])
        empty = [NO_DRAFT.reach] * len(rows)
        expected = self._reach.expected(self.num_speculative_tokens)
        n = self._depth.choose(self._costs, self._times, empty, expected[:most], can)
        if n == 0:
            return drafts
        asked = np.flatnonzero(can).tolist()
        start = time.perf_counter()
        token_ids, confidence = self._run([rows[i] for i in asked], n)
        self._seconds = time.perf_counter() - start
        self._times.line.update(len(asked) * n, self._seconds)
        at = {request_ids[i]: k for k, i in enumerate(asked)}
        self._drafted = Drafted(at, token_ids, confidence)
        reach = self._reach.reach(confidence)
        self._depth.note(self._depth.worth(reach), n)
        for k, i in enumerate(asked):
            drafts[i] = Draft(token_ids[k, : limits[i]].astype(np.int32), reach[k, : limits[i]])
        return drafts

    @torch.inference_mode()
    def _run(self, rows: Sequence[int], n: int) -> tuple[Any, Any]:
        """Return the choices of the first n heads, and how sure they are, (rows, n) each."""
        context, sampled = self._context, self._sampled
        counts = context.num_draft_tokens or [0] * len(sampled)
        starts = np.concatenate(([0], np.cumsum(np.asarray(counts) + 1)))
        # The state that the last committed token was chosen from.
        places = [int(starts[row]) + len(sampled[row]) - 1 for row in rows]
        hidden = context.sample_hidden_states[places].to(self._dtype)
        embeds = None
        if self._embed is not None:
            last = torch.tensor([sampled[row][-1] for row in rows], device=hidden.device)
            embeds = self._embed(last).to(self._dtype)
        logits = self._heads.logits(self._heads.states(hidden, embeds, n), self._shared).float()
        highest, choice = logits.max(dim=-1)
        confidence = (highest - logits.logsumexp(dim=-1)).exp()
        token_ids = choice if self._ids is None else self._ids[choice]
        return token_ids.T.cpu().numpy(), confidence.T.double().cpu().numpy()


class _HeadTimes:
    """What heads take, as `DepthRule` asks for it: no pass reads what was verified, and one product is all."""

    def __init__(self) -> None:
        self.line = Line(1e-3)  # seconds by rows of the product

    def read(self, num_tokens: float) -> float:
        """Nothing is read."""
        return 0.0

    def drafting(self, num_requests: int, depth: int) -> float:
        """Seconds of that many heads."""
        return self.line(num_requests * depth) if depth else 0.0

    def sample(self, num_requests: float) -> float:
        """Seconds of the first head."""
        return self.line(num_requests)

    def more(self, num_requests: float) -> float:
        """Seconds of one more."""
        return self.line(2 * num_requests) - self.line(num_requests)
