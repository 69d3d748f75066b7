"""An engine with a memory file in the layout of `vllm serve`, its worker in a process of its own.

    python memory_run.py MODEL MEMORY_FILE

answers one prompt for two tenants and for nobody, has one of the tenants forgotten, answers once more for nobody,
and ends the worker by SIGTERM. (vLLM gives the processes of an `LLM` that goes away 5 s, which may be too short.)
"""

from __future__ import annotations

import os
import sys

NUM_PROMPT_TOKENS = 24
MAX_TOKENS = 24


def main(model: str, memory_path: str) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    import psutil
    import vllm

    import vllm_specx

    llm = vllm.LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        distributed_executor_backend="mp",
        speculative_config={"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 8},
        additional_config={"specx": {"memory_path": memory_path, "memory_bytes": 1 << 20}},
    )
    prompt = {"prompt_token_ids": list(range(100, 100 + NUM_PROMPT_TOKENS))}
    params = vllm.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    prompts = [prompt | {"cache_salt": salt} for salt in ("tenant-a", "tenant-b")] + [prompt]
    llm.generate(prompts, params, use_tqdm=False)
    print("forgotten:", vllm_specx.purge(llm, cache_salt="tenant-a"))
    llm.generate({"prompt_token_ids": list(range(200, 200 + NUM_PROMPT_TOKENS))}, params, use_tqdm=False)
    (worker,) = (p for p in psutil.Process().children(recursive=True) if "Worker" in p.name())
    worker.terminate()
    worker.wait(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
