"""The suffix tree on two ranks of model runner V2, and plain decoding there; prints the tokens of both as JSON.

    python v2_tensor_parallel_run.py FOLDER        (with tests/v2_site on PYTHONPATH)

makes a tiny random Llama in FOLDER; each rank writes its drafts to FOLDER/rankR.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

from tensor_parallel_run import PROMPTS, make_model


def run(folder: str, **options: Any) -> tuple[list[list[int]], str]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        **options,
    )
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    tokens = [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]
    runner = "V2" if llm.llm_engine.vllm_config.use_v2_model_runner else "V1"
    del llm
    gc.collect()
    return tokens, runner


def main(folder: str) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{cores[0]}|{cores[-1]}"
    os.environ["SPECX_TEST_RANKS"] = folder
    make_model(folder)
    drafted, runner = run(
        folder,
        speculative_config={"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 4},
        additional_config={"specx": {"alpha": 0.0}},
        worker_extension_cls="v2_ranks.Extension",
    )
    plain, _ = run(folder)
    print("RESULT", json.dumps({"plain": plain, "drafted": drafted, "runner": runner}))


if __name__ == "__main__":
    main(sys.argv[1])
