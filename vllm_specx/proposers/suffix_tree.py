"""`vllm_specx.SuffixTreeProposer`: the suffix-tree drafter behind vLLM's custom_class hook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from drafters import Draft, FallbackDrafter, SuffixTreeDrafter
from vllm_specx.proposers._base import DrafterProposer, RunsOnV2
from vllm_specx.proposers._memory import make_keeper
from vllm_specx.proposers.lookahead import make_lookahead, tell_choices
from vllm_specx.tuner import Step


class SuffixTreeProposer(RunsOnV2, DrafterProposer):
    """Draft from what each request, and earlier answers, said before; with Lookahead behind it where that is asked for.

    Args:
        vllm_config: the engine's configuration; options come from its additional_config["specx"].

    Raises:
        ConfigError: options or draft length that cannot be honoured, or a memory file that cannot be used.

    """

    kind = "suffix_tree"

    def __init__(self, vllm_config: Any) -> None:
        self._keeper = None
        super().__init__(vllm_config)
        self._keeper = make_keeper(self._options, vllm_config)
        if self._keeper is not None:
            self._keeper.attach(self._text, self._requests)
            self._keeper.open(self)

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
        context: Any = None,
    ) -> list[list[int]]:
        """Return a draft per row, each possibly empty; never raises. See `DrafterProposer.propose`."""
        if self._keeper is None:
            return super().propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, context=context)
        with self._keeper.within_work():
            drafts = super().propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, context=context)
            self._keeper.tick()
            return drafts

    def on_weights_changed(self) -> None:
        """See `DrafterProposer.on_weights_changed`; the memory file is left alone."""
        self._change_memory(self._forget)

    def forget(self) -> int:
        """Forget all, in the memory file too; returns the number of answers. See `vllm_specx.forget`."""
        return self._change_memory(self._forget, rewrite=True)

    def purge(self, cache_salt: str | None = None, adapter: str | None = None) -> int:
        """Forget what a tenant and an adapter said; returns the number of answers. See `vllm_specx.purge`."""
        return self._change_memory(lambda: self._purge(cache_salt, adapter), rewrite=True)

    def _change_memory(self, change: Callable[[], int], *, rewrite: bool = False) -> int:
        if self._keeper is None:
            return change()
        with self._keeper.within_work():
            num_documents = change()
            if rewrite:
                self._keeper.rewrite()
        return num_documents

    @property
    def wants_target_token_ids(self) -> bool:
        """Whether the target's own choices are of use (see ProposerContext)."""
        return "lookahead" in self._options.drafters

    def _state(self) -> dict[str, float]:
        memory = self._text.memory
        return super()._state() | {
            "specx_memory_bytes": self._text.num_bytes,
            "specx_memory_answers": memory.num_documents,
            "specx_memory_evictions": memory.num_evicted,
            "specx_memory_hits": self._text.num_hits,
        }

    def _kind_of(self, row: int, request_id: str) -> str:
        if isinstance(self.drafter, FallbackDrafter) and self.drafter.is_second(request_id):
            return "lookahead"
        return self.kind

    def _make_drafter(self) -> Any:
        options = self._options
        self._text = SuffixTreeDrafter(
            max_n=self.num_speculative_tokens,
            memory_bytes=options.memory_bytes if options.shared else 0,
            ttl=options.memory_ttl_s or None,
        )
        if "lookahead" not in options.drafters:
            return self._text
        return FallbackDrafter(self._text, make_lookahead(options, self.num_speculative_tokens))

    def _learn(self, step: Step, context: Any, sampled: Sequence[Sequence[int]]) -> None:
        super()._learn(step, context, sampled)
        if isinstance(self.drafter, FallbackDrafter):
            tell_choices(self.drafter, context, sampled, self._offered)

    def _draft(
        self, rows: Sequence[int], request_ids: Sequence[str], limits: Sequence[int]
    ) -> Sequence[Draft]:
        if isinstance(self.drafter, FallbackDrafter):
            self.drafter.price = self._policy.token_price
        return super()._draft(rows, request_ids, limits)

    def _start_over(self) -> None:
        super()._start_over()
        if self._keeper is not None:
            self._keeper.attach(self._text, self._requests)

    def _replace_drafter(self) -> None:
        super()._replace_drafter()
        if self._keeper is not None:
            self._keeper.load_again()
