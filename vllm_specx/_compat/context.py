"""Runtime form of the proposer-context patch: see patches/README.md.

The scheduler's side (cache_salt) goes in when the plug-in is registered. Importing the model runner there
would cost every vLLM process a second, so its methods are wrapped when a custom proposer is created: the
runner creates it while it is constructed, before any of them is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_specx._compat import drafter_calls, fingerprints
from vllm_specx._compat.apply import is_applied, replace
from vllm_specx._compat.versions import check_supported

if TYPE_CHECKING:
    import torch
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

PATCH = "proposer-context"
_RUNNER_MODULE = "vllm.v1.worker.gpu_model_runner"


@dataclass(frozen=True, slots=True)
class ProposerContext:
    """What the model runner knows about the step that has just been sampled. Valid during `propose` only.

    Where the installed vLLM brings a class of this name, proposers get that one; the fields are the same.
    """

    req_ids: list[str]
    """Row i of every argument belongs to request `req_ids[i]`."""
    requests: dict[str, CachedRequestState]
    """Every request that the runner knows, by id."""
    scheduler_output: SchedulerOutput
    """The step that has just been run."""
    num_spec_tokens: int
    """The most drafts that may be returned for a row."""
    max_model_len: int
    """No row may grow beyond this many tokens, drafts included; the proposer sees to it."""
    num_draft_tokens: list[int] | None
    """Drafts verified per row in this step; None if no row had any."""
    target_token_ids: torch.Tensor | None
    """int32, (sum(num_draft_tokens) + num_reqs,), on the host: the target's argmax at each draft position and at
    the bonus position, row by row, after the grammar's mask; -1 for a row without drafts. None where no row
    had any, and unless `wants_target_token_ids`."""
    sample_hidden_states: torch.Tensor
    """(sum(num_draft_tokens) + num_reqs, hidden_size): what the logits came from."""
    aux_hidden_states: list[torch.Tensor] | None
    """Auxiliary hidden states of the target, if it puts any out."""


def context_of(
    runner: Any,
    scheduler_output: Any,
    spec_decode_metadata: Any,
    sample_hidden_states: Any,
    aux_hidden_states: Any,
) -> ProposerContext:
    """The context of the step that `runner` has just sampled; takes the target's choices from it, if it has any."""
    return ProposerContext(
        req_ids=runner.input_batch.req_ids.copy(),
        requests=runner.requests,
        scheduler_output=scheduler_output,
        num_spec_tokens=scheduler_output.num_spec_tokens_to_schedule,
        max_model_len=runner.max_model_len,
        num_draft_tokens=None if spec_decode_metadata is None else spec_decode_metadata.num_draft_tokens,
        target_token_ids=runner.__dict__.pop("_target_token_ids", None),
        sample_hidden_states=sample_hidden_states,
        aux_hidden_states=aux_hidden_states,
    )


def is_present() -> bool:
    """Whether the installed vLLM has the diff applied."""
    from vllm.v1.spec_decode import custom_class_proposer

    return hasattr(custom_class_proposer, "ProposerContext")


def install_scheduler_side() -> None:
    """Carry cache_salt to the workers and let `create_custom_proposer` bring the runner's wrappers."""
    minor = check_supported()
    from vllm.v1.core.sched.output import NewRequestData
    from vllm.v1.spec_decode import custom_class_proposer

    _wrap(NewRequestData, "from_request", _from_request, fingerprints.FROM_REQUEST, minor)
    # An instance attribute survives pickling, which is how every executor sends these objects; the class
    # attribute answers for those that vLLM makes by other ways (its warm-up does).
    NewRequestData.cache_salt = None
    _wrap(custom_class_proposer, "create_custom_proposer", _create, fingerprints.CREATE, minor)
    if hasattr(sys.modules.get(_RUNNER_MODULE), "GPUModelRunner"):
        # It holds the original create_custom_proposer under a name of its own.
        install_runner_side()


