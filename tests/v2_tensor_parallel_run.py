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

from tensor_parallel_run import bind_cores, generate, make_engine, make_model


def run(folder: str, **options: Any) -> tuple[list[list[int]], str]:
    llm = make_engine(folder, max_num_seqs=4, **options)
    tokens = generate(llm, 24)
    runner = "V2" if llm.llm_engine.vllm_config.use_v2_model_runner else "V1"
    del llm
    gc.collect()
    return tokens, runner


def main(folder: str) -> None:
    bind_cores()
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
