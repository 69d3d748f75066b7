"""`vllm_specx.SuffixTreeProposer`: the suffix-tree drafter behind vLLM's custom_class hook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from drafters import Draft, FallbackDrafter, SuffixTreeDrafter
from vllm_specx.memory.namespaces import parts_of
from vllm_specx.proposers._base import DrafterProposer, RunsOnV2
from vllm_specx.proposers._fleet import join_fleet
from vllm_specx.proposers._memory import make_keeper
from vllm_specx.proposers.lookahead import make_lookahead, tell_choices
from vllm_specx.tuner import Step

if TYPE_CHECKING:
    from vllm_specx.fleet.member import Member
    from vllm_specx.memory.keeper import MemoryKeeper


class SuffixTreeProposer(RunsOnV2, DrafterProposer):
    """Draft from what each request, and earlier answers, said before; with Lookahead behind it where that is asked for.

    Args:
        vllm_config: the engine's configuration; options come from its additional_config["specx"].

    Raises:
        ConfigError: options or draft length that cannot be honoured, or a memory file that cannot be used.

    """

    kind = "suffix_tree"

    def __init__(self, vllm_config: Any) -> None:
        self._keeper: MemoryKeeper | None = None
        self._member: Member | None = None
        super().__init__(vllm_config)
        self._keeper = make_keeper(self._options, vllm_config)
        if self._keeper is not None:
            self._keeper.attach(self._text, self._requests)
            self._keeper.open(self)
        if self._options.fleet is not None:  # a head alone has no text to share
            capacity = self._text.memory.capacity
            self._member = join_fleet(self._options, vllm_config, self, capacity, self._policy)
        if self._member is not None:
            self._member.attach(self._text)
            self._member.report_to(self.metrics.state)

    def load_model(self, target_model: Any) -> None:
        """See `DrafterProposer.load_model`; and wait, before there are requests, for what the fleet has learnt.

        Raises:
            ConfigError: the fleet is required, and was not joined.

        """
        super().load_model(target_model)
        if self._member is not None:
            self._member.wait(self._text)

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
        context: Any = None,
    ) -> list[list[int]]:
        """Return a draft per row, each possibly empty; never raises. See `DrafterProposer.propose`."""
        with nullcontext() if self._keeper is None else self._keeper.within_work():
            drafts = super().propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, context=context)
            if self._member is not None:
                self._share(self._member)
            if self._keeper is not None:
                self._keeper.tick()
            return drafts

    def _share(self, member: Member) -> None:
        try:
            self._requests.stop_ended()
        except Exception as error:  # the next step finds the drafter broken, and replaces it
            self._fault(f"{type(error).__name__}: {error}")
        member.tick(self._text, self._purge_here)

    def _purge_here(self, parts: Sequence[str]) -> None:
        """Forget what others had forgotten."""
        self._change_memory(lambda: self._purge(parts), rewrite=True)

    def on_weights_changed(self) -> None:
        """See `DrafterProposer.on_weights_changed`; the memory file and the fleet are left alone."""
        self._forget_alone()

    def forget(self) -> int:
        """Forget all, in the memory file and the fleet too; returns the number of answers. See `vllm_specx.forget`."""
        num_documents = self._forget_alone(rewrite=True)
        if self._member is not None:
            self._member.purge(())
        return num_documents

    def purge(self, cache_salt: str | None = None, adapter: str | None = None) -> int:
        """Forget what a tenant and an adapter said; returns the number of answers. See `vllm_specx.purge`."""
        parts = parts_of(cache_salt, adapter)
        num_documents = self._change_memory(lambda: self._purge(parts), rewrite=True)
        if self._member is not None:  # after the requests that were ended have told it what they said
            self._member.purge(parts)
        return num_documents

    def _forget_alone(self, *, rewrite: bool = False) -> int:
        """Forget all, without a word to the fleet of what live requests have said by now."""
        if self._member is not None:
            self._text.on_answer = None
        num_documents = self._change_memory(self._forget, rewrite=rewrite)
        if self._member is not None:
            self._member.clear()
            self._member.attach(self._text)
        return num_documents

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
        if self._member is not None:
            self._member.attach(self._text)

    def _replace_drafter(self) -> None:
        super()._replace_drafter()
        if self._keeper is not None:
            self._keeper.load_again()
