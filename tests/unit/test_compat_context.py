"""The wrappers of the model runner, on a stand-in for it: who is called how, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_specx._compat import context

ARGUMENTS = dict.fromkeys(
    (
        "sampling_metadata",
        "hidden_states",
        "sample_hidden_states",
        "aux_hidden_states",
        "common_attn_metadata",
    )
)


def logits_of(*choices: int) -> torch.Tensor:
    """(len(choices), 10) with these for argmax."""
    return torch.nn.functional.one_hot(torch.tensor(choices), 10).to(torch.bfloat16)


def metadata_of(*num_draft_tokens: int) -> Any:
    return SimpleNamespace(num_draft_tokens=list(num_draft_tokens))


class Drafter:
    def __init__(self, **flags: bool) -> None:
        vars(self).update(flags)
        self.calls: list[dict[str, Any]] = []

    def propose(self, *args: Any, **kwargs: Any) -> str:
        self.calls.append(kwargs)
        return "drafts"


class Runner(SimpleNamespace):
    _sample = context._sample(lambda self, logits, metadata: logits.zero_() is not None and "sampled")
    _input_fits_in_drafter = context._fits(lambda self, metadata: "vLLM's answer")
    propose_draft_token_ids = context._propose(lambda self, *args: ("vLLM's call", args))


def runner(method: str | None = "custom_class", **flags: bool) -> Runner:
    return Runner(
        speculative_config=None if method is None else SimpleNamespace(method=method),
        drafter=Drafter(**flags),
        input_batch=SimpleNamespace(req_ids=["a", "b"], num_tokens_no_spec="n", token_ids_cpu="t"),
        requests={"a": 1, "b": 2},
        max_model_len=64,
    )


def step(target: Runner, num_draft_tokens: list[int] | None = None) -> Any:
    metadata = None if num_draft_tokens is None else SimpleNamespace(num_draft_tokens=num_draft_tokens)
    return target.propose_draft_token_ids(
        SimpleNamespace(num_spec_tokens_to_schedule=5),
        [[1], [2]],
        spec_decode_metadata=metadata,
        slot_mappings="slots",
        **ARGUMENTS,
    )


@pytest.mark.parametrize(
    ("method", "flags"),
    [
        (None, {}),
        ("custom_class", {}),
        ("custom_class", {"wants_context": False}),
        ("custom_class", {"wants_target_token_ids": True}),
        ("ngram", {"wants_context": True, "wants_target_token_ids": True}),
    ],
)
def test_others_are_called_as_vllm_does(method: str | None, flags: dict[str, bool]) -> None:
    target = runner(method, **flags)
    assert target._sample(logits_of(7, 8), metadata_of(1)) == "sampled"
    assert not hasattr(target, "_target_token_ids")
    assert target._input_fits_in_drafter("metadata") == "vLLM's answer"
    assert step(target)[0] == "vLLM's call"
    assert target.drafter.calls == []


def test_rank_without_a_drafter() -> None:
    target = runner()
    del target.drafter
    assert target._input_fits_in_drafter("metadata") == "vLLM's answer"
    assert target._sample(logits_of(7), None) == "sampled"


def test_context_of_a_step() -> None:
    target = runner(wants_context=True, wants_target_token_ids=True)
    assert target._sample(logits_of(7, 8, 9), metadata_of(1, 0)) == "sampled"  # clears the logits in place
    assert step(target, [1, 0]) == "drafts"
    (call,) = target.drafter.calls
    assert set(call) == {"slot_mappings", "context"}
    seen = call["context"]
    assert (seen.req_ids, seen.num_draft_tokens) == (["a", "b"], [1, 0])
    assert seen.target_token_ids.tolist() == [7, 8, -1], "the second row had no draft"
    assert seen.target_token_ids.dtype == torch.int32
    assert (seen.num_spec_tokens, seen.max_model_len, seen.requests) == (5, 64, {"a": 1, "b": 2})

    target.input_batch.req_ids.reverse()
    assert seen.req_ids == ["a", "b"], "rows move after the step; the context's do not"


def test_choices_do_not_outlive_their_step() -> None:
    target = runner(wants_context=True, wants_target_token_ids=True)
    target._sample(logits_of(7, 8), metadata_of(1))
    step(target, [1])
    target._sample(logits_of(7), None)  # without drafts there is nothing to know beside the sampled token
    step(target)
    target._sample(logits_of(7), metadata_of(0))
    step(target, [0])
    told = [call["context"].target_token_ids for call in target.drafter.calls]
    assert (told[0].tolist(), told[1:]) == ([7, 8], [None, None])
    assert target.drafter.calls[1]["context"].num_draft_tokens is None


def test_choices_are_taken_only_when_wanted() -> None:
    target = runner(wants_context=True)
    target._sample(logits_of(7, 8), metadata_of(1))
    step(target, [1])
    assert target.drafter.calls[0]["context"].target_token_ids is None


def test_always_asked_when_there_is_metadata() -> None:
    target = runner(wants_context=True)
    assert target._input_fits_in_drafter("metadata") is True
    assert target._input_fits_in_drafter(None) == "vLLM's answer"
