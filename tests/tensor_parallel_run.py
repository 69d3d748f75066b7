"""vLLM's n-gram drafter on two ranks, plain and with a length for each step.

    python tensor_parallel_run.py FOLDER

makes a tiny random Llama there (SmolLM2's 9 heads do not split in two) and prints, as JSON, the tokens of both engines
and vLLM's counts of drafts.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

PROMPTS = [[5, 9, 7, 5, 9, 7, 5, 9], [i % 11 + 20 for i in range(40)], [3] * 12, [*range(40, 70)]]
SPECULATIVE = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def make_model(folder: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)


def bind_cores() -> None:
    """A core for each rank. (Before vLLM is imported.)"""
    cores = sorted(os.sched_getaffinity(0))
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{cores[0]}|{cores[-1]}"


def make_engine(folder: str, **options: Any) -> Any:
    from vllm import LLM

    return LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        **options,
    )


def generate(llm: Any, max_tokens: int) -> list[list[int]]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]


def run(folder: str, **options: Any) -> tuple[list[list[int]], dict[str, int]]:
    import gc

    llm = make_engine(folder, max_num_seqs=8, disable_log_stats=False, **options)
    tokens = generate(llm, 40)
    counts = {
        metric.name: metric.value
        for metric in llm.get_metrics()
        if metric.name.startswith("vllm:spec_decode_num") and hasattr(metric, "value")
    }
    del llm
    gc.collect()
    return tokens, counts


def main(folder: str) -> None:
    bind_cores()
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    make_model(folder)
    adaptive, counts = run(
        folder, speculative_config=SPECULATIVE, additional_config={"specx": {"adaptive": True}}
    )
    plain, _ = run(folder)
    print("RESULT", json.dumps({"plain": plain, "adaptive": adaptive, "counts": counts}))


if __name__ == "__main__":
    main(sys.argv[1])
