"""A custom proposer that records every context it gets, and an engine run with it.

    python context_recorder.py MODEL OUT.jsonl [mp]

runs fixed prompts and writes one line a call of `propose`, then one line with the outputs and with how the
context came in. With `mp` the scheduler and the worker are processes of their own.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MAX_MODEL_LEN = 96
NUM_SPEC_TOKENS = 6
_LOG = "SPECX_TEST_CONTEXT_LOG"


class Recorder:
    """Drafts what followed the last earlier occurrence of a row's last token; logs its context."""

    wants_context = True
    wants_target_token_ids = True

    def __init__(self, vllm_config: Any) -> None:
        self.path = os.environ[_LOG]

    def load_model(self, target: Any) -> None:
        """The CPU runner calls this without asking whether it exists."""

    def propose(
        self, sampled: Any, num_tokens: Any, tokens: Any, slot_mappings: Any, *, context: Any
    ) -> list[list[int]]:
        drafts = []
        for i, new in enumerate(sampled):
            row = tokens[i, : num_tokens[i]]
            room = min(context.num_spec_tokens, context.max_model_len - len(row) - 1)
            earlier = (row[:-1] == row[-1]).nonzero()[0] if new and room > 0 else ()
            drafts.append(row[earlier[-1] + 1 :][:room].tolist() if len(earlier) else [])
        step = context.scheduler_output
        record = {
            "req_ids": context.req_ids,
            "alive": sorted(context.requests),
            "num_tokens": [context.requests[r].num_tokens for r in context.req_ids],
            "scheduled": step.num_scheduled_tokens,
            "finished": sorted(step.finished_req_ids),
            "salts": {new.req_id: new.cache_salt for new in step.scheduled_new_reqs},
            "num_spec_tokens": context.num_spec_tokens,
            "max_model_len": context.max_model_len,
            "num_draft_tokens": context.num_draft_tokens,
            "target_token_ids": None
            if context.target_token_ids is None
            else context.target_token_ids.tolist(),
            "target_dtype": str(getattr(context.target_token_ids, "dtype", None)),
            "hidden_shape": list(context.sample_hidden_states.shape),
            "aux_hidden_states": context.aux_hidden_states,
            "sampled": [list(map(int, new)) for new in sampled],
            "drafts": drafts,
        }
        with open(self.path, "a") as log:
            log.write(json.dumps({"class": type(context).__module__, "record": record}) + "\n")
        return drafts


def prompts_and_params(tokenizer: Any) -> tuple[list[Any], list[Any]]:
    """Short and long rows, two tenants, one row at the edge of max_model_len, one under a grammar."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    texts = [
        "one two three one two three one",
        "The capital of France is",
        "red green blue red green",
        "a b a b a",
    ]
    prompts: list[Any] = [{"prompt_token_ids": tokenizer(text).input_ids} for text in texts]
    prompts.append({"prompt_token_ids": tokenizer("up down " * 60).input_ids[: MAX_MODEL_LEN - 4]})
    prompts.append({"prompt_token_ids": tokenizer("Which colour has the sky? Answer:").input_ids})
    for prompt, salt in zip(prompts, ("tenant-a", None, "tenant-b", "tenant-a", None, None), strict=True):
        if salt is not None:
            prompt["cache_salt"] = salt
    lengths = (20, 9, 14, 30, 30, 12)
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    params[-1] = SamplingParams(
        temperature=0.0,
        max_tokens=12,
        structured_outputs=StructuredOutputsParams(choice=["yellow", "purple"]),
    )
    return prompts, params


def main(model: str, out: str, *options: str) -> None:
    os.environ[_LOG] = out
    own_processes = "mp" in options
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(own_processes))

    from vllm_specx import _compat

    state = _compat.install()
    import vllm

    llm = vllm.LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        distributed_executor_backend="mp" if own_processes else None,
        speculative_config={"model": "context_recorder.Recorder", "num_speculative_tokens": NUM_SPEC_TOKENS},
    )
    prompts, params = prompts_and_params(llm.get_tokenizer())
    outputs = llm.generate(prompts, params, use_tqdm=False)
    summary = {
        "vllm": vllm.__file__,
        "applied": state.applied,
        "present": state.present,
        "outputs": [list(output.outputs[0].token_ids) for output in outputs],
        "finish_reasons": [output.outputs[0].finish_reason for output in outputs],
        "prompt_lengths": [len(output.prompt_token_ids) for output in outputs],
    }
    with open(out, "a") as log:
        log.write(json.dumps(summary) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
