"""Puts a proposer of ours between vLLM's model runner and its EAGLE-3 drafter.

One method of the runner is wrapped, which it calls once its EAGLE-3 head is loaded. A runner whose configuration wants
one gets a `propose_draft_token_ids` of its own then, which asks the proposer, which asks the method that was there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_specx._compat import fingerprints
from vllm_specx._compat.apply import is_applied, replace
from vllm_specx._compat.context import context_of
from vllm_specx._compat.versions import check_supported
from vllm_specx.hybrid import is_head_alone, is_wanted

PATCH = "hybrid-runner"
# What is called on a drafter from outside (see drafter_calls and bench.engine).
_CALLS = ("forget", "on_weights_changed", "purge", "reset_memory", "set_enabled")


def install() -> None:
    """Wrap `GPUModelRunner._setup_eagle3_aux_hidden_state_outputs`. Imports it. Idempotent.

    Raises UnsupportedVLLM where it, or what the passes of a head are taken over from, is other code.
    """
    minor = check_supported()
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from vllm_specx._compat import drafter_calls

    for target, owner in (
        (fingerprints.HEAD_SETUP, GPUModelRunner),
        (fingerprints.HEAD_PROPOSE, SpecDecodeBaseProposer),
        (fingerprints.HEAD_CHOICE, SpecDecodeBaseProposer),
    ):
        name = target.rpartition(".")[2]
        if not is_applied(owner, name, PATCH):
            fingerprints.require_pristine(target, vars(owner).get(name), minor)
    replace(GPUModelRunner, "_setup_eagle3_aux_hidden_state_outputs", _set_up, patch=PATCH)
    drafter_calls.install_worker_side()


def _set_up(original: Callable[..., Any]) -> Any:
    def _setup_eagle3_aux_hidden_state_outputs(self: Any) -> None:
        original(self)
        if getattr(self, "drafter", None) is not None and is_wanted(self.vllm_config):
            _attach(self)

    return _setup_eagle3_aux_hidden_state_outputs


def _attach(runner: Any) -> None:
    from vllm_specx.proposers.eagle3 import AdaptiveEagle3Proposer
    from vllm_specx.proposers.hybrid import HybridProposer

    proposer = AdaptiveEagle3Proposer if is_head_alone(runner.vllm_config) else HybridProposer
    hybrid = proposer(runner.vllm_config, runner.drafter)
    hybrid.load_model(runner.get_model())
    runner.drafter.specx = hybrid
    for name in _CALLS:
        setattr(runner.drafter, name, getattr(hybrid, name))
    draft = runner.propose_draft_token_ids

    def propose_draft_token_ids(
        scheduler_output: Any,
        sampled_token_ids: Any,
        sampling_metadata: Any,
        hidden_states: Any,
        sample_hidden_states: Any,
        aux_hidden_states: Any,
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        slot_mappings: Any,
    ) -> list[list[int]]:
        context = context_of(
            runner, scheduler_output, spec_decode_metadata, sample_hidden_states, aux_hidden_states
        )

        def run(depth: int) -> Any:
            scheduler_output.num_spec_tokens_to_schedule = depth
            return draft(
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

        batch = runner.input_batch
        drafts = hybrid.propose_with(
            run, sampled_token_ids, batch.num_tokens_no_spec, batch.token_ids_cpu, context
        )
        if runner._draft_probs is not None:
            runner._draft_probs = hybrid.probabilities(runner._draft_probs, drafts)
        return drafts

    runner.propose_draft_token_ids = propose_draft_token_ids