def install_runner_side() -> None:
    """Wrap the methods of GPUModelRunner. Imports it."""
    minor = check_supported()
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    _wrap(GPUModelRunner, "_sample", _sample, fingerprints.SAMPLE, minor)
    _wrap(GPUModelRunner, "_input_fits_in_drafter", _fits, fingerprints.FITS, minor)
    _wrap(GPUModelRunner, "propose_draft_token_ids", _propose, fingerprints.PROPOSE, minor)


def _wrap(owner: Any, name: str, make: Callable[..., Any], target: str, minor: str) -> None:
    if not is_applied(owner, name, PATCH):
        fingerprints.require_pristine(target, vars(owner).get(name), minor)
        replace(owner, name, make, patch=PATCH)


def _from_request(original: Callable[..., Any]) -> Any:
    def from_request(cls: type, request: Any, *args: Any, **kwargs: Any) -> Any:
        data = original(cls, request, *args, **kwargs)
        data.cache_salt = request.cache_salt
        return data

    return from_request


def _create(original: Callable[..., Any]) -> Any:
    def create_custom_proposer(vllm_config: Any) -> Any:
        install_runner_side()
        drafter_calls.install_worker_side()
        return original(vllm_config)

    return create_custom_proposer


def _wants_context(runner: Any) -> bool:
    config = runner.speculative_config
    if config is None or config.method != "custom_class":
        return False
    # Only the last pipeline rank has a drafter.
    return bool(getattr(getattr(runner, "drafter", None), "wants_context", False))


def _sample(original: Callable[..., Any]) -> Any:
    def _sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
        # Before sampling, because logits processors change the logits in place.
        wanted = spec_decode_metadata is not None and _wants_context(self)
        if wanted and getattr(self.drafter, "wants_target_token_ids", False):
            self._target_token_ids = _target_choices(logits, spec_decode_metadata.num_draft_tokens)
        return original(self, logits, spec_decode_metadata)

    return _sample


def _target_choices(logits: Any, num_draft_tokens: list[int]) -> torch.Tensor | None:
    import torch

    counts = np.asarray(num_draft_tokens)
    if not counts.any():
        return None
    places = torch.from_numpy(np.flatnonzero(np.repeat(counts > 0, counts + 1)))
    chosen = torch.full(logits.shape[:1], -1, dtype=torch.int32)
    # In half precision argmax takes ten times as long on a CPU.
    chosen[places] = logits[places.to(logits.device)].float().argmax(dim=-1).int().to(chosen.device)
    return chosen


def _fits(original: Callable[..., Any]) -> Any:
    def _input_fits_in_drafter(self: Any, common_attn_metadata: Any) -> bool:
        # vLLM's test is for the whole batch: one request near max_model_len would silence every row.
        if common_attn_metadata is not None and _wants_context(self):
            return True
        return original(self, common_attn_metadata)

    return _input_fits_in_drafter


def _propose(original: Callable[..., Any]) -> Any:
    def propose_draft_token_ids(
        self: Any,
        scheduler_output: Any,
        sampled_token_ids: Any,
        sampling_metadata: Any,
        hidden_states: Any,
        sample_hidden_states: Any,
        aux_hidden_states: Any,
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        slot_mappings: Any,
    ) -> Any:
        if not _wants_context(self):
            return original(
                self,
                scheduler_output,
                sampled_token_ids,
                sampling_metadata,
                hidden_states,
                sample_hidden_states,
                aux_hidden_states,
                spec_decode_metadata,
                common_attn_metadata,
                slot_mappings,
            )
        context = context_of(
            self, scheduler_output, spec_decode_metadata, sample_hidden_states, aux_hidden_states
        )
        self._draft_probs = None
        self._draft_prob_req_ids = None
        return self.drafter.propose(
            sampled_token_ids,
            self.input_batch.num_tokens_no_spec,
            self.input_batch.token_ids_cpu,
            slot_mappings=slot_mappings,
            context=context,
        )

    return propose_draft_token_ids
